"""The networks of Mao et al. (2020), which are Keras's examples: `mnist-net` and `cifar-net`."""

from __future__ import annotations

from torch import nn

from noiseproof.networks.network import register
from noiseproof.networks.parts import glorot, image, probability


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
