"""quantile-flat, quantile-layer: clip to a quantile of the batch's gradient norms, then noise (Lin et al. 2020, algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

import torch
from torch import nn

from noiseproof.engine import RecordGradients, clip_weights
from noiseproof.engine.batch_gradients import BatchGradients, Sampling
from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.common import Within
from noiseproof.methods.gradients.noisy_gradient import UnprovenMethod
from noiseproof.privacy.events import DpEvent, NonPrivateDpEvent

if TYPE_CHECKING:
    from noiseproof.privacy import Budget


LayerShare = Literal["root", "count", "printed", "own"]
"""A layer's part of the clipping norm C, of m layers. `root`: C / sqrt(m), so that the whole stays within C. `count`: C / m.
`printed`: each record's own norm over m, as algorithm 2 prints it. `own`: the quantile of that layer's own norms."""


class QuantileGradients(BatchGradients):
    """DP-SGD with the clipping norm read off each batch without noise: flat, or one norm a layer.

    Args:
        module: The network; every trainable parameter gets a gradient.
        noise_multiplier: The standard deviation of the noise on the sum, in units of the batch's clipping norm.
        quantile: Which quantile of the batch's gradient norms is the clipping norm C, in (0, 1).
        by: `all` clips over the whole parameter vector, `layer` each layer by itself.
        share: A layer's part of C, of m layers: C / sqrt(m) (`root`), C / m (`count`), a record's own norm over m
            (`printed`), or the quantile of that layer's own norms (`own`).
        sampling: `sample_rate` and `rng`, as for `PrivateGradients`; `rng` has no default here.

    Raises:
        UnsupportedError: If the network has layers that mix records.
        SettingError: If the quantile is out of range; in `backward`, if a step comes in several micro-batches.

    Formal guarantee
    ----------------
    None: the quantile is a function of the private gradients and enters the result un-noised. The log holds
    `NonPrivateDpEvent`s.

    Examples:
        >>> import torch
        >>> from noiseproof.methods.gradients import QuantileGradients
        >>> from noiseproof.privacy import Reproducible
        >>> network = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.Adam(network.parameters())
        >>> engine = QuantileGradients(network, noise_multiplier=0.5, sample_rate=1.0, rng=Reproducible(0))
        >>> for x, y in engine.batches(torch.randn(100, 4), torch.randint(2, (100,)), steps=5):
        ...     losses = torch.nn.functional.cross_entropy(network(x), y, reduction="none")
        ...     if engine.backward(losses):
        ...         optimizer.step()
        >>> engine.max_grad_norm > 0  # the median norm of the last batch
        True
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        noise_multiplier: float,
        quantile: float = 0.5,
        by: Literal["all", "layer"] = "all",
        share: LayerShare = "root",
        **sampling: Unpack[Sampling],
    ) -> None:
        super().__init__(module, **sampling)
        if not 0 < quantile < 1:
            raise SettingError(f"the quantile must lie in (0, 1), not {quantile}.")
        self.noise_multiplier, self.max_grad_norm = noise_multiplier, math.nan
        self._quantile, self._by, self._share = quantile, by, share
        self._batch: RecordGradients | None = None

    def forget_waiting(self) -> None:
        """Drop what an interrupted step has left."""
        super().forget_waiting()
        self._batch = None

    def _accumulate(self, gradients: RecordGradients) -> None:
        if self._batch is not None:
            raise SettingError(
                "a quantile of the whole batch cannot be had from micro-batches; use micro_batch_size=None."
            )
        self._batch = gradients

    def _event(self) -> DpEvent:
        return NonPrivateDpEvent()

    def _finish(self) -> torch.Tensor:
        batch, self._batch = self._batch, None
        if batch is None:
            # No records, no norms, so no scale for the noise either: the algorithm has nothing to say of this case.
            return self._take_sum()
        self.max_grad_norm = float(batch.squared_norms().sqrt().quantile(self._quantile))
        share = 1 / self.expected_batch
        if self._by == "all":
            mean = batch.clipped_vector(self.max_grad_norm, share)
        else:
            squared = batch.squared_norms(by="layer")
            weights = self._layer_weights(squared, share)
            mean = batch.weighted_vector(weights, by="layer")
        return self._rng.add_gaussian(mean, self.noise_multiplier * self.max_grad_norm * share, out=mean)

    def _layer_weights(self, squared: torch.Tensor, share: float) -> torch.Tensor:
        """What each record's part of each layer, of those squared norms, is multiplied by: (records, layers)."""
        layers = squared.shape[1]
        if self._share == "own":
            norms = squared.sqrt().quantile(self._quantile, dim=0)
        elif self._share == "printed":
            norms = squared.sum(1, keepdim=True).sqrt() / layers
        else:
            parts = math.sqrt(layers) if self._share == "root" else layers
            return clip_weights(squared, self.max_grad_norm / parts, share)
        return share * (norms / squared.sqrt().clamp_min(1e-30)).clamp(max=1.0)


@register
@dataclass(frozen=True)
class QuantileFlat(UnprovenMethod):
    """DP-SGD clipped to the un-noised median of the batch's gradient norms (Lin et al., algorithm 2).

    The paper states no epsilon, so the budget's is not used.

    Formal guarantee
    ----------------
    None: the clipping norm, and with it the noise, is a function of the private gradients.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> npf.train("quantile-flat", records, epochs=2).card.verdict
        'nothing proven'
    """

    name: ClassVar[str] = "quantile-flat"
    claims: ClassVar[str] = "no epsilon; the noise of DP-SGD at the batch's own quantile"
    why: ClassVar[str] = (
        "The clipping norm is a quantile of private gradient norms, released un-noised through the noise's scale; "
        "the paper states no epsilon, and the budget's was not used."
    )
    stated: ClassVar[tuple[str, ...]] = ("noise_multiplier", "quantile", "by")
    other: ClassVar[float] = 1.0
    by: ClassVar[Literal["all", "layer"]] = "all"

    quantile: Within = 0.5
    """Which quantile of the batch's gradient norms is the clipping norm."""

    def gradients(
        self, module: nn.Module, *, steps: int, budget: Budget, **sampling: Unpack[Sampling]
    ) -> BatchGradients:
        """Sums clipped to the batch's quantile and noised."""
        return QuantileGradients(
            module,
            noise_multiplier=self.noise_multiplier,
            quantile=self.quantile,
            by=self.by,
            share=getattr(self, "share", "root"),
            **sampling,
        )

    def score(self, gradient: torch.Tensor) -> float:
        """The gradient's norm: the canary moves the quantile, and the noise tells how far."""
        return float(torch.linalg.vector_norm(gradient))


@register
@dataclass(frozen=True)
class QuantileLayer(QuantileFlat):
    """DP-SGD clipped layer by layer to the un-noised median norm over the root of the number of layers.

    Formal guarantee
    ----------------
    None: as `quantile-flat`.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> npf.train("quantile-layer", records, epochs=2, share="count").card.verdict
        'nothing proven'
    """

    name: ClassVar[str] = "quantile-layer"
    by: ClassVar[Literal["all", "layer"]] = "layer"

    share: LayerShare = "root"
    """A layer's part of the clipping norm C, of m layers: C / sqrt(m) (`root`), C / m (`count`), a record's own norm over m
    (`printed`), or the quantile of that layer's own norms (`own`)."""
