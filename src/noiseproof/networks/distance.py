"""TPVD: how far noise moved a network's weights (Lin et al. 2020). It is no measure of privacy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch
from torch import nn

from noiseproof.errors import SettingError

Weights: TypeAlias = nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor]


def tpvd(reference: Weights, noisy: Weights) -> float:
    """Total Parameters Value Difference: the mean over weight tensors of ||W - W'||_F / ||W||_F (Lin et al. 2020).

    `reference` was trained without noise, `noisy` with it, from the same initial weights. Of modules and of named
    tensors, those with two dimensions or more count (the paper's "matrices of weights": no biases); of bare tensors
    all do. A tensor that is zero in the reference has no relative difference and is left out.

    It measures how far the noise moved the weights. That is no privacy: a large TPVD promises nothing.

    Args:
        reference: The network trained without noise.
        noisy: The network trained with noise.

    Returns:
        The mean relative difference.

    Raises:
        SettingError: If the two are not of one architecture, or the reference is zero everywhere.

    Formal guarantee
    ----------------
    None: it is computed from weights trained without noise, and is itself no release.

    Examples:
        >>> import torch
        >>> from noiseproof.networks import tpvd
        >>> tpvd([torch.ones(2, 2)], [torch.zeros(2, 2)])
        1.0
    """
    first, second = _tensors(reference), _tensors(noisy)
    if [tensor.shape for tensor in first] != [tensor.shape for tensor in second]:
        raise SettingError(
            "TPVD compares the weights of two networks of one architecture; these differ in their shapes."
        )
    differences = [
        (_norm(before - after) / norm)
        for before, after in zip(first, second, strict=True)
        if (norm := _norm(before)) > 0
    ]
    if not differences:
        raise SettingError("TPVD needs a reference with at least one weight tensor that is not zero.")
    return float(torch.stack(differences).mean())


def _tensors(weights: Weights) -> list[torch.Tensor]:
    if isinstance(weights, nn.Module):
        weights = {name: parameter.detach() for name, parameter in weights.named_parameters()}
    if isinstance(weights, Mapping):
        # By name, so that two state dicts compare whatever their order.
        return [weights[name].detach().double() for name in sorted(weights) if weights[name].dim() >= 2]
    return [tensor.detach().double() for tensor in weights]


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.square().sum().sqrt()
