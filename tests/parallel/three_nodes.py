"""A Ray cluster of three nodes on this machine, one of which is killed: `python -m tests.parallel.three_nodes FOLDER`.

Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

from noiseproof.attacks import ShadowModels
from noiseproof.data import load
from noiseproof.methods.parameters import train_collection
from noiseproof.networks import Network, Training
from noiseproof.parallel.tasks import Placement, placed
from noiseproof.progress import Progress, Task
from noiseproof.run import Comparison, Plan, compare

NETWORKS = 12
HERE = Placement(jobs=1)


class Killer(Progress):
    """Kills a node when half of the networks are trained."""

    def __init__(self, cluster: Cluster, node: Any) -> None:
        self.done, self.killed_at = 0, -1
        self._cluster, self._node = cluster, node

    def task(self, description: str, total: int) -> Task:
        killer = self

        class Counting(Task):
            def advance(self, steps: int = 1, **status: float | str) -> None:
                killer.done += steps
                print(f"{killer.done} networks", file=sys.stderr, flush=True)
                if killer.done >= NETWORKS // 2 and killer.killed_at < 0:
                    killer.killed_at = killer.done
                    killer._cluster.remove_node(killer._node, allow_graceful=False)

        return Counting()


def rows(comparison: Comparison) -> Any:
    """A comparison's rows without what differs from run to run."""
    return [row.model_dump(exclude={"seconds", "fit_seconds"}) for row in comparison.rows]


def main() -> None:
    folder = Path(sys.argv[1])
    memory = 100 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": memory})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=memory) for _ in range(2)]
    there = Placement(ray=cluster.address)
    digits = load("digits").train.take(torch.arange(400))
    network = Network("small-cnn", digits.public.shape, digits.classes)
    training = Training(epochs=2, batch_size=50)
    found: dict[str, Any] = {"nodes": sum(node["Alive"] for node in (ray.init(cluster.address), ray.nodes())[1])}
    killer = Killer(cluster, nodes[0])
    started = time.perf_counter()
    with placed(there):
        far = train_collection(network, digits, NETWORKS, training, seed=1, progress=killer)
    found |= {"killed at": killer.killed_at, "trained": killer.done, "seconds": time.perf_counter() - started}
    found["left"] = sum(node["Alive"] for node in ray.nodes())
    with placed(there):
        shadows = ShadowModels.drawn(
            Network("mlp", digits.public.shape, digits.classes), digits, count=6, training=Training(epochs=2)
        )
        document = compare(Plan(methods=("dp-sgd", "teachers"), trials=20), folder / "far", ray=cluster.address)
    ray.shutdown()
    cluster.shutdown()
    with placed(HERE):
        near = train_collection(network, digits, NETWORKS, training, seed=1)
        others = ShadowModels.drawn(
            Network("mlp", digits.public.shape, digits.classes), digits, count=6, training=Training(epochs=2)
        )
    found["same weights"] = torch.equal(far.rows, near.rows)
    found["same shadows"] = all(
        torch.equal(value, others.networks.parameters[name]) for name, value in shadows.networks.parameters.items()
    )
    found["same rows"] = rows(document) == rows(
        compare(Plan(methods=("dp-sgd", "teachers"), trials=20), folder / "near")
    )
    found["bundles"] = sorted(
        str(path.relative_to(folder / "far")) for path in (folder / "far" / "bundles").rglob("*.json")
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
