"""Layer-wise relevance propagation: how much each input feature contributed to an output (Bach et al. 2015)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.inputs.layers import PASSED, chain

Start: TypeAlias = Literal["predicted", "outputs"] | torch.Tensor
"""Where relevance starts: the largest output, all outputs, one output a record (int64) or any vector (float)."""

STABILISER = 1e-3


def relevances(
    module: nn.Module, features: torch.Tensor, *, start: Start = "predicted", stabiliser: float = STABILISER
) -> torch.Tensor:
    """Each feature's relevance to an output of each record, of the features' shape.

    The epsilon rule (Phan et al., eqs 4 to 8): unit m hands its relevance to its inputs p in proportion to
    z_pm / (z_m + mu), z_m - mu where z_m is negative, bias included in z_m. Max-pooling hands all of it to the largest
    input, activations and normalisations hand it through. All records are propagated at once.

    Formal guarantee
    ----------------
    None: a record's relevances depend on that record and on the network, and are as private as both.
    """
    if not stabiliser >= 0:
        raise SettingError(f"the stabiliser of relevances must be 0 or more, not {stabiliser}.")
    layers = chain(module)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            values = [features]
            for layer in layers:
                values.append(layer(values[-1]))
        relevance = _start(values[-1], start)
        for layer, inputs in zip(reversed(layers), reversed(values[:-1]), strict=True):
            if isinstance(layer, nn.Flatten):
                relevance = relevance.view_as(inputs)
            elif not isinstance(layer, PASSED):
                relevance = _share(layer, inputs, relevance, stabiliser)
        return relevance
    finally:
        module.train(training)


def _start(outputs: torch.Tensor, start: Start) -> torch.Tensor:
    if isinstance(start, torch.Tensor) and start.is_floating_point():
        if start.shape != outputs.shape:
            raise SettingError(
                f"relevances of shape {tuple(start.shape)} cannot start at {tuple(outputs.shape)} outputs."
            )
        return start.to(outputs)
    if isinstance(start, torch.Tensor):
        if start.shape != outputs.shape[:1] or (
            len(start) and not 0 <= int(start.min()) <= int(start.max()) < outputs.shape[1]
        ):
            raise SettingError(
                f"relevances start at one of {outputs.shape[1]} outputs for each of {len(outputs)} records."
            )
        chosen = start.to(outputs.device)
    elif start == "predicted":
        chosen = outputs.argmax(1)
    elif start == "outputs":
        return outputs
    else:
        raise SettingError(f"relevances start at predicted or outputs, or where a tensor says, not at {start!r}.")
    return outputs * nn.functional.one_hot(chosen, outputs.shape[1])


def _share(layer: nn.Module, inputs: torch.Tensor, relevance: torch.Tensor, stabiliser: float) -> torch.Tensor:
    """One layer down: p's share is p times the derivative of z_m with respect to p, times R_m / (z_m +- mu), over all m."""
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_()
        outputs = layer(inputs)
        whole = outputs.detach()
        whole = whole + torch.where(whole >= 0, stabiliser, -stabiliser)
        # Without a stabiliser a unit that is exactly 0 has nothing to hand on.
        ratio = torch.where(whole == 0, 0.0, relevance / whole)
        (slope,) = torch.autograd.grad(outputs, inputs, ratio)
    return inputs.detach() * slope
