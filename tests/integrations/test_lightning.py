"""A Lightning training made private by a callback: its steps, its spends, its checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from noiseproof.errors import NoiseproofError
from tests.integrations.conftest import QUIET, Numbered, clipped_sum, network

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.seen, self.checked, self.before = [], 0, []

    def training_step(self, batch, _):
        numbers, x, y = batch
        self.seen += numbers.tolist()
        self.before = [copy.deepcopy(self.net)]  # in a list, so that it is no part of the module
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


class Checked(Lit):
    def on_before_optimizer_step(self, optimizer):
        expected = clipped_sum(self.before[0], Numbered(), self.seen, 0.3)
        for parameter, total in zip(self.net.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, total / 12, rtol=1e-4, atol=1e-6)
        self.seen, self.checked = [], self.checked + 1


def fit(tmp_path, module, batch_size=12, ckpt_path=None, accumulate=1, epochs=2, **options):
    from noiseproof.integrations.lightning import PrivateCallback

    private = PrivateCallback("net", **options)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[private],
        accumulate_grad_batches=accumulate,
    )
    trainer.fit(module, DataLoader(Numbered(), batch_size=batch_size, shuffle=True), ckpt_path=ckpt_path)
    return trainer, private


@pytest.mark.parametrize(("batch_size", "accumulate"), [(12, 1), (4, 3)])
def test_every_step_is_by_the_clipped_gradients_of_single_records(tmp_path, batch_size, accumulate):
    module = Checked()
    options = {"noise_multiplier": QUIET, "max_grad_norm": 0.3, "seed": 2}
    trainer, private = fit(tmp_path, module, batch_size, accumulate=accumulate, **options)
    assert module.checked == private.engine.steps == trainer.global_step == 10


def test_the_budget_is_spent_over_the_trainers_epochs_and_comes_along_in_its_checkpoints(tmp_path):
    trainer, private = fit(tmp_path, Lit(), epsilon=2.0, delta=1e-4)
    assert 1.9 < private.epsilon() <= 2
    assert private.release(preprocessing="public").card.verdict == "proven"
    file = tmp_path / "kept.ckpt"
    trainer.save_checkpoint(file)
    _, longer = fit(
        tmp_path, Lit(), epochs=4, ckpt_path=file, noise_multiplier=private.engine.gradients.noise_multiplier
    )
    assert longer.engine.steps == 20
    with pytest.raises(NoiseproofError, match="have been taken"):
        fit(
            tmp_path,
            Lit(),
            epochs=3,
            ckpt_path=_of(longer, tmp_path),
            noise_multiplier=longer.engine.gradients.noise_multiplier,
        )


def _of(callback, tmp_path):
    """The checkpoint of the second epoch, as if two epochs more had not been spent from it, but with their spends."""
    state = torch.load(tmp_path / "kept.ckpt", weights_only=False)
    (name,) = state["callbacks"].keys() & {key for key in state["callbacks"] if "PrivateCallback" in key}
    state["callbacks"][name] = callback.state_dict()
    torch.save(state, tmp_path / "later.ckpt")
    return tmp_path / "later.ckpt"
