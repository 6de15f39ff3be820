"""Where the buffers of a function lie: those that are not live together share one arena buffer.

Offsets are found greedily by size, the largest first, each at the lowest place that is free for as long as it lives
(Pisarchyk and Lee, 2020). Compilers write a buffer before they read it, so nothing needs to be cleared in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What blueprints align buffers to, and kernels were promised for pointers.
ALIGN_BYTES = 256


@dataclass(frozen=True)
class Live:
    """A buffer of ``size`` bytes that is used by the steps ``first`` to ``last``, both included."""

    name: str
    size: int
    first: int
    last: int

    def meets(self, other: Live) -> bool:
        """Whether both are live at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Layout:
    """Offsets into one buffer of ``size`` bytes."""

    offsets: Mapping[str, int]
    size: int


def place(buffers: Sequence[Live]) -> Layout:
    """Gives each buffer a range that no other one has while it is live."""
    placed: list[tuple[int, int, Live]] = []
    offsets: dict[str, int] = {}
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.first, b.name)):
        size = round_up(buffer.size)
        neighbours = sorted((start, end) for start, end, other in placed if other.meets(buffer))
        offset = 0
        for start, end in neighbours:
            if offset + size <= start:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, buffer))
        offsets[buffer.name] = offset
    return Layout(offsets, max((end for _, end, _ in placed), default=0))


def round_up(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES
