"""Functions on many machines, by Ray: every node runs a supervisor, and an actor of Ray's calls it there.

A function is registered once, is installed on the nodes where it is called, and runs where its code and weights are, unless too
much waits there. Calls of a node that is lost are made again on another one. ``docs/ray.md`` says how a cluster is set up.

In reading order: ``_cluster`` (the caller's side), ``_routing`` (which node runs a call), ``_node`` (the actor).
"""

try:
    import ray  # noqa: F401
except ModuleNotFoundError as why:
    if why.name != "ray":
        raise
    raise ModuleNotFoundError(
        "pappus.ray needs Ray, which is not installed here: pip install 'ray>=2.40'", name="ray"
    ) from None

from pappus.ray._cluster import Cluster, ClusterFunction, connect

__all__ = ["Cluster", "ClusterFunction", "connect"]
