"""The networks of Lin et al. (2020), section 4.3: `lin-cnn` and `lin-lstm`, for 28x28 grey images."""

from __future__ import annotations

from torch import nn

from noiseproof.networks.network import register
from noiseproof.networks.parts import glorot, image, probability
from noiseproof.networks.recurrent import Lstm, Rows


@register("lin-cnn")
def lin_cnn(input_shape: tuple[int, ...], classes: int, dropout: float = 0.5) -> nn.Module:
    """Lin et al.'s CNN: conv 5x5x32, pool, conv 5x5x64, pool, 1024 dense, dropout; 3,274,634 parameters on MNIST."""
    channels, height, width = image("lin-cnn", input_shape, classes, smallest=4)
    return glorot(
        nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 1024),
            nn.ReLU(),
            nn.Dropout(probability("lin-cnn", "dropout", dropout)),
            nn.Linear(1024, classes),
        )
    )


@register("lin-lstm")
def lin_lstm(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Lin et al.'s LSTM: one image row a step (28 steps of 28 on MNIST), 128 units, the last output to the classes."""
    channels, height, width = image("lin-lstm", input_shape, classes)
    return nn.Sequential(Rows(channels, height, width), Lstm(channels * width, 128), nn.Linear(128, classes))
