"""Recurrent networks: `lstm`, and the LSTM layer that it and `lin-lstm` are made of."""

from __future__ import annotations

import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.networks.network import register
from noiseproof.networks.parts import flat, positive


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
def lstm(input_shape: tuple[int, ...], classes: int, units: int = 64, steps: int | None = None) -> nn.Module:
    """An LSTM over an image's rows, over a (steps, features) record, or over a flat record cut into `steps`."""
    width = flat(input_shape, classes)
    units = positive("lstm", "units", units)
    if steps is not None:
        steps = positive("lstm", "steps", steps)
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
