"""Room: how much memory a batch's written-out gradients may take."""

from __future__ import annotations

PIECE_BYTES = 32 * 2**20
"""What is written out at a time where it is not kept. (Beyond 32 MiB the C library would fetch fresh pages each time.)"""
KEPT_BYTES = 128 * 2**20
"""What one batch may keep of written-out gradients, over all its layers."""


class Room:
    """Bytes that are left for gradients to be kept, shared by the layers of one batch."""

    def __init__(self, size: int | None = None) -> None:
        self._left = KEPT_BYTES if size is None else size

    def has(self, size: int) -> bool:
        """Whether so many bytes would fit."""
        return size <= self._left

    def take(self, size: int) -> None:
        """Use so many bytes up."""
        self._left -= size


def in_pieces(bytes_each: int) -> int:
    """How many things of that size make up a piece, at least one."""
    return max(1, PIECE_BYTES // max(1, bytes_each))
