"""The caller's side: nodes and their actors, functions that are installed where they are called, calls that outlive a node."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import ObjectLostError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pappus import _archive, _arrays, _files
from pappus.errors import Error, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from pappus.ray import _catalogue
from pappus.ray._catalogue import Entry
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
# What a node said is gone by for so many times `refresh`.
_ROUNDS_KEPT = 4
# Seconds for all nodes to say what they have, where a call's function is on none that is known.
_LOOK_AGAIN = 5.0
# Beyond them, calls wait in Ray's queue of the actor.
_CALLS_OF_AN_ACTOR = 4096


@dataclass
class _Place:
    """A node's actor, and what was installed through it."""

    actor: Any
    # When it last said how it is, and how often calls found it gone.
    told: float = 0.0
    losses: int = 0
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
        self._refresh = refresh
        # What follows belongs to the loop's thread.
        self._functions: dict[str, Entry] = {}
        # Names of those that were added here.
        self._own: set[str] = set()
        self._catalogue_name = _catalogue.name(token)
        self._catalogue: Any = None
        self._life = ""
        self._reading: asyncio.Task[None] | None = None
        self._seen = 0
        self._router = Router()
        self._places: dict[str, _Place] = {}
        self._changed = asyncio.Condition()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pappus.ray", daemon=True)
        self._thread.start()
        self._looking = self._start(self._keep_looking())

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
        with _archive.opened(Path(path)) as archive:
            package = _files.read(path, weights or {}, archive)
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
        self._wait(self._add(Entry(name, digest.hexdigest(), parts, contents)))
        return self.function(name)

    def function(self, name: str) -> ClusterFunction:
        """A function that a client of this cluster added, or that supervisors of nodes have."""
        return ClusterFunction(self, name, {})

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes that take calls, by Ray's id.

        Of each: how many calls it runs at once and how many of this client's it has; the functions that calls find ready
        there, and those that its supervisor has, as it last said.
        """

        async def look() -> dict[str, dict[str, Any]]:
            nodes = [node for node in self._router.nodes.values() if node.up]
            return {
                node.id: {
                    "capacity": node.capacity,
                    "in_flight": node.in_flight,
                    "functions": sorted(node.ready()),
                    "installed": sorted(node.installed),
                }
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
        looked = False
        while lost < _NODES_LOST_UNDER_A_CALL:
            if name not in self._functions and not self._router.holds(name) and not looked:
                looked = True
                await self._look_again()
            while (node := self._router.choose(name, avoid, installed=name not in self._functions)) is None:
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
                self._router.ended(node, name)
            if not isinstance(outcome, Error):
                return outcome
            if is_gone(outcome):
                self._lose(node, place, with_actor=False)
                lost += 1
            elif isinstance(outcome, NotFound) and name in place.installing:
                # The supervisor forgot it, or somebody removed it there.
                del place.installing[name]
                self._router.lacks(node, name)
                lost += 1
            elif isinstance(outcome, NotFound) and not looked:
                # This node does not have it any more: others may.
                self._router.lacks(node, name)
                looked = True
                await self._look_again()
            elif isinstance(outcome, ResourceExhausted) and full < _ATTEMPTS_WHILE_FULL:
                full += 1
                avoid.add(node)
                if not self._router.candidates(name, avoid, installed=name not in self._functions):
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
        try:
            # One of them that is cancelled does not cancel it for the others.
            outcome = await asyncio.shield(task)
        except ObjectLostError:
            # Its bytes went with who kept them. Nodes that have it go on, and the catalogue may have it again.
            place.installing.pop(name, None)
            if self._functions.get(name) is function:
                del self._functions[name]
                self._own.discard(name)
                self._seen = 0
            return None
        if outcome is not None:
            place.installing.pop(name, None)
        return outcome

    def _lose(self, node: str, place: _Place, *, with_actor: bool) -> None:
        """No further calls go to a node until it was asked how it is. Others may have found out before."""
        if self._places.get(node) is place:
            self._router.away(node)
            place.losses += 1
            place.installing.clear()
            if with_actor:
                del self._places[node]

    async def _add(self, entry: Entry) -> None:
        """Adds a function here, and to what other clients find."""
        self._functions[entry.name] = entry
        self._own.add(entry.name)
        # What cannot be told now is told as soon as there is a catalogue.
        await asyncio.wait([asyncio.ensure_future(self._tell_first(entry))], timeout=self._patience)

    async def _tell_first(self, entry: Entry) -> None:
        try:
            if self._catalogue is None:
                self._catalogue = await self._loop.run_in_executor(None, _catalogue.make, self._catalogue_name)
            await self._tell(entry)
        except RayError:
            self._forget_catalogue()

    async def _tell(self, entry: Entry) -> None:
        """Tells the catalogue of a function, and when it was added."""
        added = await self._catalogue.add.remote(replace(entry, contents=()), *entry.contents)
        if self._functions.get(entry.name) is entry:
            self._functions[entry.name] = replace(entry, added=added)

    async def _read_catalogue(self) -> None:
        """Learns what other clients added, and tells a catalogue that forgot them of the functions that were added here."""
        try:
            if self._catalogue is None:
                how = _catalogue.make if self._own else _catalogue.find
                self._catalogue = await self._loop.run_in_executor(None, how, self._catalogue_name)
            if self._catalogue is None:
                return
            life, entries = await self._catalogue.since.remote(self._seen)
            if life != self._life and self._seen:
                # Another process, whose copies are others.
                self._seen = 0
                life, entries = await self._catalogue.since.remote(0)
            for entry in entries:
                self._seen = max(self._seen, entry.added)
                self._learn(entry)
            if life != self._life:
                for own in [entry for name, entry in self._functions.items() if name in self._own]:
                    await self._tell(own)
                self._life = life
        except RayError:
            self._forget_catalogue()
        finally:
            self._reading = None

    def _learn(self, entry: Entry) -> None:
        """Takes what the catalogue has of a function, unless this client has the same itself, or something newer."""
        known = self._functions.get(entry.name)
        if known is not None and entry.name in self._own:
            # One whose moment is not known yet was added just now, and is on its way there.
            is_newer = known.version != entry.version and 0 < known.added < entry.added
        else:
            is_newer = known is None or known.added <= entry.added
        if is_newer:
            self._functions[entry.name] = entry
            self._own.discard(entry.name)

    def _forget_catalogue(self) -> None:
        """Another process has taken its place, or will."""
        self._catalogue, self._life, self._seen = None, "", 0

    async def _look_again(self) -> None:
        """Asks all nodes, and the catalogue, what they have now."""
        # What was asked before may have been answered before it changed.
        for _ in range(2):
            if asking := await self._look():
                await asyncio.wait(asking, timeout=_LOOK_AGAIN)

    async def _keep_looking(self) -> None:
        while True:
            with contextlib.suppress(RayError):
                await self._look()
            await asyncio.sleep(self._refresh)

    async def _look(self) -> list[asyncio.Task[None]]:
        """Looks which nodes there are, and begins to ask each how it is."""
        # Asking a Ray that was shut down would start another one.
        there = ray.is_initialized()
        nodes = await self._loop.run_in_executor(None, ray.nodes) if there else []
        alive = {node["NodeID"] for node in nodes if self._wanted(node)}
        for gone in self._router.nodes.keys() - alive:
            self._router.left(gone)
            self._places.pop(gone, None)
        for node in alive:
            if node not in self._asking:
                self._asking[node] = asyncio.ensure_future(self._ask(node))
        oldest = self._loop.time() - _ROUNDS_KEPT * self._refresh
        for node, place in self._places.items():
            if place.told < oldest:
                self._router.stale(node)
        if there and self._reading is None:
            self._reading = asyncio.ensure_future(self._read_catalogue())
        return [*self._asking.values(), *filter(None, [self._reading])]

    def _wanted(self, node: Mapping[str, Any]) -> bool:
        labels = node.get("Labels", {})
        here = node["Alive"] and node["Resources"].get(RESOURCE, 0) > 0
        return here and all(labels.get(name) == value for name, value in self._labels.items())

    async def _ask(self, node: str) -> None:
        """Asks a node's actor how its supervisor is; makes one where there is none."""
        place = self._places.get(node)
        if place is None:
            place = self._places[node] = _Place(self._actor(node))
        self._router.asked(node)
        losses = place.losses
        try:
            health = await place.actor.health.remote()
        except RayError:
            self._lose(node, place, with_actor=True)
        else:
            if not isinstance(health, Health):
                self._lose(node, place, with_actor=False)
            elif self._places.get(node) is place and place.losses == losses:
                # Had a call found the node gone meanwhile, this answer would be of before: the next one counts.
                self._router.joined(node, health.capacity)
                others = health.calls - self._router.nodes[node].in_flight
                self._router.told(node, others, health.installed, health.warm)
                place.told = self._loop.time()
                async with self._changed:
                    self._changed.notify_all()
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


async def _installed(actor: Any, function: Entry) -> Error | None:
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
