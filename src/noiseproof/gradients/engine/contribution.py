"""Contribution: what one use of one parameter adds to every record's gradient, in whatever form is cheapest."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class Contribution(ABC):
    """The gradients g_1 .. g_B of B records with respect to one parameter tensor, not necessarily written out."""

    @abstractmethod
    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""

    @abstractmethod
    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,)."""

    @abstractmethod
    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""

    @abstractmethod
    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""

    @abstractmethod
    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""


class Explicit(Contribution):
    """Gradients that are written out: small ones (biases), and those for which no rule is known."""

    def __init__(self, gradients: torch.Tensor) -> None:
        self._gradients = gradients

    @property
    def _rows(self) -> torch.Tensor:
        return self._gradients.reshape(self._gradients.shape[0], -1)

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        return self._gradients

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,)."""
        return torch.linalg.vector_norm(self._rows, dim=1).square()

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        return (weights @ self._rows).reshape(self._gradients.shape[1:])

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return self._rows @ vector.reshape(-1)

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""
        return self._rows @ self._rows.T
