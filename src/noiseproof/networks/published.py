"""The papers' networks: Lin et al. (2020, section 4.3), Mao et al. (2020: Keras's examples) and Phan et al. (2017).

Phan et al.'s are plain here: the normalisation that bounds the hidden units belongs to the mechanism, which needs it for its
sensitivities. Their last hidden layer is narrow (25 and 30 units) because the noise on the loss grows with its width.
"""

from __future__ import annotations

from torch import nn

from noiseproof.networks.network import Start, image, register, started
from noiseproof.networks.small import Lstm, Rows
from noiseproof.settings import BelowOne, Count


def _convolution(fan_in: int, fan_out: int, kernel: int, padding: int = 0, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(fan_in, fan_out, kernel, stride=stride, padding=padding), nn.ReLU()]


def _two_convolutions(channels: int, height: int, width: int, hidden: int) -> list[nn.Module]:
    """Conv 5x5x32, pool, conv 5x5x64, pool, and a dense layer."""
    return [
        *_convolution(channels, 32, 5, 2),
        nn.MaxPool2d(2),
        *_convolution(32, 64, 5, 2),
        nn.MaxPool2d(2),
        *_dense(64 * (height // 4) * (width // 4), hidden),
    ]


def _dense(features: int, units: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, units), nn.ReLU()]


@register("lin-cnn")
def lin_cnn(input_shape: tuple[int, ...], classes: int, dropout: BelowOne = 0.5, start: Start = "glorot") -> nn.Module:
    """Lin et al.'s CNN: conv 5x5x32, pool, conv 5x5x64, pool, 1024 dense, dropout; 3,274,634 parameters on MNIST."""
    layers = _two_convolutions(*image("lin-cnn", input_shape, classes, smallest=4), 1024)
    return started(nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(1024, classes)), start)


@register("lin-lstm")
def lin_lstm(input_shape: tuple[int, ...], classes: int, start: Start = "glorot") -> nn.Module:
    """Lin et al.'s LSTM: one image row a step (28 steps of 28 on MNIST), 128 units, the last output to the classes."""
    channels, height, width = image("lin-lstm", input_shape, classes)
    lstm, output = Lstm(channels * width, 128), nn.Linear(128, classes)
    # The cell keeps its own start: only its weights to the classes are ever said to be drawn.
    return nn.Sequential(Rows(channels, height, width), lstm, started(output, start))


@register("mnist-net")
def mnist_net(
    input_shape: tuple[int, ...], classes: int, dropout: BelowOne = 0.25, dense_dropout: BelowOne = 0.5
) -> nn.Module:
    """Mao et al.'s MNIST-Net: conv 3x3x32, conv 3x3x64, pool, 128 dense; 1,199,882 parameters on MNIST."""
    channels, height, width = image("mnist-net", input_shape, classes, smallest=6)
    return started(
        nn.Sequential(
            *_convolution(channels, 32, 3),
            *_convolution(32, 64, 3),
            nn.MaxPool2d(2),
            nn.Dropout(dropout),
            *_dense(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            nn.Dropout(dense_dropout),
            nn.Linear(128, classes),
        ),
        "glorot",
    )


@register("cifar-net")
def cifar_net(
    input_shape: tuple[int, ...], classes: int, dropout: BelowOne = 0.25, dense_dropout: BelowOne = 0.5
) -> nn.Module:
    """Mao et al.'s CIFAR-Net: 3x3 convs 32-32-pool-64-64-pool, 512 dense; 1,250,858 parameters on CIFAR-10."""
    channels, height, width = image("cifar-net", input_shape, classes, smallest=10)
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((channels, 32), (32, 64)):
        layers += [*_convolution(fan_in, fan_out, 3, 1), *_convolution(fan_out, fan_out, 3)]
        layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
        # The first convolution keeps the size, the second takes two off, the pool halves.
        height, width = (height - 2) // 2, (width - 2) // 2
    layers += [*_dense(64 * height * width, 512), nn.Dropout(dense_dropout), nn.Linear(512, classes)]
    return started(nn.Sequential(*layers), "glorot")


@register("phan-mnist")
def phan_mnist(input_shape: tuple[int, ...], classes: int, hidden: Count = 25, start: Start = "glorot") -> nn.Module:
    """Phan et al.'s network for MNIST: conv 5x5x32, pool, conv 5x5x64, pool, 25 dense units."""
    layers = _two_convolutions(*image("phan-mnist", input_shape, classes, smallest=4), hidden)
    return started(nn.Sequential(*layers, nn.Linear(hidden, classes)), start)


@register("phan-cifar")
def phan_cifar(input_shape: tuple[int, ...], classes: int, hidden: Count = 30) -> nn.Module:
    """Phan et al.'s network for CIFAR-10: conv 3x3x128, 5x5x128, 5x5x256, 30 dense units.

    The paper names neither strides nor pools; as in its code the first convolution has stride 2 and the last is
    followed by a 2x2 average.
    """
    channels, height, width = image("phan-cifar", input_shape, classes, smallest=4)
    return started(
        nn.Sequential(
            *_convolution(channels, 128, 3, 1, stride=2),
            *_convolution(128, 128, 5, 2),
            *_convolution(128, 256, 5, 2),
            nn.AvgPool2d(2),
            *_dense(256 * ((height + 1) // 4) * ((width + 1) // 4), hidden),
            nn.Linear(hidden, classes),
        ),
        "glorot",
    )
