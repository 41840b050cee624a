"""`small-cnn`: a small convolutional network that learns well under clipping and noise, for images of any size."""

from __future__ import annotations

from torch import nn

from noiseproof.networks.network import register
from noiseproof.networks.parts import activation as activation_of
from noiseproof.networks.parts import image, positive


@register("small-cnn")
def small_cnn(
    input_shape: tuple[int, ...],
    classes: int,
    channels: int = 16,
    hidden: int = 32,
    activation: str = "tanh",
    norm: bool = True,
) -> nn.Module:
    """Two convolutions with group normalisation and tanh, a small dense layer; 26,106 parameters on MNIST.

    Few parameters (noise grows with the root of their number), bounded activations (Papernot et al. 2021) and
    normalisation within a record only: private training needs each record's gradient to be its own. Images of 24 pixels
    and more are read by wide kernels with a stride, as in the tutorials' private network for MNIST.
    """
    depth, height, width = image("small-cnn", input_shape, classes)
    channels = positive("small-cnn", "channels", channels)
    hidden = positive("small-cnn", "hidden", hidden)
    large = min(height, width) >= 24
    layers: list[nn.Module] = []
    for fan_in, fan_out, kernel, padding in ((depth, channels, 8, 3), (channels, 2 * channels, 4, 0)):
        if large:
            layers.append(nn.Conv2d(fan_in, fan_out, kernel, stride=2, padding=padding))
        else:
            layers.append(nn.Conv2d(fan_in, fan_out, 3, padding=1))
        if norm:
            layers.append(nn.GroupNorm(_groups(fan_out), fan_out))
        layers.append(activation_of(activation))
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
        activation_of(activation),
        nn.Linear(hidden, classes),
    )


def _groups(channels: int) -> int:
    return next(groups for groups in (4, 2, 1) if channels % groups == 0)
