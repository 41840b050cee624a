"""Small networks that learn well under noise: dense, convolutional and recurrent ones, and `mapped`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from noiseproof.data.features import FeatureMap, restore
from noiseproof.errors import SettingError
from noiseproof.networks.network import ACTIVATIONS, Activation, Network, Start, flat, image, register, started
from noiseproof.settings import Count


@register("mlp")
def mlp(
    input_shape: tuple[int, ...],
    classes: int,
    hidden: Count | tuple[Count, ...] = 128,
    activation: Activation = "tanh",
    start: Start = "torch",
) -> nn.Module:
    """Dense layers of `hidden` units each; tanh by default: bounded activations keep clipped gradients small."""
    widths = (hidden,) if isinstance(hidden, int) else hidden
    return started(_dense([flat(input_shape, classes), *widths, classes], activation), start)


@register("linear")
def linear(input_shape: tuple[int, ...], classes: int, start: Start = "torch", norm: bool = False) -> nn.Module:
    """Softmax regression: one dense layer; with `norm` on each record's features at mean 0 and variance 1."""
    features = flat(input_shape, classes)
    layers = started(_dense([features, classes], "tanh"), start)
    if not norm:
        return layers
    flatten, dense = layers.children()
    return nn.Sequential(flatten, nn.LayerNorm(features, elementwise_affine=False), dense)


@register("lu-mlp")
def lu_mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Lu et al.'s network: features - 128 tanh - classes, initialised as in Keras."""
    return started(_dense([flat(input_shape, classes), 128, classes], "tanh"), "glorot")


def _dense(widths: list[int], activation: Activation) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths[:-1]):
        layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


@register("small-cnn")
def small_cnn(
    input_shape: tuple[int, ...],
    classes: int,
    channels: Count = 16,
    hidden: Count = 32,
    activation: Activation = "tanh",
    norm: bool = True,
) -> nn.Module:
    """Two convolutions with group normalisation and tanh, a small dense layer; 26,106 parameters on MNIST.

    Few parameters (noise grows with the root of their number), bounded activations (Papernot et al. 2021) and
    normalisation within a record only: private training needs each record's gradient to be its own. Images of 24 pixels
    and more are read by wide kernels with a stride, as in the tutorials' private network for MNIST.
    """
    depth, height, width = image("small-cnn", input_shape, classes)
    large = min(height, width) >= 24
    layers: list[nn.Module] = []
    for fan_in, fan_out, kernel, padding in ((depth, channels, 8, 3), (channels, 2 * channels, 4, 0)):
        if large:
            layers.append(nn.Conv2d(fan_in, fan_out, kernel, stride=2, padding=padding))
        else:
            layers.append(nn.Conv2d(fan_in, fan_out, 3, padding=1))
        if norm:
            layers.append(nn.GroupNorm(_groups(fan_out), fan_out))
        layers.append(ACTIVATIONS[activation]())
        if large:
            layers.append(nn.MaxPool2d(2, stride=1))
            height, width = ((side + 2 * padding - kernel) // 2 for side in (height, width))
        elif min(height, width) >= 4:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(2 * channels * height * width, hidden),
        ACTIVATIONS[activation](),
        nn.Linear(hidden, classes),
    )


def _groups(channels: int) -> int:
    return next(groups for groups in (4, 2, 1) if channels % groups == 0)


class Rows(nn.Module):
    """Images (batch, channels, height, width) as sequences of their rows: (batch, height, channels * width)."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.shape = (channels, height, width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The rows in order."""
        return images.transpose(1, 2).flatten(2)


class Lstm(nn.Module):
    """An LSTM layer that maps (batch, steps, features) to its last output, (batch, units).

    It is written with two dense layers rather than with `nn.LSTM`, which `torch.func.vmap` cannot look into, so that many
    networks could not be trained as one (`StackedNetwork`). One bias, and 1 added to the forget gate at the start, as in
    TensorFlow's basic cell, which the papers used.
    """

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(features, 4 * units)
        self.recurrent = nn.Linear(units, 4 * units, bias=False)
        for layer in (self.inputs, self.recurrent):
            nn.init.xavier_uniform_(layer.weight)
        with torch.no_grad():
            self.inputs.bias.zero_()
            self.inputs.bias[units : 2 * units] = 1.0

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """The output after the last step."""
        drive = self.inputs(sequence)
        output = torch.zeros_like(drive[:, 0, : drive.shape[-1] // 4])
        cell = output
        for step in range(sequence.shape[1]):
            gates = drive[:, step] + self.recurrent(output)
            write, keep, candidate, read = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(candidate)
            output = torch.sigmoid(read) * torch.tanh(cell)
        return output


@register("lstm")
def lstm(input_shape: tuple[int, ...], classes: int, units: Count = 64, steps: Count | None = None) -> nn.Module:
    """An LSTM over an image's rows, over a (steps, features) record, or over a flat record cut into `steps`."""
    width = flat(input_shape, classes)
    if steps is not None:
        if width % steps:
            raise SettingError(f"lstm cannot cut records of {width} features into {steps} equal steps.")
        reader: nn.Module = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (steps, width // steps)))
    elif len(input_shape) == 3:
        channels, height, columns = input_shape
        steps, reader = height, Rows(channels, height, columns)
    elif len(input_shape) == 2:
        steps, reader = input_shape[0], nn.Identity()
    else:
        raise SettingError(f"lstm needs the option steps for records of shape {tuple(input_shape)}.")
    return nn.Sequential(reader, Lstm(width // steps, units), nn.Linear(units, classes))


_FLAT = ({"map": "unit-norm"},)


class Mapped(nn.Sequential):
    """A feature map, which has no parameters, and the network that was trained on its features.

    Formal guarantee
    ----------------
    None is needed for the map: it acts on each record alone (see `FeatureMap`), so that training this network on
    records is training the one behind it on features.
    """

    def __init__(self, feature_map: FeatureMap, behind: nn.Module) -> None:
        super().__init__(_MapLayer(feature_map), behind)


class _MapLayer(nn.Module):
    def __init__(self, feature_map: FeatureMap) -> None:
        super().__init__()
        self._map = feature_map

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self._map(records)


@register("mapped")
def mapped(
    input_shape: tuple[int, ...],
    classes: int,
    maps: Sequence[Mapping[str, Any]] = _FLAT,
    network: str = "linear",
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The maps (as `data.features.describe` names them), then the named network with its options."""
    feature_map = restore(tuple(maps))
    return Mapped(feature_map, behind(input_shape, classes, feature_map, network, options).build(None))


def behind(
    input_shape: tuple[int, ...],
    classes: int,
    feature_map: FeatureMap,
    network: str = "linear",
    options: Mapping[str, Any] | None = None,
) -> Network:
    """The network that takes the mapped features."""
    return Network(network, feature_map.shape(tuple(input_shape)), classes, dict(options or {}))
