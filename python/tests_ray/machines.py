"""Ray nodes on this machine, each a process of its own with a supervisor of its own on the CPU device."""

from __future__ import annotations

from typing import Any

import ray
from ray.cluster_utils import Cluster

from fixture import Supervisor


class Machines:
    """A Ray cluster whose nodes play machines."""

    def __init__(self) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
        ray.init(address=self._cluster.address, log_to_driver=False, configure_logging=False)
        self._supervisors: dict[Any, Supervisor] = {}

    def add(self, *, labels: dict[str, str] | None = None, device: str = "cpu:workers=1,memory=16MiB") -> Any:
        """Adds a machine: a supervisor, and a node of Ray."""
        supervisor = Supervisor(device=device)
        node = self._cluster.add_node(
            num_cpus=1,
            resources={"pappus": 1},
            labels=labels or {},
            env_vars={"PAPPUS_SOCKET": supervisor.path},
            object_store_memory=100 << 20,
        )
        self._supervisors[node] = supervisor
        return node

    def supervisor(self, node: Any) -> Supervisor:
        return self._supervisors[node]

    def kill(self, node: Any) -> None:
        """Takes a machine's power."""
        self._supervisors.pop(node).stop()
        self._cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()
        for supervisor in self._supervisors.values():
            supervisor.stop()
