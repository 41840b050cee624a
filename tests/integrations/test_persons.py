"""Loops of the user's own whose unit is a person: `groups=` of `make_private` and of the integrations."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import noiseproof as npf
from noiseproof.errors import DataError, SettingError
from noiseproof.privacy import accountants
from noiseproof.privacy.events import sampled_gaussian
from tests.integrations.conftest import RECORDS, Numbered, network

CLIP, MOST = 0.3, 3
IDS = [f"patient {place * place % 17}" for place in range(RECORDS)]
"""Nine persons, who have 3 to 8 of the records each, in no order."""
PERSONS = len(set(IDS))


def person_sum(model, data, numbers):
    """The sum of persons' clipped mean gradients over the records that were drawn, as autograd gives them."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for person in {IDS[number] for number in numbers}:
        mine = [number for number in numbers if IDS[number] == person]
        assert len(mine) <= MOST
        gradients = torch.autograd.grad(functional.cross_entropy(model(data.x[mine]), data.y[mine]), parameters)
        norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
        for one, gradient in zip(total, gradients, strict=True):
            one += gradient * min(1.0, CLIP / norm)
    return total


@pytest.mark.parametrize(
    "options", [{}, {"max_physical_batch_size": 4}, {"accumulation_steps": 2}], ids=["whole", "pieces", "accumulated"]
)
def test_a_loop_steps_by_the_clipped_means_of_a_sample_of_persons(parts, quietly, options):
    model, optimizer, loader = parts(batch_size=2)
    engine = quietly(model, optimizer, loader, groups=IDS, max_records_per_person=MOST, **options)
    size = 2 * options.get("accumulation_steps", 1)
    drawn, steps, persons = [], 0, 0
    for numbers, x, y in loader:
        if not engine.gradients.in_step:
            optimizer.zero_grad()
            frozen, drawn = copy.deepcopy(model), []
        drawn += numbers.tolist() if engine.gradients.waiting else []
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if engine.stepped:
            assert len(drawn) == len(set(drawn))
            for parameter, total in zip(model.parameters(), person_sum(frozen, loader.dataset, drawn), strict=True):
                torch.testing.assert_close(parameter.grad, total / size, rtol=1e-4, atol=1e-6)
            steps, persons = steps + 1, persons + len({IDS[number] for number in drawn})
    assert steps == engine.steps == -(-PERSONS // size)
    assert persons > 0


def test_the_card_is_a_persons_and_states_no_number_of_records(parts):
    model, optimizer, loader = parts(batch_size=2)
    engine = npf.make_private(model, optimizer, loader, epsilon=3, delta=1e-5, epochs=2, groups=IDS)
    for _ in range(2):
        for _, x, y in loader:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    card = engine.release(preprocessing="public").card
    engine.close()
    assert card.unit == card.claimed.unit == "person"
    assert card.ran["persons"] == PERSONS
    assert "records" not in card.ran
    assert "for one person" in card.text
    assert any("number of persons is public" in said for said in card.proven.assumptions)
    event = sampled_gaussian(2 / PERSONS, card.ran["noise_multiplier"], 2 * 5)
    assert card.proven.epsilon == pytest.approx(accountants.epsilon(event, 1e-5).epsilon)
    assert "patient" not in card.to_json()


def test_the_epsilon_depends_on_persons_alone_and_a_record_each_is_a_record(parts, quietly):
    alone = quietly(*parts(), groups=list(range(RECORDS)))
    records = quietly(*parts())
    assert alone.gradients.sample_rate == records.gradients.sample_rate
    few = quietly(*parts(batch_size=3), groups=["one", "two", "three"] * (RECORDS // 3))
    assert few.gradients.sample_rate == 1.0


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (IDS[:-1], "one id a record"),
        ([None, *IDS[1:]], "empty in 1 rows"),
        ([7, *IDS[1:]], "partly by texts and partly by numbers"),
    ],
)
def test_ids_that_do_not_tell_every_person_are_refused_without_one_in_the_words(parts, groups, said):
    with pytest.raises(DataError, match=said) as refused:
        npf.make_private(*parts(), noise_multiplier=1.0, groups=groups)
    assert "patient" not in str(refused.value)


def test_no_record_of_a_person_is_refused(parts):
    with pytest.raises(SettingError, match="max_records_per_person"):
        npf.make_private(*parts(), noise_multiplier=1.0, groups=IDS, max_records_per_person=0)


def test_batches_take_ids_too():
    module, data = network(), Numbered()
    # Secure noise clips a value at 2^29 times its scale, which `QUIET` is too quiet for.
    engine = npf.PrivateGradients(module, max_grad_norm=CLIP, noise_multiplier=1e-7, sample_rate=0.5)
    numbers = torch.arange(RECORDS)
    for x, y, drawn in engine.batches(data.x, data.y, numbers, steps=4, groups=IDS, max_records_per_person=MOST):
        frozen = copy.deepcopy(module)
        assert engine.backward(functional.cross_entropy(module(x), y, reduction="none") if len(y) else None)
        for parameter, total in zip(module.parameters(), person_sum(frozen, data, drawn.tolist()), strict=True):
            torch.testing.assert_close(parameter.grad, total / (PERSONS / 2), rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice
def test_lightning_trains_on_persons(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from noiseproof.integrations.lightning import PrivateCallback

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[1]), batch[2])

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.1)

    private = PrivateCallback("net", epsilon=3, delta=1e-5, groups=IDS, max_records_per_person=MOST)
    shown = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, callbacks=[private], **shown
    )
    trainer.fit(Lit(), DataLoader(Numbered(), batch_size=2, shuffle=True))
    card = private.release(preprocessing="public").card
    assert (card.unit, card.ran["persons"], card.ran["steps"]) == ("person", PERSONS, 2 * 5)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"patient" not in file.read_bytes()


def test_the_trainer_trains_on_persons(tmp_path):
    transformers = pytest.importorskip("transformers")
    from noiseproof.integrations.huggingface import PrivateTrainer

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            output = self.net(x)
            return {"loss": functional.cross_entropy(output, labels), "logits": output}

    data = Numbered()
    items = [{"x": data.x[place], "labels": data.y[place]} for place in range(RECORDS)]
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=8, per_device_train_batch_size=2, report_to=[], use_cpu=True
    )
    trainer = PrivateTrainer(
        model=Classifier(),
        args=args,
        train_dataset=items,
        epsilon=3,
        delta=1e-5,
        groups=IDS,
        max_records_per_person=MOST,
    )
    trainer.train()
    card = trainer.release(preprocessing="public").card
    assert (card.unit, card.ran["persons"], card.ran["steps"]) == ("person", PERSONS, 8)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"patient" not in file.read_bytes()
