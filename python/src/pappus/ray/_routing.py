"""Which node runs a call. Decisions only: told what happens, asked where to go; no input or output, no clock.

A call goes to a node that has its function's code and weights ready, as its supervisor said a moment ago or a call on its way
there is about to bring about, unless so much waits there that a node with less to do is better even though it must load the
weights first, or the function, too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

# How many more calls, for each that a node runs at once, must be on their way to the nodes that have a function ready before
# one gets it whose supervisor has the function, but no worker with it.
SPILL_ROUNDS = 1.0
# Before one gets it whose supervisor does not have the function.
INSTALL_ROUNDS = 1.5


@dataclass(slots=True)
class Node:
    """What is known of a node."""

    id: str
    # Calls that it runs at once.
    capacity: int
    # Calls of this router without an answer, by function; and of others, when they were last counted.
    calls: Counter[str] = field(default_factory=Counter)
    others: int = 0
    # What its supervisor said: functions that it has, and those that calls find ready.
    installed: frozenset[str] = frozenset()
    warm: frozenset[str] = frozenset()
    # Functions of calls that ended there since it was last asked; and before, since what it last answered was asked.
    fresh: set[str] = field(default_factory=set)
    older: set[str] = field(default_factory=set)
    # Whether calls may go there.
    up: bool = True
    last_chosen: int = 0

    @property
    def in_flight(self) -> int:
        """Calls of this router without an answer."""
        return self.calls.total()

    def load(self) -> float:
        """Rounds of calls on their way to it."""
        return (self.in_flight + self.others) / self.capacity

    def is_warm(self, function: str) -> bool:
        """Whether a call finds the function ready there, or another one is about to make it so."""
        return any(function in known for known in (self.warm, self.fresh, self.older, self.calls))

    def ready(self) -> set[str]:
        """The functions of which that is so."""
        return {*self.warm, *self.fresh, *self.older, *self.calls}

    def has(self, function: str) -> bool:
        """Whether its supervisor has the function, ready or not."""
        return function in self.installed or self.is_warm(function)

    def order(self, function: str) -> tuple[float, bool, int]:
        """The lowest node is the best for a call. Where all else is equal, nodes take turns."""
        rounds = 0.0 if self.is_warm(function) else SPILL_ROUNDS if self.has(function) else INSTALL_ROUNDS
        return self.load() + rounds, rounds > 0, self.last_chosen


class Router:
    """The nodes of a cluster."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._turn = itertools.count(1)

    def joined(self, id: str, capacity: int) -> None:
        """A node is there, for the first time or again."""
        node = self.nodes.get(id)
        if node is None:
            self.nodes[id] = Node(id, max(1, capacity))
        else:
            node.capacity, node.up = max(1, capacity), True

    def left(self, id: str) -> None:
        """A node is gone for good."""
        self.nodes.pop(id, None)

    def away(self, id: str) -> None:
        """A node takes no calls now; what it had may be lost."""
        if (node := self.nodes.get(id)) is not None:
            node.up = False
            node.installed = node.warm = frozenset()
            node.fresh, node.older = set(), set()

    def asked(self, id: str) -> None:
        """A node is asked what it has: the answer may know nothing of functions that are called there from now on."""
        if (node := self.nodes.get(id)) is not None:
            node.older |= node.fresh
            node.fresh = set()

    def told(self, id: str, others: int, installed: Collection[str], warm: Collection[str]) -> None:
        """A node said how many calls of others it has, which functions, and which of them calls find ready."""
        if (node := self.nodes.get(id)) is not None:
            node.others = max(0, others)
            node.installed, node.warm = frozenset(installed), frozenset(warm)
            node.older = set()

    def stale(self, id: str) -> None:
        """What a node said is too old to go by."""
        if (node := self.nodes.get(id)) is not None:
            node.others = 0
            node.warm, node.older = frozenset(), set()

    def lacks(self, id: str, function: str) -> None:
        """A node does not have a function, whatever it said before."""
        if (node := self.nodes.get(id)) is not None:
            node.installed -= {function}
            node.warm -= {function}
            node.fresh.discard(function)
            node.older.discard(function)

    def holds(self, function: str) -> bool:
        """Whether a node that takes calls has the function."""
        return any(node.up and function in node.installed for node in self.nodes.values())

    def candidates(self, function: str, avoid: Collection[str] = (), *, installed: bool = False) -> list[Node]:
        """Nodes that a call may go to. With ``installed``, those whose supervisors have the function, where some do."""
        there = [node for node in self.nodes.values() if node.up]
        if installed:
            there = [node for node in there if function in node.installed] or there
        return [node for node in there if node.id not in avoid]

    def choose(self, function: str, avoid: Collection[str] = (), *, installed: bool = False) -> str | None:
        """The node for a call, which is on its way there from now on; ``None`` where there is none."""
        there = self.candidates(function, avoid, installed=installed)
        if not there:
            return None
        chosen = min(there, key=lambda node: node.order(function))
        chosen.calls[function] += 1
        chosen.last_chosen = next(self._turn)
        return chosen.id

    def ended(self, id: str, function: str) -> None:
        """A call that was on its way to a node has an answer, or was lost with it."""
        if (node := self.nodes.get(id)) is None:
            return
        if node.up:
            # Whatever is answered to a question that was asked before may not know of it.
            node.fresh.add(function)
        node.calls[function] -= 1
        if node.calls[function] <= 0:
            del node.calls[function]
