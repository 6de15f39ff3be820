"""Lets more be computed in templates: what follows where arrays have their channels innermost, and quantised weights.

Inductor writes the former in loops over their bytes, and a template's result in loops over its dimensions; it puts the
former into the latter only where the two orders are the same, though a template is told each place by its dimensions.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import Scheduler, SchedulerNode
from torch._inductor.virtualized import V

# Rotary embeddings read two, resizing four, pooling of 3 by 3 nine.
_MOST_PLACES = 4


@contextlib.contextmanager
def loops_of_templates() -> Iterator[None]:
    """Has Inductor turn the loops behind a template into the template's meanwhile."""
    vertical, merged = Scheduler.can_fuse_vertical, SchedulerNode.merge_loops
    worth = Scheduler.check_prologue_fusion_heuristics_fusable

    # Releases differ in what else they say.
    def can(self: Any, first: Any, second: Any, **how: Any) -> bool:
        # What is the same number everywhere has no shape that Triton could stretch to a template's tile.
        if second.is_template() and not first.is_template() and (not first.read_writes.reads or _reads_around(first)):
            return False
        if vertical(self, first, second, **how):
            return True
        if not first.is_template() or second.is_template() or second.is_reduction():
            return False
        for read, written in _pairs(first, second):
            if not second.reorder_loops_by_dep_pair(read, written):
                continue
            if vertical(self, first, second, **how):
                return True
            # As they were: its loops are those of the bytes again.
            turned = next(dep for dep in second.read_writes.reads if dep.name == read.name and isinstance(dep, MemoryDep))
            second.reorder_loops_by_dep_pair(turned, read)
        return False

    def pays(self: Any, before: Any, template: Any, why: Any) -> bool:
        # Inductor keeps what is computed in 32 bits out of products of 16: weights would be written whole, and read again.
        return _takes_apart(before) or bool(worth(self, before, template, why))

    def merge(self: Any) -> None:
        # Two dimensions in one loop would be computed from one number, from which the compiler sees no order of addresses.
        if not self.scheduler.name_to_fused_node[self.get_name()].is_template():
            merged(self)

    with (
        mock.patch.object(Scheduler, "can_fuse_vertical", can),
        mock.patch.object(Scheduler, "check_prologue_fusion_heuristics_fusable", pays),
        mock.patch.object(SchedulerNode, "merge_loops", merge),
    ):
        yield


def _reads_around(node: Any) -> bool:
    """True if an array is read at many places, as by pooling: a template's stages would keep it once for each."""
    places = Counter(dep.name for dep in node.read_writes.reads if isinstance(dep, MemoryDep))
    return max(places.values(), default=0) > _MOST_PLACES


def _takes_apart(node: Any) -> bool:
    """True if a kernel makes larger numbers of weights of one byte each."""
    weights = [dep.name for dep in node.read_writes.reads if dep.name in V.graph.constants]
    small = any(V.graph.get_dtype(name).itemsize == 1 for name in weights)
    return small and bool(node.get_read_buffer_sizes() < node.get_write_buffer_sizes())


def _pairs(template: Any, after: Any) -> list[tuple[MemoryDep, MemoryDep]]:
    """What is read of a template's results in the order of their bytes, and how the template writes it."""
    reads = {dep.name: dep for dep in after.read_writes.reads if isinstance(dep, MemoryDep)}
    writes = [dep for dep in template.read_writes.writes if isinstance(dep, MemoryDep) and dep.name in reads]
    pairs = [(reads[dep.name], dep) for dep in writes]
    return [(r, w) for r, w in pairs if r.normalize_with_stride_order() == w.normalize_with_stride_order()]
