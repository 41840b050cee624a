"""Images as the paper takes them: 28x28, grey."""

from __future__ import annotations

from dataclasses import replace

import torch

from noiseproof.data.dataset import Dataset
from noiseproof.errors import DataError

SIDE = 28
_LUMINANCE = (0.299, 0.587, 0.114)


def grey28(dataset: Dataset) -> Dataset:
    """The images cropped to their middle 28x28 and turned grey by luminance (ITU-R BT.601).

    The paper says "image cropping and grayscale processing" of CIFAR-10 and SVHN, and no more; MNIST is as it is.
    """
    shape = dataset.public.shape
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < SIDE:
        raise DataError(f"{dataset.name}: grey or colour images of at least {SIDE}x{SIDE} are needed, not {shape}.")
    if shape == (1, SIDE, SIDE):
        return dataset
    top, left = ((length - SIDE) // 2 for length in shape[1:])
    images = dataset.features[:, :, top : top + SIDE, left : left + SIDE]
    if shape[0] == 3:
        images = torch.einsum("nchw,c->nhw", images, images.new_tensor(_LUMINANCE))[:, None]
    note = f"{dataset.name}: the middle {SIDE}x{SIDE} of each image, grey by luminance"
    public = replace(dataset.public, shape=(1, SIDE, SIDE), notes=(*dataset.public.notes, note))
    # Luminance weights sum to 1 only up to rounding; features must stay in [0, 1].
    return replace(dataset, features=images.clamp(0, 1).contiguous(), public=public)
