"""The functions that clients of a cluster added, so that each client finds and installs what another one added.

One actor for each tenant keeps them, and their modules and weights in the object store, whether or not the client that added
them is still there. It is no part of a call's way: clients ask it now and then. What it loses when its node is lost, clients
that are still there tell it again; where none is, functions stay on the nodes that have them.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

import ray

from pappus.ray._node import Parts

NAMESPACE = "pappus.ray"


@dataclass(frozen=True, slots=True)
class Entry:
    """A function as it was added: of one name, the one that was added last."""

    name: str
    version: str
    parts: Parts
    # References to the bytes of its modules and weights, in the order of its parts.
    contents: tuple[Any, ...]
    # When it was added, in nanoseconds; no two entries of a catalogue are of one moment.
    added: int = 0


class Catalogue:
    """Runs in a process of its own, somewhere in the cluster."""

    def __init__(self) -> None:
        self._life = uuid.uuid4().hex
        self._entries: dict[str, Entry] = {}
        self._last = 0

    def add(self, entry: Entry, *contents: Any) -> int:
        """Keeps a function, and copies of its contents; one that was added before says when. Returns when it was added."""
        before = self._entries.get(entry.name)
        if before is not None and (before.version == entry.version or 0 < entry.added <= before.added):
            return before.added
        added = entry.added or max(time.time_ns(), self._last + 1)
        self._last = max(self._last, added)
        # Of its own: those of who added it go with their process.
        kept = tuple(ray.put(content) for content in contents)
        self._entries[entry.name] = replace(entry, contents=kept, added=added)
        return added

    def since(self, added: int) -> tuple[str, list[Entry]]:
        """What was added after a moment, and what tells this process from one that took its place."""
        return self._life, [entry for entry in self._entries.values() if entry.added > added]


def name(token: str | bytes | None) -> str:
    """What the actor is called: each tenant that a gateway names has its own."""
    token = token.encode() if isinstance(token, str) else token or b""
    return f"catalogue-{hashlib.sha256(token.strip()).hexdigest()[:16]}"


def find(name: str) -> Any | None:
    """The actor, if there is one."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def make(name: str) -> Any:
    """The actor, which is made if there is none, and started again wherever there is room when it is lost."""
    kind: Any = ray.remote(Catalogue)
    options = {"lifetime": "detached", "get_if_exists": True, "num_cpus": 0, "max_restarts": -1}
    return kind.options(name=name, namespace=NAMESPACE, **options).remote()
