"""StackedNetwork: k networks of one shape computed as one, with every parameter stored as (k, ...)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.networks.network import Network
from noiseproof.networks.small import Lstm


class StackedNetwork:
    """k networks of one shape as one batched network: many shadow models, teachers or a collection at the price of few.

    Dense layers run as one batched
    product, convolutions as one grouped convolution and layers that are known to look at one record at a time over all
    records; whatever else there is runs under `vmap`, or network by network where that cannot be, on a copy that forgets
    what it saw. The networks share nothing but the arithmetic: network j's logits and gradients do not depend on the
    others' weights or records, whatever these hold and whatever a layer does with its batch (up to rounding).

    Args:
        network: What each of them is.
        parameters: Each of the network's parameters by its name, with a leading dimension of k.

    Raises:
        SettingError: If the parameters are not a stack of such networks.
        UnsupportedError: If the network has batch normalisation.

    Examples:
        >>> import torch
        >>> from noiseproof.networks import Network, StackedNetwork
        >>> stack = StackedNetwork.of(Network("mlp", (4,), 3), seeds=[0, 1])
        >>> len(stack), stack.logits(torch.zeros(5, 4)).shape
        (2, torch.Size([2, 5, 3]))
        >>> first = stack.module(0)  # as an ordinary module
    """

    def __init__(self, network: Network, parameters: Mapping[str, torch.Tensor]) -> None:
        self.network = network
        self.parameters = dict(parameters)
        self._template = network.build().eval()
        self._layers = tuple(_layers(self._template))
        if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in self._template.modules()):
            raise UnsupportedError("batch normalisation mixes records: use group normalisation instead.")
        expected = {name: value.shape for name, value in self._template.named_parameters()}
        given = {name: value.shape[1:] for name, value in self.parameters.items()}
        if expected != given or len({len(value) for value in self.parameters.values()}) != 1:
            raise SettingError(f"these parameters are not a stack of {network.name} networks of one shape.")

    @classmethod
    def of(cls, network: Network, seeds: Sequence[int]) -> StackedNetwork:
        """New networks, the j-th with the weights of `network.build(seeds[j])`."""
        return cls.from_modules(network, [network.build(seed) for seed in seeds])

    @classmethod
    def from_modules(cls, network: Network, modules: Sequence[nn.Module]) -> StackedNetwork:
        """Modules that were built from `network`, stacked; they keep their own weights."""
        if not modules:
            raise SettingError("a stack needs at least one network.")
        weights = [dict(module.named_parameters()) for module in modules]
        if any(each.keys() != weights[0].keys() for each in weights):
            raise SettingError("only networks of one shape can be stacked.")
        try:
            stacked = {name: torch.stack([each[name].detach() for each in weights]) for name in weights[0]}
        except RuntimeError:
            raise SettingError("only networks of one shape can be stacked.") from None
        return cls(network, stacked)

    def __len__(self) -> int:
        return len(next(iter(self.parameters.values())))

    @property
    def needs_whole_batches(self) -> bool:
        """Whether what a layer does may depend on how many records are in its batch: it draws masks, or mixes them."""
        return not all(type(layer) in (*_BY_RECORD, *_WEIGHTED) for _, layer in self._layers)

    def to(self, device: torch.device | str) -> StackedNetwork:
        """The same networks on another device."""
        return StackedNetwork(self.network, {name: value.to(device) for name, value in self.parameters.items()})

    def forward(
        self,
        inputs: torch.Tensor,
        parameters: Mapping[str, torch.Tensor] | None = None,
        generators: Sequence[torch.Generator] | None = None,
    ) -> torch.Tensor:
        """Logits (k, batch, classes) of inputs (k, batch, *shape), differentiable in `parameters`.

        `parameters` stand in for the stack's own. With `generators`, one a network, dropout is on and network j draws
        its masks from the j-th; without them it is off.
        """
        weights = self.parameters if parameters is None else parameters
        values = inputs
        for prefix, layer in self._layers:
            own = {name: weights[prefix + name] for name, _ in layer.named_parameters()}
            values = _apply(layer, own, values, generators)
        return values

    @torch.no_grad()
    def logits(self, features: torch.Tensor, batch_size: int = 1024) -> torch.Tensor:
        """Every network's logits (k, records, classes) of the same records, computed `batch_size` records at a time."""
        count = len(self)
        parts = [self.forward(part.expand(count, *part.shape)) for part in features.split(batch_size)]
        return torch.cat(parts, dim=1)

    def module(self, index: int) -> nn.Module:
        """The network at `index` as an ordinary module of its own."""
        module = self.network.build()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.data = self.parameters[name][index].detach().clone()
        return module


class _Dense(torch.autograd.Function):
    """x W^T + b for stacks; its own function so that W's gradient comes out in W's layout, without a copy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        transposed = weight.transpose(1, 2)
        return torch.bmm(x, transposed) if bias is None else torch.baddbmm(bias[:, None], x, transposed)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if wants_x else None,
            torch.bmm(gradient.transpose(1, 2), x) if wants_weight else None,
            gradient.sum(1) if wants_bias else None,
        )


def _layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers in order, each with its parameters' prefix; nested sequences are opened."""
    if type(module) is nn.Sequential:
        for name, child in module.named_children():
            yield from _layers(child, f"{prefix}{name}.")
    else:
        yield prefix, module


def _apply(
    layer: nn.Module,
    weights: dict[str, torch.Tensor],
    values: torch.Tensor,
    generators: Sequence[torch.Generator] | None,
) -> torch.Tensor:
    """One layer of every network, on values (k, batch, ...)."""
    if isinstance(layer, nn.Dropout):
        return values if generators is None else _dropout(layer.p, values, generators)
    if isinstance(layer, nn.Linear) and values.ndim == 3:
        dense: torch.Tensor = _Dense.apply(values, weights["weight"], weights.get("bias"))
        return dense
    if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros":
        return _convolution(layer, weights, values)
    if generators is not None and any(isinstance(part, nn.modules.dropout._DropoutNd) for part in layer.modules()):
        raise UnsupportedError(
            "stacked training needs each network's own dropout masks: put nn.Dropout layers into an nn.Sequential."
        )
    if type(layer) in _BY_RECORD or (type(layer) in _WEIGHTED and not weights):
        # The same function for every record of every network, so that their batches are one batch.
        folded: torch.Tensor = layer(values.flatten(0, 1))
        return folded.reshape(*values.shape[:2], *folded.shape[1:])
    call = partial(functional_call, _forgetful(layer))
    try:
        mapped: torch.Tensor = vmap(lambda own, x: call(own, (x,)))(weights, values)
    except RuntimeError:  # what vmap cannot look into, such as a decision by a value
        parts = [{name: value[j] for name, value in weights.items()} for j in range(len(values))]
        mapped = torch.stack(
            [functional_call(_forgetful(layer), own, (x,)) for own, x in zip(parts, values, strict=True)]
        )
    return mapped


_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, Lstm)
"""Layers with weights that look at one record at a time."""
_BY_RECORD = {
    *(
        nn.Flatten,
        nn.Unflatten,
        nn.Identity,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool2d,
    ),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
}
"""Layers without weights that look at one record at a time."""


def _forgetful(layer: nn.Module) -> nn.Module:
    """A copy with the same weights: what a forward pass leaves in it, or in its buffers, is gone with it."""
    copied = copy.copy(layer)
    for part in ("_parameters", "_buffers", "_modules"):
        copied.__dict__[part] = dict(getattr(layer, part))
    for name, buffer in layer.named_buffers(recurse=False):
        copied._buffers[name] = buffer.clone()
    for name, child in layer.named_children():
        copied._modules[name] = _forgetful(child)
    return copied


def _convolution(layer: nn.Conv2d, weights: dict[str, torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """A grouped convolution: network j's channels are group j."""
    count, batch = values.shape[:2]
    bias = weights.get("bias")
    joined = nn.functional.conv2d(
        values.transpose(0, 1).flatten(1, 2),
        weights["weight"].flatten(0, 1),
        None if bias is None else bias.flatten(),
        layer.stride,
        layer.padding,
        layer.dilation,
        groups=count,
    )
    return joined.view(batch, count, -1, *joined.shape[2:]).transpose(0, 1)


def _dropout(rate: float, values: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Dropout in which network j's masks come from its own generator, whatever the other networks draw."""
    masks = torch.empty(values.shape, dtype=values.dtype)
    for mask, generator in zip(masks, generators, strict=True):
        mask.bernoulli_(1 - rate, generator=generator)
    return values * masks.to(values.device) / (1 - rate)
