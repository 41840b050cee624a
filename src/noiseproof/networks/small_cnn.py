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
    """Two convolutions with group normalisation and tanh, pooled to 4x4 at least, and one small dense layer.

    Few parameters (noise grows with the root of their number), bounded activations (Papernot et al. 2021) and
    normalisation within a record only: private training needs each record's gradient to be its own.
    """
    depth, height, width = image("small-cnn", input_shape, classes)
    channels = positive("small-cnn", "channels", channels)
    hidden = positive("small-cnn", "hidden", hidden)
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((depth, channels), (channels, 2 * channels)):
        # Small images (8x8 digits) keep their size where larger ones are halved by a stride.
        stride = 2 if min(height, width) >= 16 else 1
        layers.append(nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1))
        height, width = -(-height // stride), -(-width // stride)
        if norm:
            layers.append(nn.GroupNorm(_groups(fan_out), fan_out))
        layers.append(activation_of(activation))
        if min(height, width) >= 8:
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
