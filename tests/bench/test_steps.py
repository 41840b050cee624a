"""The step benchmark measures what it says: the same network and records for every contender, one row a comparison."""

from __future__ import annotations

import pytest
import torch

from bench import steps
from bench.networks import NETWORKS


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_gives_its_records_one_finite_loss_each(name):
    setting = steps.Setting(name, 2)
    losses = setting.losses(setting.module, *setting.batch())
    assert losses.shape == (2,)
    assert losses.isfinite().all()


def test_every_contender_starts_from_the_same_weights():
    setting = steps.Setting("mlp", 4)
    first, other = setting.copy()[0], setting.copy()[0]
    assert all(map(torch.equal, first.parameters(), other.parameters()))
    assert first is not other


def test_a_row_has_both_times_and_their_ratio(capsys):
    table = steps.rows(1, only=["mlp"], with_memory=False, with_opacus=False)
    assert [row["what"] for row in table] == [
        f"mlp at batch 128, {ours} / {peer}"
        for ours in ("dp-sgd", "dp-sgd, secure")
        for peer in ("non-private torch", "plain vmap")
    ]
    assert all(row["ratio"] == row["ours"] / row["theirs"] for row in table)
    printed = capsys.readouterr()
    assert printed.out == ""  # progress goes to stderr
    assert "steps of mlp" in printed.err
