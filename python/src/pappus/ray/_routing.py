"""Which node runs a call. Decisions only: told what happens, asked where to go; no input or output, no clock.

A call goes to a node that its function was called on before, since that has its code and weights, unless so much waits there
that a node with less to do is better even though it must load them first.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field

# How many more calls, for each that a node runs at once, must be on their way to the nodes that have the function before
# another one gets it.
SPILL_ROUNDS = 1.0


@dataclass(slots=True)
class Node:
    """What is known of a node."""

    id: str
    # Calls that it runs at once.
    capacity: int
    # Calls of this router without an answer, and of others, when they were last counted.
    in_flight: int = 0
    others: int = 0
    # Functions that were called there.
    warm: set[str] = field(default_factory=set)
    # Whether calls may go there.
    up: bool = True
    last_chosen: int = 0

    def load(self) -> float:
        """Rounds of calls on their way to it."""
        return (self.in_flight + self.others) / self.capacity


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
            node.warm.clear()

    def counted(self, id: str, others: int) -> None:
        """A node said how many calls of others it has."""
        if (node := self.nodes.get(id)) is not None:
            node.others = max(0, others)

    def choose(self, function: str, avoid: Collection[str] = ()) -> str | None:
        """The node for a call, which is on its way there from now on; ``None`` where there is none."""
        there = [node for node in self.nodes.values() if node.up and node.id not in avoid]
        if not there:
            return None
        best = min(there, key=_order)
        warm = min((node for node in there if function in node.warm), key=_order, default=None)
        chosen = best if warm is None or warm.load() - best.load() > SPILL_ROUNDS else warm
        chosen.in_flight += 1
        chosen.warm.add(function)
        chosen.last_chosen = next(self._turn)
        return chosen.id

    def ended(self, id: str) -> None:
        """A call that was on its way to a node has an answer, or was lost with it."""
        if (node := self.nodes.get(id)) is not None and node.in_flight > 0:
            node.in_flight -= 1


def _order(node: Node) -> tuple[float, int]:
    """Nodes with as much to do take turns."""
    return node.load(), node.last_chosen
