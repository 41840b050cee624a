"""`PrivateCallback`: a Lightning training whose steps are private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noiseproof.data.persons import Groups
from noiseproof.errors import MissingPartError, UnsupportedError
from noiseproof.integrations.loop import make_private
from noiseproof.integrations.training import TrainedWithin
from noiseproof.integrations.watch import Reduction

try:
    from lightning.pytorch import Callback
except ImportError:
    raise MissingPartError("PyTorch Lightning needs more parts: pip install 'noiseproof[lightning]'.") from None


class PrivateCallback(TrainedWithin, Callback):
    """Makes `trainer.fit` private: `Trainer(callbacks=[PrivateCallback(epsilon=3, delta=1e-6)])`.

    The training loader then draws Poisson samples of its data set, whoever made it; `max_epochs` epochs of it spend the budget;
    `accumulate_grad_batches` batches are pieces of one sample. What was spent is saved in Lightning's checkpoints and comes
    back with them. Losses of private records that a `training_step` logs are as private as the records.

    Args:
        network: The part of the LightningModule that `training_step` calls on a batch, by its path (`"model"`); "" for
            the module itself, called as `self(...)`.
        epsilon: What the epochs may spend, at `delta`; instead of `noise_multiplier`.
        delta: See `epsilon`.
        noise_multiplier: The noise, where there is no `epsilon`.
        max_grad_norm: The L2 norm that each record's gradient is clipped to. (`gradient_clip_val` would clip the noised one.)
        loss_reduction: Whether the loss that `training_step` returns is a `mean` or a `sum` over records.
        journal: See `make_private`.
        seed: For research: reproducible noise.
        groups: Whose each record of the training data set is; see `make_private`.
        max_records_per_person: See `make_private`.

    Formal guarantee
    ----------------
    That of `noiseproof.PrivateTraining`.
    """

    def __init__(
        self,
        network: str = "",
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        max_grad_norm: float = 1.0,
        loss_reduction: Reduction = "mean",
        journal: str | Path | None = None,
        seed: int | None = None,
        groups: Groups | None = None,
        max_records_per_person: int = 8,
    ) -> None:
        self._network = network
        self._options: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "max_grad_norm": max_grad_norm,
            "loss_reduction": loss_reduction,
            "journal": journal,
            "seed": seed,
            "groups": groups,
            "max_records_per_person": max_records_per_person,
        }
        self._state: dict[str, Any] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the training private, before its first batch is drawn."""
        if trainer.world_size > 1:
            raise UnsupportedError("PrivateCallback trains in one process; use devices=1.")
        if not trainer.max_epochs or trainer.max_epochs < 0:
            raise UnsupportedError("a budget is planned for a number of epochs; set the Trainer's max_epochs.")
        loader = trainer.train_dataloader
        self.engine = make_private(
            pl_module.get_submodule(self._network),
            [getattr(one, "_optimizer", one) for one in trainer.optimizers],
            loader,
            **self._options,
            epochs=trainer.max_epochs,
            accumulation_steps=trainer.accumulate_grad_batches,
            prefetch=2,
        )
        # The last sample of an epoch comes in as many pieces as the others.
        trainer.fit_loop.max_batches = len(loader)
        iter(trainer.fit_loop._data_fetcher)  # the first epoch had been begun with the loader as it was
        if self._state is not None:
            self.engine.load_state_dict(self._state)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the hooks off the module; `engine` still tells what was spent."""
        self._training.close()

    def state_dict(self) -> dict[str, Any]:
        """What was spent, for Lightning's checkpoints."""
        return {} if self.engine is None else self.engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a checkpoint says was spent."""
        self._state = state_dict or None
