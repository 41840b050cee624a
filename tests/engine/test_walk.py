"""A plan serves the graphs that are the same, and no other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof.engine import PerRecordGradients, walk
from noiseproof.errors import UnsupportedError

SIDE = 3  # records, positions and widths alike, so that shapes tell nothing


class Changing(nn.Module):
    """Computes with the same parameters by whatever `way` says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(SIDE, SIDE)), nn.Parameter(torch.randn(SIDE, SIDE))
        self.way = "first"
        self.rows = torch.arange(SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "second":
            return (x @ self.second @ self.first).sin().sum(2)
        if self.way == "transposed":
            return (x.transpose(1, 2) @ self.first @ self.second).sin().sum(2)
        if self.way == "other sum":
            return (x @ self.first @ self.second).sin().sum(1)
        if self.way == "picked":
            return (x.flatten(1)[self.rows] @ self.first.repeat(SIDE, 1) @ self.second)[torch.argsort(self.rows)].sin()
        if self.way == "frozen":
            return (x @ self.first.detach() @ self.second).sin().sum(2)
        if self.way == "mixed":
            return (x @ self.first @ self.second).cumsum(0).sum(2)
        if self.way == "cumulated":
            return (x @ self.first @ self.second).cumsum(1).sum(2)
        return (x @ self.first @ self.second).sin().sum(2)


WAYS = ["first", "second", "transposed", "other sum", "frozen", "picked", "cumulated"]


def gradients_are_single_records(engine: PerRecordGradients, network: nn.Module, x: torch.Tensor) -> None:
    found = engine.backward(network(x).sum(1)).materialise()
    for record in range(len(x)):
        alone = torch.autograd.grad(network(x)[record].sum(), engine.parameters, allow_unused=True)
        for own, expected in zip(found, alone, strict=True):
            wanted = torch.zeros_like(own[record]) if expected is None else expected
            torch.testing.assert_close(own[record], wanted)


@pytest.mark.parametrize("before", WAYS)
def test_a_changed_graph_is_walked_anew(before):
    torch.manual_seed(0)
    network = Changing().double()
    x = torch.randn(SIDE, SIDE, SIDE, dtype=torch.float64)
    with PerRecordGradients(network, check=False) as engine:
        for network.way in (before, *WAYS, before):
            network.rows = torch.randperm(SIDE)
            gradients_are_single_records(engine, network, x)
        network.way = "mixed"
        with pytest.raises(UnsupportedError, match="mixes records"):
            engine.backward(network(x).sum(1))


def test_rows_that_are_picked_by_values_are_looked_up_every_time():
    network = Changing().double()
    network.way = "picked"
    with PerRecordGradients(network, check=False) as engine:
        for network.rows in (torch.arange(SIDE), torch.tensor([2, 0, 1]), torch.tensor([0, 2, 1])):
            gradients_are_single_records(engine, network, torch.randn(SIDE, SIDE, SIDE, dtype=torch.float64))
        assert not engine._routes._known


def count_walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    original = walk._Walk.__init__

    def counted(self: walk._Walk, graph: walk.Graph) -> None:
        sizes.append(graph.records)
        original(self, graph)

    monkeypatch.setattr(walk._Walk, "__init__", counted)
    return sizes


def layered() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 5), nn.LayerNorm(5))


def test_equal_graphs_are_walked_once(monkeypatch):
    walks, network = count_walks(monkeypatch), layered()
    with PerRecordGradients(network) as engine:
        for records in (4, 5, 4, 5, 4):
            engine.backward(network(torch.randn(records, 2, 6)).sum(1))
    assert walks == [4, 5]


def test_only_so_many_plans_are_kept(monkeypatch):
    monkeypatch.setattr(walk, "KEPT_NODES", 50)
    walks, network = count_walks(monkeypatch), layered()
    with PerRecordGradients(network) as engine:
        for records in (4, 5, 6, 7, 4):
            engine.backward(network(torch.randn(records, 2, 6)).sum(1))
            assert engine._routes._nodes <= 50
    assert len(walks) == 5


def test_a_recurrent_layer_is_part_of_the_key(monkeypatch):
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(SIDE, SIDE, batch_first=True)
            self.batch_first = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.layer.batch_first = self.batch_first
            outputs = self.layer(x if self.batch_first else x.transpose(0, 1))[0]
            return outputs if self.batch_first else outputs.transpose(0, 1)

    network = Turned().double()
    x = torch.randn(SIDE, SIDE, SIDE, dtype=torch.float64)
    with PerRecordGradients(network, check=False) as engine:
        for network.batch_first in (True, False, True):
            found = engine.backward(network(x).flatten(1).sin().sum(1)).materialise()
            for record in range(SIDE):
                alone = torch.autograd.grad(
                    network(x[record : record + 1]).sin().sum(), engine.parameters, allow_unused=True
                )
                for own, expected in zip(found, alone, strict=True):
                    torch.testing.assert_close(own[record], expected)
