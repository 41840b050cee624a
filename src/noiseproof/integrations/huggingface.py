"""`PrivateTrainer`: the Trainer of Hugging Face transformers, whose steps are private.

With `accelerate` alone there is nothing to add: call `noiseproof.make_private` with what `accelerator.prepare` returned.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from noiseproof.data.persons import Groups
from noiseproof.errors import MissingPartError, NoiseproofError, UnsupportedError
from noiseproof.files import write_whole
from noiseproof.integrations.loop import make_private
from noiseproof.integrations.training import TrainedWithin

try:
    from transformers import Trainer
except ImportError:
    raise MissingPartError(
        "the Hugging Face Trainer needs more parts: pip install 'noiseproof[huggingface]'."
    ) from None

_STATE = "privacy.json"
_JOURNAL = "privacy.jsonl"
_PRIVATE = ("loss", "train_loss")
"""What the Trainer would log of private records exactly."""


class PrivateTrainer(TrainedWithin, Trainer):
    """A `Trainer` that spends at most (epsilon, delta) on its train_dataset: one more import and two more arguments.

    Examples:
        >>> trainer = PrivateTrainer(model=model, args=args, train_dataset=data, epsilon=3, delta=1e-6)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
        >>> trainer.release(preprocessing="public").save("bundle")  # doctest: +SKIP

    `args` mean what they do in any Trainer, but for `max_grad_norm`, which is the norm that each record's gradient is clipped
    to (the noised gradient is not clipped again), and batch sizes, which are expected ones: batches are Poisson samples.
    `gradient_accumulation_steps` batches are pieces of one sample. A record's loss is the mean over its own labels. Training
    losses are neither logged nor returned, since nothing has noised them, and neither are counts of operations or tokens, which
    tell how long the sampled records are. Every step is noted in `privacy.jsonl` in the
    `output_dir` before it is taken, so that resuming from a checkpoint there, however often, forgets nothing that was spent.

    Args:
        args: Those of `Trainer`.
        epsilon: What `num_train_epochs` epochs may spend, at `delta`; instead of `noise_multiplier`.
        delta: See `epsilon`.
        noise_multiplier: The noise, where there is no `epsilon`.
        noise_seed: For research: reproducible noise. (`args.seed` is not it: what is released would be a rehearsal.)
        groups: Whose each record of the train_dataset is; see `make_private`. Batch sizes are then numbers of persons.
        max_records_per_person: See `make_private`.
        kwargs: Those of `Trainer`.

    Formal guarantee
    ----------------
    That of `noiseproof.PrivateTraining`. Evaluations on an `eval_dataset` are not part of it: choosing by them among
    checkpoints or settings is only as private as that data set is public.
    """

    def __init__(
        self,
        *args: Any,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        noise_seed: int | None = None,
        groups: Groups | None = None,
        max_records_per_person: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._options: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "seed": noise_seed,
            "groups": groups,
            "max_records_per_person": max_records_per_person,
        }
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise UnsupportedError(
                "PrivateTrainer trains in one process; with several, write the loop yourself and call make_private on the "
                "DistributedDataParallel model."
            )
        if self.args.auto_find_batch_size:
            raise UnsupportedError(
                "auto_find_batch_size would start again after steps that were spent; set it to False."
            )
        if getattr(self.args, "include_num_input_tokens_seen", "no") not in ("no", False):
            raise UnsupportedError(
                "include_num_input_tokens_seen counts the tokens of private records exactly; set it to 'no'."
            )

    def get_train_dataloader(self) -> Any:
        """The loader, which draws Poisson samples; its training begins here."""
        loader: Any = super().get_train_dataloader()
        self.create_optimizer()
        before = None if self.engine is None else self.engine.state_dict()
        if self.engine is not None:
            self.engine.close()
        args: Any = self.args
        model: Any = self.model
        optimizer: Any = self.optimizer
        epochs = math.ceil(args.num_train_epochs)
        pieces = args.gradient_accumulation_steps
        if args.max_steps > 0:
            size, groups = args.per_device_train_batch_size * pieces, self._options["groups"]
            count = len(loader.dataset) if groups is None else len(np.unique(np.asarray(groups)))
            epochs = math.ceil(args.max_steps / math.ceil(count / size))
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        self.engine = make_private(
            model,
            optimizer,
            loader,
            **self._options,
            epochs=epochs,
            max_grad_norm=args.max_grad_norm,
            accumulation_steps=pieces,
            scaler=getattr(self.accelerator, "scaler", None),
            journal=Path(args.output_dir) / _JOURNAL,
            prefetch=pieces,
        )
        if before is not None:
            self.engine.load_state_dict(before)
        return loader

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; what is returned states no loss of private records."""
        output = super().train(*args, **kwargs)
        metrics = {name: value for name, value in output.metrics.items() if name not in _PRIVATE}
        return output._replace(training_loss=math.nan, metrics=metrics)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, but for what would tell losses of private records; with what was spent where there is a delta."""
        kept = {name: value for name, value in logs.items() if name not in _PRIVATE}
        if self.engine is not None and self.engine.budget is not None and len(kept) < len(logs) and self.engine.steps:
            kept["epsilon"] = self.engine.epsilon()
        super().log(kept, *args, **kwargs)

    def floating_point_ops(self, inputs: Any) -> int:
        """0: the Trainer counts by the sizes of private batches, and writes the sum into its state and metrics."""
        return 0

    def _clip_grad_norm(self, model: Any) -> Any:
        return None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        write_whole(folder / _STATE, json.dumps(self._training.state_dict()), mode=0o600)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if resume_from_checkpoint is not None:
            file = Path(resume_from_checkpoint) / _STATE
            if not file.is_file():
                raise NoiseproofError(f"{file} is missing, so that what was spent is not known; train anew.")
            self._training.load_state_dict(json.loads(file.read_text()))
        return prepared
