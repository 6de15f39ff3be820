"""The actor of a node: calls functions of the supervisor that runs there, and registers what is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import pappus.aio
from pappus import _requests
from pappus._files import Module, ModuleFile, Package
from pappus.errors import Error, NotFound, Unavailable

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """A function on its way between nodes, but for the bytes of modules and weights, which follow it in this order."""

    config: bytes
    # (name, stem, [(format, architecture)])
    modules: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]
    weights: tuple[str, ...]

    def package(self, contents: Sequence[Array]) -> Package:
        """The function with its bytes."""
        rest = iter(contents)
        modules = tuple(
            Module(name, stem, tuple(ModuleFile(next(rest), format, arch) for format, arch in variants))
            for name, stem, variants in self.modules
        )
        return Package(self.config, modules, {name: next(rest) for name in self.weights})


@dataclass(frozen=True, slots=True)
class Health:
    """What a node can take, and has."""

    capacity: int
    # Calls that wait or run, those of the one who asks included, as far as the supervisor tells.
    calls: int
    # Functions that the supervisor has for this tenant, and those whose code and weights its workers have.
    installed: frozenset[str]
    warm: frozenset[str]


class NodeActor:
    """Runs on a node, in its own process, with a connection to the supervisor's socket there.

    Errors are returned, not raised: what a call ends with is its caller's, and what Ray raises is about the node.
    """

    def __init__(self, token: str | bytes | None) -> None:
        self._token = token
        self._client: pappus.aio.AsyncClient | None = None
        self._connecting = asyncio.Lock()
        self._functions: dict[Any, pappus.aio.AsyncFunction] = {}

    async def health(self) -> Health | Error:
        """Whether the supervisor answers, what it has to do, and what it has."""
        try:
            client = await self._connected()
            status, quota, functions = await asyncio.gather(client.status(), client.quota(), client.functions())
        except Error as why:
            return why
        capacity = calls = 0
        for device in status.devices:
            if not device.lost:
                # Beyond lanes, calls wait in the supervisor, which costs them nothing but time.
                capacity += max(1, device.workers_at_most) * max(1, device.lanes)
                calls += device.queued + device.running
        if status.draining:
            return Unavailable("the supervisor drains", retryable=True)
        # What all tenants have to do is told to the operator only. A tenant learns how many calls of its own wait: where some
        # do, about as many run as can.
        waiting = next((one.used for one in quota.quotas if one.name == "queued-calls"), 0)
        calls = max(calls, waiting + capacity if waiting else 0)
        installed = frozenset(function.name for function in functions)
        return Health(capacity, calls, installed, frozenset(function.name for function in functions if function.warm_on))

    async def install(self, name: str, parts: Parts, *contents: Array) -> Error | None:
        """Registers a function."""
        try:
            client = await self._connected()
            await client._run(_requests.add_package(name, parts.package(contents), True))
        except Error as why:
            return why
        self._functions.clear()
        return None

    async def call(self, name: str, options: Mapping[str, Any], keys: Sequence[str], *arrays: Any) -> Any:
        """Calls a function: inputs in order, and then by these names. Returns its result, or an error."""
        try:
            client = await self._connected()
            key = (name, repr(sorted(options.items())))
            function = self._functions.get(key)
            if function is None:
                # Results are read once, on their way into the object store: they need no copy of their own.
                function = (await client.function(name)).options(**{"copy": False, **options})
                self._functions[key] = function
            in_order = len(arrays) - len(keys)
            named = dict(zip(keys, arrays[in_order:], strict=True))
            return await function(*arrays[:in_order], **named)
        except NotFound as why:
            self._functions.clear()
            return why
        except Error as why:
            return why

    async def _connected(self) -> pappus.aio.AsyncClient:
        async with self._connecting:
            if self._client is None or self._client.closed:
                self._functions.clear()
                self._client = await pappus.aio.connect(token=self._token)
            return self._client


def is_gone(outcome: object) -> bool:
    """Whether an outcome says that the node's supervisor takes no calls, rather than that the call failed."""
    return isinstance(outcome, Error) and outcome.code == "UNAVAILABLE"


__all__ = ["Health", "NodeActor", "Parts", "is_gone"]
