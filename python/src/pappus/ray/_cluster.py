"""The caller's side: nodes and their actors, functions that are installed where they are called, calls that outlive a node."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pappus import _archive, _arrays, _files
from pappus.errors import Error, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from pappus.ray._node import Health, NodeActor, Parts, is_gone
from pappus.ray._routing import Router

T = TypeVar("T")

RESOURCE = "pappus"
# What an actor takes of it: it marks nodes, and is no measure of what they can do.
_SHARE = 0.0001
# Arrays from here on go into the object store once, however often a call is made again.
_STORE_FROM_BYTES = 64 << 10
# A call that a supervisor has no room for is tried elsewhere, and so often at all.
_ATTEMPTS_WHILE_FULL = 20
_FULL_PAUSE = 0.1
# A call under which so many nodes were lost may be the reason.
_NODES_LOST_UNDER_A_CALL = 10
# Beyond them, calls wait in Ray's queue of the actor.
_CALLS_OF_AN_ACTOR = 4096


@dataclass(frozen=True)
class _Registered:
    """A function as it was registered here."""

    name: str
    version: str
    parts: Parts
    contents: tuple[Any, ...]


@dataclass
class _Place:
    """A node's actor, and what was installed through it."""

    actor: Any
    installing: dict[str, tuple[str, asyncio.Task[Error | None]]] = field(default_factory=dict)


def connect(
    *,
    labels: Mapping[str, str] | None = None,
    token: str | bytes | None = None,
    refresh: float = 2.0,
    patience: float = 60.0,
) -> Cluster:
    """Finds the nodes of the Ray cluster that this process is connected to.

    Nodes are those with the custom resource ``pappus``, and with these ``labels``, if any are given. On each, an actor
    connects to the supervisor whose socket ``PAPPUS_SOCKET`` names in the environment of ``ray start``. A gateway says by
    ``token`` which tenant it is. Nodes that join are looked for every ``refresh`` seconds; where there is none, a call
    waits ``patience`` seconds for one.
    """
    cluster = Cluster(dict(labels or {}), token, refresh, patience)
    try:
        cluster._wait(cluster._first_look())
    except BaseException:
        cluster.close()
        raise
    return cluster


class ClusterFunction:
    """A function that any node may run."""

    def __init__(self, cluster: Cluster, name: str, options: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self.name = name
        self._options = dict(options)

    def __repr__(self) -> str:
        return f"<ClusterFunction {self.name}>"

    def options(self, **options: Any) -> ClusterFunction:
        """The same function, called otherwise: ``deadline`` and ``dtypes`` as of :meth:`pappus.Function.options`."""
        unknown = options.keys() - {"deadline", "dtypes"}
        if unknown:
            raise InvalidArgument(f"no option {sorted(unknown)[0]!r}: on a cluster there are deadline and dtypes")
        return ClusterFunction(self._cluster, self.name, {**self._options, **options})

    def __call__(self, /, *arrays: object, **named: object) -> Any:
        """Calls it on some node and waits for its end."""
        return self.submit(*arrays, **named).result()

    def submit(self, /, *arrays: object, **named: object) -> Future[Any]:
        """Starts a call; inputs were copied when this returns. To cancel the future cancels the call.

        Its result is an array or a dictionary of arrays, once: if a node is lost, the call is made again on another one.
        """
        values = [_portable(value) for value in (*arrays, *named.values())]
        return self._cluster._start(self._cluster._call(self.name, self._options, tuple(named), values))

    async def call_async(self, /, *arrays: object, **named: object) -> Any:
        """As :meth:`__call__`, in an event loop."""
        return await asyncio.wrap_future(self.submit(*arrays, **named))


class Cluster:
    """Functions on many nodes. Any number of threads may use it."""

    def __init__(self, labels: dict[str, str], token: str | bytes | None, refresh: float, patience: float) -> None:
        self._labels = labels
        self._token = token
        self._patience = patience
        self._functions: dict[str, _Registered] = {}
        # What follows belongs to the loop's thread.
        self._router = Router()
        self._places: dict[str, _Place] = {}
        self._changed = asyncio.Condition()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pappus.ray", daemon=True)
        self._thread.start()
        self._looking = self._start(self._keep_looking(refresh))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends its actors; calls that have no answer are cancelled."""
        if not self._loop.is_running():
            return
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add_function(
        self, name: str, path: str | os.PathLike[str], *, weights: Mapping[str, object] | None = None
    ) -> ClusterFunction:
        """Registers a function that lies on disk here (as :meth:`pappus.Client.add_function`) for all nodes.

        Its modules and weights go into Ray's object store, and from there to a node when it is first called there.
        """
        with _archive.unpacked(Path(path)) as (found, confined):
            package = _files.read(found, weights or {}, confined=confined)
            without = [module.name for module in package.modules if not module.files]
            if without:
                raise InvalidArgument(f"module {without[0]!r} is missing: there is no file of it")
            sources = [file.source for module in package.modules for file in module.files]
            arrays = [_loaded(source) for source in (*sources, *package.weights.values())]
        shape = tuple((m.name, m.stem, tuple((f.format, f.arch) for f in m.files)) for m in package.modules)
        parts = Parts(package.config, shape, tuple(package.weights))
        digest = hashlib.sha256(repr(parts).encode())
        for array in arrays:
            digest.update(hashlib.sha256(array.data).digest())
        contents = tuple(ray.put(array) for array in arrays)
        self._functions[name] = _Registered(name, digest.hexdigest(), parts, contents)
        return self.function(name)

    def function(self, name: str) -> ClusterFunction:
        """A function that was added here, or that all nodes' supervisors have."""
        return ClusterFunction(self, name, {})

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes that take calls, by Ray's id: how many calls they run at once, and how many of this client's they have."""

        async def look() -> dict[str, dict[str, Any]]:
            nodes = [node for node in self._router.nodes.values() if node.up]
            return {
                node.id: {"capacity": node.capacity, "in_flight": node.in_flight, "functions": sorted(node.warm)}
                for node in nodes
            }

        return self._wait(look())

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._start(work).result()

    async def _first_look(self) -> None:
        """Waits until every node that is there has said how it is."""
        if asking := await self._look():
            await asyncio.wait(asking, timeout=self._patience)

    async def _call(self, name: str, options: Mapping[str, Any], keys: tuple[str, ...], values: list[Any]) -> Any:
        """Makes a call until it has an outcome of its own."""
        full = lost = 0
        avoid: set[str] = set()
        while lost < _NODES_LOST_UNDER_A_CALL:
            while (node := self._router.choose(name, avoid)) is None:
                avoid.clear()
                await self._some_node()
            place = self._places[node]
            ref = None
            try:
                outcome = await self._install(place, name)
                if outcome is None:
                    ref = place.actor.call.remote(name, options, keys, *values)
                    outcome = await ref
            except RayTaskError:
                raise
            except RayError:
                # The node is gone, or its actor, or an answer that was on its way. Functions are pure.
                self._lose(node, place, with_actor=True)
                lost += 1
                continue
            except asyncio.CancelledError:
                if ref is not None:
                    ray.cancel(ref, force=False)
                raise
            finally:
                self._router.ended(node)
            if not isinstance(outcome, Error):
                return outcome
            if is_gone(outcome):
                self._lose(node, place, with_actor=False)
                lost += 1
            elif isinstance(outcome, NotFound) and name in place.installing:
                # The supervisor forgot it, or somebody removed it there.
                del place.installing[name]
                lost += 1
            elif isinstance(outcome, ResourceExhausted) and full < _ATTEMPTS_WHILE_FULL:
                full += 1
                avoid.add(node)
                if all(id in avoid for id, other in self._router.nodes.items() if other.up):
                    avoid.clear()
                    await asyncio.sleep(outcome.retry_after or _FULL_PAUSE)
            else:
                raise outcome
        raise Unavailable(f"{lost} nodes were lost under this call, one after the other", retryable=True)

    async def _some_node(self) -> None:
        """Waits for a node that takes calls."""

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: any(node.up for node in self._router.nodes.values()))

        try:
            await self._look()
            await asyncio.wait_for(wait(), self._patience)
        except asyncio.TimeoutError:
            raise Unavailable(
                f"no node takes calls: start Ray with --resources='{{\"{RESOURCE}\": 1}}' on nodes that run a supervisor, "
                "with PAPPUS_SOCKET in its environment",
                retryable=True,
            ) from None

    async def _install(self, place: _Place, name: str) -> Error | None:
        """Has a function registered at a node, once for all calls that wait for it."""
        function = self._functions.get(name)
        if function is None:
            return None
        version, task = place.installing.get(name, ("", None))
        if task is None or version != function.version:
            task = asyncio.ensure_future(_installed(place.actor, function))
            place.installing[name] = function.version, task
        # One of them that is cancelled does not cancel it for the others.
        outcome = await asyncio.shield(task)
        if outcome is not None:
            place.installing.pop(name, None)
        return outcome

    def _lose(self, node: str, place: _Place, *, with_actor: bool) -> None:
        """No further calls go to a node until it was asked how it is. Others may have found out before."""
        if self._places.get(node) is place:
            self._router.away(node)
            place.installing.clear()
            if with_actor:
                del self._places[node]

    async def _keep_looking(self, refresh: float) -> None:
        while True:
            with contextlib.suppress(RayError):
                await self._look()
            await asyncio.sleep(refresh)

    async def _look(self) -> list[asyncio.Task[None]]:
        """Looks which nodes there are, and begins to ask each how it is."""
        # Asking a Ray that was shut down would start another one.
        nodes = await self._loop.run_in_executor(None, ray.nodes) if ray.is_initialized() else []
        alive = {node["NodeID"] for node in nodes if self._wanted(node)}
        for gone in self._router.nodes.keys() - alive:
            self._router.left(gone)
            self._places.pop(gone, None)
        for node in alive:
            if node not in self._asking:
                self._asking[node] = asyncio.ensure_future(self._ask(node))
        return list(self._asking.values())

    def _wanted(self, node: Mapping[str, Any]) -> bool:
        labels = node.get("Labels", {})
        here = node["Alive"] and node["Resources"].get(RESOURCE, 0) > 0
        return here and all(labels.get(name) == value for name, value in self._labels.items())

    async def _ask(self, node: str) -> None:
        """Asks a node's actor how its supervisor is; makes one where there is none."""
        place = self._places.get(node)
        if place is None:
            place = self._places[node] = _Place(self._actor(node))
        try:
            health = await place.actor.health.remote()
        except RayError:
            self._lose(node, place, with_actor=True)
        else:
            if isinstance(health, Health) and self._places.get(node) is place:
                self._router.joined(node, health.capacity)
                self._router.counted(node, health.calls - self._router.nodes[node].in_flight)
                async with self._changed:
                    self._changed.notify_all()
            else:
                self._lose(node, place, with_actor=False)
        finally:
            del self._asking[node]

    def _actor(self, node: str) -> Any:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        kind: Any = ray.remote(NodeActor)
        options = {"num_cpus": 0, "resources": {RESOURCE: _SHARE}, "max_concurrency": _CALLS_OF_AN_ACTOR}
        return kind.options(scheduling_strategy=there, **options).remote(self._token)

    async def _end(self) -> None:
        this = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not this:
                task.cancel()
        for place in self._places.values() if ray.is_initialized() else ():
            ray.kill(place.actor)
        self._places.clear()


async def _installed(actor: Any, function: _Registered) -> Error | None:
    outcome: Error | None = await actor.install.remote(function.name, function.parts, *function.contents)
    return outcome


def _loaded(source: _files.Source) -> np.ndarray[Any, Any]:
    """All bytes of a source."""
    with _files.pieces(source) as (_, pieces):
        return np.frombuffer(b"".join(bytes(piece) for piece in pieces), np.uint8)


def _portable(value: object) -> object:
    """An input as it travels: a copy, or a reference into the object store."""
    if isinstance(value, ray.ObjectRef | bytes | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return list(value)
    array = _arrays.as_array(value, None)
    return ray.put(array) if array.nbytes >= _STORE_FROM_BYTES else array.copy()
