"""Noise on inputs (Phan et al., Algorithm 1, lines 8 to 14), what a training sees of the records, and that training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from noiseproof.errors import DataError, SettingError
from noiseproof.methods.common import shuffled
from noiseproof.methods.inputs.layers import AFFINE, SECOND_ORDER, LossNoise, chain, first_order, taylor_loss
from noiseproof.privacy import Randomness
from noiseproof.privacy.budget import check_epsilon
from noiseproof.progress import SILENT, Progress
from noiseproof.tensors import seeded

if TYPE_CHECKING:
    from noiseproof.data import Dataset


_ENTRIES = 1 << 22
"""Features that get their noise at once, so that memory does not grow with the records."""

_ROUNDED = 1e-9
"""More than float64 leaves open of a sum of betas."""


@dataclass(frozen=True, eq=False)
class InputNoise:
    """Laplace noise on features: adaptive by `beta`, identical where it is all 1."""

    sensitivity: float
    """D_h = 2 d |h0|."""
    epsilon: float
    batch_size: int
    beta: torch.Tensor
    """One number a feature, flat, which sum to the number of features."""

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not (self.beta > 0).all():
            raise SettingError("every feature needs a part of the budget greater than 0; give beta a floor.")

    @property
    def bias_scale(self) -> float:
        """The scale of the noise on the bias, whose beta is 1."""
        return self.sensitivity / self.epsilon / self.batch_size

    @property
    def scales(self) -> torch.Tensor:
        """The scale of each feature's noise, flat, in float64."""
        return self.bias_scale / self.beta.double()

    def perturb(self, features: torch.Tensor, rng: Randomness, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The records with noise of their own on every feature, drawn once; in `out`, which may be `features`, if given.

        Formal guarantee
        ----------------
        `local_epsilon`-DP for each record's features on its own: local DP, hence replace-one for one record of a data
        set, whatever is computed from the result. Assumption: features lie in [0, 1], which is checked.
        """
        check_bounds(features)
        scales = self.scales.cpu().view(features.shape[1:])
        result = torch.empty_like(features) if out is None else out
        rows = max(1, _ENTRIES // max(1, scales.numel()))
        for first in range(0, len(features), rows):
            part = slice(first, first + rows)
            rng.add_laplace(features[part], scales, out=result[part])
        return result

    def picture(self, shape: tuple[int, ...], rng: Randomness) -> torch.Tensor:
        """One draw for a whole batch, of one record's shape: what the authors' program adds to every record alike."""
        return rng.add_laplace(torch.zeros(shape), self.scales.cpu().view(shape))

    def bias(self, records: int, rng: Randomness) -> torch.Tensor:
        """The bias's input, 1, with noise, for each of so many records. It holds nothing private."""
        return rng.add_laplace(torch.ones(records), self.bias_scale)

    def local_epsilon(self, rng: Randomness) -> float:
        """sum_j r_j |L| epsilon_j / D_h with ranges r_j = 1, and a step of the noise's lattice for each feature."""
        total, features = float(self.beta.double().sum()), len(self.beta)
        if abs(total - features) <= _ROUNDED * features:
            # What is left of released relevances in the last digits of their sum is no part of the promise.
            total = features * (1 + _ROUNDED)
        return total / self.bias_scale + features * rng.rounding(1.0, 1, 1)


def check_bounds(features: torch.Tensor) -> None:
    """Refuse features outside [0, 1], which noise was not scaled for."""
    if len(features) and not (float(features.min()) >= 0 and float(features.max()) <= 1):
        raise DataError(
            "a feature lies outside its public bounds, for which the noise would be too small; code the records by a schema "
            "whose bounds hold, or clip them to [0, 1]."
        )


Draw = Literal["record", "batch", "once"]
"""`record`: noise of its own for every record, once (Algorithm 1). `batch`: one draw for all records of a batch, afresh
at every step (the authors' program on MNIST). `once`: one draw for all records and steps (their program on CIFAR-10, whose
noise is a constant of its graph)."""

Coefficients = Literal["first-order", "all-orders", "matrix", "hidden", "plain"]
"""Where the loss's noise goes. `first-order`: on the coefficients that depend on labels. `all-orders`: on those of z^2, too, as
Algorithm 1 prints it; its constants change no gradient. `matrix`: one fixed draw for each weight of the output layer, as the
authors' program has it now. `hidden`: one vector on the last hidden units, afresh at every step, as earlier versions of the
program had it. `plain`: none, which is what those versions ran: they handed the training the noise of their evaluation, 0."""

Schedule = Literal["linear", "constant"]
"""How the learning rate goes: falling to 0, or as it is, as in the authors' program."""


@dataclass(frozen=True)
class Batch:
    """Some records as the training sees them."""

    features: torch.Tensor
    coefficients: torch.Tensor
    """Of first order, (records, classes)."""
    bias: torch.Tensor | None = None
    """The first layer's bias is multiplied by it, where it has noise."""
    hidden: torch.Tensor | None = None
    """Noise that is added to the last hidden units."""
    second: torch.Tensor | None = None
    """Of second order, where they have noise."""


class Source(ABC):
    """Where batches of records come from; `features` and `coefficients` are what the training may see of them."""

    def __init__(
        self, dataset: Dataset, inputs: InputNoise, loss: LossNoise, coefficients: Coefficients, rng: Randomness
    ) -> None:
        check_bounds(dataset.features)
        self.features = dataset.features
        self.coefficients = first_order(dataset.labels, dataset.classes)
        self._inputs, self._loss, self._noised, self._rng = inputs, loss, coefficients, rng
        self.matrix: torch.Tensor | None = None
        """Noise on the output layer's weights, one draw for the whole training."""
        if coefficients == "matrix":
            self.matrix = loss.perturb(torch.zeros(dataset.classes, loss.hidden), rng)

    def __len__(self) -> int:
        return len(self.features)

    @abstractmethod
    def batch(self, indices: torch.Tensor) -> Batch:
        """The records at these indices."""

    def still(self, indices: torch.Tensor) -> torch.Tensor:
        """Features at these indices with no noise that changes from step to step, to set normalisations by."""
        return self.features[indices]

    def _hidden(self) -> torch.Tensor | None:
        """Noise on the last hidden units, one draw a step, for the reading that has it."""
        if self._noised != "hidden":
            return None
        return self._loss.perturb(torch.zeros(self._loss.hidden), self._rng).to(self.features.device)


class PerturbedRecords(Source):
    """Records whose features and labels were perturbed once; it holds no other copy of them.

    Formal guarantee
    ----------------
    Every record is released with (`InputNoise.local_epsilon` + `LossNoise.local_epsilon`)-local DP, so that whatever is
    computed from this object, however often, is as much DP under replace-one. Only `first-order` and `all-orders` perturb
    labels: with the other readings they are exact, and nothing holds.
    """

    def __init__(
        self, dataset: Dataset, inputs: InputNoise, loss: LossNoise, coefficients: Coefficients, rng: Randomness
    ) -> None:
        super().__init__(dataset, inputs, loss, coefficients, rng)
        self.features = inputs.perturb(self.features, rng)
        self.bias = inputs.bias(len(dataset), rng)
        self.second: torch.Tensor | None = None
        if coefficients in LABELS_NOISED:
            self.coefficients = loss.perturb(self.coefficients, rng)
        if coefficients == "all-orders":
            self.second = loss.perturb(torch.full_like(self.coefficients, SECOND_ORDER), rng)

    def batch(self, indices: torch.Tensor) -> Batch:
        """The perturbed records at these indices."""
        second = None if self.second is None else self.second[indices]
        return Batch(self.features[indices], self.coefficients[indices], self.bias[indices], self._hidden(), second)


class SharedNoise(Source):
    """Records as they are, to which every batch's own draw is added: one picture, one coefficient a class, exact biases.

    Formal guarantee
    ----------------
    None: the records of a batch differ by exactly as much as they did.
    """

    def _picture(self) -> torch.Tensor:
        return self._inputs.picture(tuple(self.features.shape[1:]), self._rng)

    def batch(self, indices: torch.Tensor) -> Batch:
        """The records at these indices with one draw of noise for all of them."""
        features, coefficients = self.features[indices], self.coefficients[indices]
        picture = self._picture()
        second = None
        if self._noised in LABELS_NOISED:
            coefficients = coefficients + self._loss.perturb(torch.zeros_like(coefficients[:1]), self._rng)
        if self._noised == "all-orders":
            second = self._loss.perturb(torch.full_like(coefficients[:1], SECOND_ORDER), self._rng)
        features += picture.to(features)  # a copy already: indices were taken
        return Batch(features, coefficients, hidden=self._hidden(), second=second)


class ConstantNoise(SharedNoise):
    """Records as they are, to which the same picture is added in every batch, and the same vector to their hidden units.

    Formal guarantee
    ----------------
    None, as for `SharedNoise`; and what is constant a network can learn to take off.
    """

    @cached_property
    def _constants(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return super()._picture(), super()._hidden()

    def _picture(self) -> torch.Tensor:
        return self._constants[0]

    def _hidden(self) -> torch.Tensor | None:
        return self._constants[1]


SOURCES: Mapping[Draw, type[Source]] = {"record": PerturbedRecords, "batch": SharedNoise, "once": ConstantNoise}

LABELS_NOISED: tuple[Coefficients, ...] = ("first-order", "all-orders")
"""Readings in which the coefficients that depend on a label have noise of their own."""

_SETTLED = 4096
"""Records whose units' extremes a network keeps."""


@dataclass(frozen=True)
class Look:
    """`call(steps, network)` is called after every `every` steps, with the network in evaluation."""

    every: int
    call: Callable[[int, nn.Module], None]


def descend(
    module: nn.Module,
    source: Source,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    limit: float | None,
    seed: int,
    schedule: Schedule = "linear",
    progress: Progress = SILENT,
    description: str = "training",
    look: Look | None = None,
) -> None:
    """Minimise the perturbed Taylor loss by Adam, over shuffled batches of what `source` hands out.

    A learning rate that falls linearly to 0 keeps the noise of the last steps out of the weights. `limit` clips
    perturbed inputs to [-limit, limit]. `seed` is for shuffles and dropout, on which no privacy rests.

    Formal guarantee
    ----------------
    None by itself: the source's, since this is post-processing of it.
    """
    device = next(module.parameters()).device
    # oneDNN's convolutions are fastest with channels last.
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(module.parameters(), lr=lr, fused=True)
    output = [layer for layer in chain(module) if isinstance(layer, AFFINE)][-1].weight
    matrix = None if source.matrix is None else source.matrix.to(output)
    module.train()
    with seeded(seed, device), progress.task(description, steps) as task:
        for step, indices in enumerate(shuffled(len(source), batch_size, steps)):
            seen = source.batch(indices)
            features = seen.features.to(device)
            if limit is not None:
                features.clamp_(-limit, limit)  # the batch's own copy
            with _perturbed_units(module, seen):
                logits = module(features)
            second = SECOND_ORDER if seen.second is None else seen.second.to(device)
            loss = taylor_loss(logits, seen.coefficients.to(device), second).mean()
            if matrix is not None:
                # The program takes it off every class's term of every record's loss.
                loss = loss - len(matrix) * (matrix * output).sum()
            if schedule == "linear":
                for group in optimizer.param_groups:
                    group["lr"] = lr * (1 - step / steps)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            task.advance(loss=float(loss.detach()))
            if look is not None and (step + 1) % look.every == 0:
                _set_extremes(module, source, limit)
                look.call(step + 1, module)
                module.train()
        _set_extremes(module, source, limit)
    module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def _set_extremes(module: nn.Module, source: Source, limit: float | None) -> None:
    """Put the network into evaluation, with the extremes that records without changing noise give."""
    device = next(module.parameters()).device
    features = source.still(torch.arange(min(_SETTLED, len(source)))).to(device)
    module.train()
    with torch.no_grad():
        module(features if limit is None else features.clamp(-limit, limit))
    module.eval()


@contextmanager
def _perturbed_units(module: nn.Module, seen: Batch) -> Iterator[None]:
    """For one forward pass: the first layer's bias times its perturbed input, and noise on the last hidden units."""
    affine = [layer for layer in chain(module) if isinstance(layer, AFFINE)]
    first, last = affine[0], affine[-1]

    def perturbed_bias(layer: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> torch.Tensor:
        assert seen.bias is not None
        bias = layer.get_parameter("bias") if layer.bias is not None else outputs.new_zeros(1)
        # The bias is a weight of an input that is 1, and now 1 with noise.
        noise = (seen.bias.to(outputs) - 1).view(-1, *[1] * (outputs.ndim - 1))
        return outputs + noise * bias.view(1, -1, *[1] * (outputs.ndim - 2))

    def perturbed_hidden(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        assert seen.hidden is not None
        return (inputs[0] + seen.hidden.to(inputs[0]),)

    handles = [] if seen.bias is None else [first.register_forward_hook(perturbed_bias)]
    handles += [] if seen.hidden is None else [last.register_forward_pre_hook(perturbed_hidden)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
