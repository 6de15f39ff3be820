"""Blocks of shared memory for calls, taken from arenas that stay open behind the scenes.

A block holds the inputs of one call and then its outputs. It comes back by itself: when nothing refers to it any more,
be it the call in flight, a result that was not copied, or a caller's array over it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from pappus import _arrays, _memory
from pappus._wire import MAX_ARENA_BYTES, MAX_ARENAS
from pappus.errors import InvalidArgument, ResourceExhausted

# Regions start at multiples of this: a cache line.
ALIGN = 64
# Blocks of a few bytes come in pages.
_SMALLEST_BLOCK = 4096
# The first arena; each further one is as large as all before, up to the second figure, or as its first block.
_FIRST_ARENA = 1 << 20
_USUAL_ARENA = 64 << 20
# Up to here an array is copied as bytes, which takes a sixth of the time but does not let other threads run meanwhile.
_SMALL_COPY = 64 << 10
# Of the arenas of one connection, those that are left for callers' own.
_LEFT_FOR_CALLERS = 16


def aligned(size: int) -> int:
    """How much of a block a region of this size takes."""
    return (size + ALIGN - 1) & -ALIGN


def block_size(size: int) -> int:
    """What is taken for so many bytes: an eighth more at most, so that blocks fit calls of similar sizes."""
    if size <= _SMALLEST_BLOCK:
        return _SMALLEST_BLOCK
    step = max(_SMALLEST_BLOCK, 1 << ((size - 1).bit_length() - 4))
    return -(-size // step) * step


class Mapped:
    """An arena that the supervisor knows, mapped here."""

    __slots__ = ("address", "bytes", "id", "live", "memory", "retired", "used")

    def __init__(self, id: int, descriptor: int, size: int) -> None:
        self.id = id
        self.memory = _memory.map_shared(descriptor, size)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.address: int = self.bytes.__array_interface__["data"][0]
        # Where the next new block goes, and blocks that are out.
        self.used = 0
        self.live = 0
        # No further blocks come from it: a call that was given up may still write there.
        self.retired = False

    def __len__(self) -> int:
        return len(self.bytes)

    def has_room(self, size: int) -> bool:
        """Whether a new block fits behind the others."""
        return not self.retired and len(self.bytes) - self.used >= size

    def offset_of(self, address: int, size: int) -> int | None:
        """Where in it these bytes of memory lie, if they do."""
        offset = address - self.address
        return offset if 0 <= offset <= len(self.bytes) - size else None

    def view(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """An array over its memory, which it keeps alive."""
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, self.bytes, offset)
        return array

    def fill(self, offset: int, array: npt.NDArray[Any]) -> None:
        """Copies an array to it, whatever its strides and order of bytes."""
        size, dtype = array.nbytes, array.dtype
        if size <= _SMALL_COPY and _arrays.lies_as_sent(array):
            self.memory[offset : offset + size] = array  # type: ignore[call-overload]
        else:
            np.copyto(self.view(offset, dtype.newbyteorder("<"), array.shape), array)


class Block:
    """A range of an arena that belongs to whoever refers to it."""

    __slots__ = ("_returned", "arena", "offset", "size", "tainted")

    def __init__(self, arena: Mapped, offset: int, size: int, returned: deque[tuple[Mapped, int, int, bool]]):
        self.arena = arena
        self.offset = offset
        self.size = size
        # Whether its call was given up while it may have been running.
        self.tainted = False
        self._returned = returned

    def __del__(self) -> None:
        # In any thread, at any time: no lock may be taken here.
        self._returned.append((self.arena, self.offset, self.size, self.tainted))


class Lease:
    """Keeps a block for as long as arrays over it are alive; NumPy keeps it as their base."""

    __slots__ = ("__array_interface__", "block")

    def __init__(self, block: Block, offset: int, size: int) -> None:
        self.block = block
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (block.arena.address + offset, False),
        }


class Pool:
    """All arenas of a connection. Whoever uses it opens and closes arenas at the supervisor as it is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: list[Mapped] = []
        self._free: dict[int, list[tuple[Mapped, int]]] = {}
        self._returned: deque[tuple[Mapped, int, int, bool]] = deque()
        self._callers: list[Mapped] = []

    def take(self, size: int) -> Block | None:
        """A block of a :func:`block_size`, where there is room for one; otherwise another arena must be opened."""
        with self._lock:
            if self._returned:
                self._take_back()
            free = self._free.get(size)
            if free:
                arena, offset = free.pop()
            else:
                found = self._with_room(size)
                if found is None:
                    return None
                arena, offset = found, found.used
                arena.used += size
            arena.live += 1
        return Block(arena, offset, size, self._returned)

    def lacks(self, size: int) -> int | None:
        """The size of the arena that must be opened for such a block, if one must."""
        with self._lock:
            self._take_back()
            return None if self._free.get(size) or self._with_room(size) else self._next_arena(size)

    def add(self, id: int, descriptor: int, size: int) -> None:
        """An arena was opened for it."""
        arena = Mapped(id, descriptor, size)
        with self._lock:
            self._arenas.append(arena)

    def add_callers(self, arena: Mapped) -> None:
        """A caller opened an arena of its own."""
        with self._lock:
            self._callers = [*self._callers, arena]

    def remove_callers(self, arena: Mapped) -> None:
        """A caller closed it."""
        with self._lock:
            self._callers = [other for other in self._callers if other is not arena]

    def find(self, array: npt.NDArray[Any], *, callers_only: bool) -> tuple[Mapped, int] | None:
        """Where in an arena an array lies, if it does, and as devices take it."""
        if array.nbytes == 0 or not _arrays.lies_as_sent(array):
            return None
        address: int = array.__array_interface__["data"][0]
        for arena in self._callers if callers_only else (*self._callers, *self._arenas):
            offset = arena.offset_of(address, array.nbytes)
            if offset is not None and not arena.retired:
                return arena, offset
        return None

    def unused(self, *, for_arena_of: int, all_of_them: bool = False) -> list[int]:
        """Takes out arenas to be closed before another one is opened.

        No block of them is out, and they are retired, or many, or large as the new one is.
        """
        with self._lock:
            self._take_back()
            everything = all_of_them or self._crowded()
            large = for_arena_of > _USUAL_ARENA
            going = [
                arena
                for arena in self._arenas
                if not arena.live and (everything or arena.retired or (large and len(arena) > _USUAL_ARENA))
            ]
            self._arenas = [arena for arena in self._arenas if arena not in going]
            self._forget(going)
            return [arena.id for arena in going]

    def _crowded(self) -> bool:
        return len(self._arenas) + len(self._callers) >= MAX_ARENAS - _LEFT_FOR_CALLERS

    def _with_room(self, size: int) -> Mapped | None:
        return next((arena for arena in reversed(self._arenas) if arena.has_room(size)), None)

    def _take_back(self) -> None:
        while self._returned:
            arena, offset, size, tainted = self._returned.popleft()
            arena.live -= 1
            if tainted and not arena.retired:
                arena.retired = True
                self._forget([arena])
            if not arena.retired:
                self._free.setdefault(size, []).append((arena, offset))

    def _forget(self, arenas: list[Mapped]) -> None:
        for size, blocks in self._free.items():
            self._free[size] = [block for block in blocks if block[0] not in arenas]

    def _next_arena(self, size: int) -> int:
        if size > MAX_ARENA_BYTES:
            raise InvalidArgument(f"a call with {size} bytes of inputs and outputs: an arena has at most {MAX_ARENA_BYTES}")
        if self._crowded() and all(arena.live for arena in self._arenas):
            raise ResourceExhausted(
                f"{len(self._arenas)} arenas are in use by calls and by results that were not copied: let some go, or connect "
                "once more",
                retryable=True,
            )
        return max(size, min(sum(map(len, self._arenas)), _USUAL_ARENA), _FIRST_ARENA)
