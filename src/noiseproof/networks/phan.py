"""The networks of Phan et al. (2017): `phan-mnist` and `phan-cifar`.

Plain here: the normalisation that bounds the hidden units belongs to the mechanism, which needs it for its
sensitivities. The last hidden layer is narrow (25 and 30 units) because the noise on the loss grows with its width.
"""

from __future__ import annotations

from torch import nn

from noiseproof.networks.network import register
from noiseproof.networks.parts import glorot, image, positive


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
