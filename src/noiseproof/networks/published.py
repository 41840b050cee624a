"""The networks of Lin et al. (2020), section 4.3: `lin-cnn` and `lin-lstm`, for 28x28 grey images."""

from __future__ import annotations

from torch import nn

from noiseproof.networks.network import glorot, image, positive, probability, register
from noiseproof.networks.small import Lstm, Rows


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


# The networks of Mao et al. (2020), which are Keras's examples: `mnist-net` and `cifar-net`.


@register("mnist-net")
def mnist_net(
    input_shape: tuple[int, ...], classes: int, dropout: float = 0.25, dense_dropout: float = 0.5
) -> nn.Module:
    """Mao et al.'s MNIST-Net: conv 3x3x32, conv 3x3x64, pool, 128 dense; 1,199,882 parameters on MNIST."""
    channels, height, width = image("mnist-net", input_shape, classes, smallest=6)
    return glorot(
        nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(probability("mnist-net", "dropout", dropout)),
            nn.Flatten(),
            nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            nn.ReLU(),
            nn.Dropout(probability("mnist-net", "dense_dropout", dense_dropout)),
            nn.Linear(128, classes),
        )
    )


@register("cifar-net")
def cifar_net(
    input_shape: tuple[int, ...], classes: int, dropout: float = 0.25, dense_dropout: float = 0.5
) -> nn.Module:
    """Mao et al.'s CIFAR-Net: 3x3 convs 32-32-pool-64-64-pool, 512 dense; 1,250,858 parameters on CIFAR-10."""
    channels, height, width = image("cifar-net", input_shape, classes, smallest=10)
    rate = probability("cifar-net", "dropout", dropout)

    def side(pixels: int) -> int:
        # The first convolution of a block keeps the size, the second takes two off, the pool halves.
        return ((pixels - 2) // 2 - 2) // 2

    def block(fan_in: int, fan_out: int) -> list[nn.Module]:
        return [
            nn.Conv2d(fan_in, fan_out, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(fan_out, fan_out, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(rate),
        ]

    return glorot(
        nn.Sequential(
            *block(channels, 32),
            *block(32, 64),
            nn.Flatten(),
            nn.Linear(64 * side(height) * side(width), 512),
            nn.ReLU(),
            nn.Dropout(probability("cifar-net", "dense_dropout", dense_dropout)),
            nn.Linear(512, classes),
        )
    )


# The networks of Phan et al. (2017): `phan-mnist` and `phan-cifar`.
#
# Plain here: the normalisation that bounds the hidden units belongs to the mechanism, which needs it for its
# sensitivities. The last hidden layer is narrow (25 and 30 units) because the noise on the loss grows with its width.


@register("phan-mnist")
def phan_mnist(input_shape: tuple[int, ...], classes: int, hidden: int = 25) -> nn.Module:
    """Phan et al.'s network for MNIST: conv 5x5x32, pool, conv 5x5x64, pool, 25 dense units."""
    channels, height, width = image("phan-mnist", input_shape, classes, smallest=4)
    hidden = positive("phan-mnist", "hidden", hidden)
    return glorot(
        nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
    )


@register("phan-cifar")
def phan_cifar(input_shape: tuple[int, ...], classes: int, hidden: int = 30) -> nn.Module:
    """Phan et al.'s network for CIFAR-10: conv 3x3x128, 5x5x128, 5x5x256, 30 dense units.

    The paper names neither strides nor pools; as in its code the first convolution has stride 2 and the last is
    followed by a 2x2 average.
    """
    channels, height, width = image("phan-cifar", input_shape, classes, smallest=4)
    hidden = positive("phan-cifar", "hidden", hidden)

    def side(pixels: int) -> int:
        return (pixels + 1) // 2 // 2

    return glorot(
        nn.Sequential(
            nn.Conv2d(channels, 128, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(128, 128, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(128, 256, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(256 * side(height) * side(width), hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
    )
