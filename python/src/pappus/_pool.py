"""Blocks of shared memory for calls, taken from arenas that stay open behind the scenes.

A block holds the inputs of one call and then its outputs. It comes back by itself: when nothing refers to it any more,
be it the call in flight, a result that was not copied, or a caller's array over it.
"""

from __future__ import annotations

import threading
import weakref
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
    """An arena, mapped here; once the supervisor knows it, it has a number."""

    __slots__ = ("address", "bytes", "id", "live", "memory", "retired", "used")

    def __init__(self, descriptor: int, size: int) -> None:
        self.id = 0
        self.memory = _memory.map_shared(descriptor, size)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.address: int = self.bytes.__array_interface__["data"][0]
        # Where the next new block goes, and blocks that are out.
        self.used = 0
        self.live = 0
        # No further blocks come from it: it is a caller's, or a call that was given up may still write there.
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

    arena: Mapped
    offset: int
    taken: _Taken

    def taint(self) -> None:
        """Its call was given up while it may have been running."""
        self.taken.tainted = True


class _Taken(weakref.ref[Block]):
    """What is known of a block when it is gone."""

    arena: Mapped
    offset = 0
    size = 0
    tainted = False


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
    """All arenas of a connection. Whoever uses it opens and closes arenas at the supervisor as it is told.

    An arena that the supervisor has is in one of three lists, from the moment its answer arrives until that to its closing
    does, whoever waits for these. Steps that belong together have no call between them, at which a signal handler could
    raise an exception.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: list[Mapped] = []
        self._callers: list[Mapped] = []
        # To be closed.
        self._going: list[Mapped] = []
        # Numbers of sessions that are open and nobody has.
        self._strays: set[int] = set()
        self._free: dict[int, list[tuple[Mapped, int]]] = {}
        # Blocks that are out, and those of them that nobody refers to any more.
        self._out: dict[tuple[int, int], _Taken] = {}
        self._returned: deque[_Taken] = deque()

    def take(self, size: int) -> Block | None:
        """A block of a :func:`block_size`, where there is room for one; otherwise another arena must be opened."""
        with self._lock:
            if self._returned:
                self._take_back()
            free = self._free.get(size, [])
            found = None if free else self._with_room(size)
            if not free and found is None:
                return None
            # It comes back by a method of C's own, in any thread, at any time: no lock may be taken then, and what a signal
            # handler raises in a method of Python's would be lost, and the block with it.
            block = Block()
            taken = _Taken(block, self._returned.append)
            if found is None:
                arena, offset = free[-1]
                del free[-1]
            else:
                arena, offset = found, found.used
                found.used += size
            arena.live += 1
            block.arena, block.offset, block.taken = arena, offset, taken
            taken.arena, taken.offset, taken.size = arena, offset, size
            self._out[arena.id, offset] = taken
        return block

    def lacks(self, size: int) -> int | None:
        """The size of the arena that must be opened for such a block, if one must."""
        with self._lock:
            self._take_back()
            return None if self._free.get(size) or self._with_room(size) else self._next_arena(size)

    def opened(self, arena: Mapped, id: int, *, callers: bool) -> None:
        """The supervisor has an arena, for calls or for a caller that wants one of its own. To say so twice changes nothing."""
        with self._lock:
            if arena.id == 0:
                arena.id = id
                if arena.retired:
                    self._going += [arena]
                elif callers:
                    self._callers += [arena]
                else:
                    self._arenas += [arena]

    def give_up(self, arena: Mapped) -> None:
        """No caller has an arena any more: it is to be closed, now or when the supervisor says that it is open."""
        with self._lock:
            arena.retired = True
            if arena in self._callers:
                self._callers = [other for other in self._callers if other is not arena]
                self._going += [arena]

    def stray_session(self, number: int) -> None:
        """A session is open whose opening was given up. To say so twice changes nothing."""
        with self._lock:
            self._strays.add(number)

    def stray_sessions(self) -> list[int]:
        """Takes the sessions that nobody has."""
        with self._lock:
            strays, self._strays = sorted(self._strays), set()
            return strays

    def closed(self, arena: Mapped) -> None:
        """The supervisor has an arena no longer."""
        with self._lock:
            self._going = [other for other in self._going if other is not arena]

    def find(self, array: npt.NDArray[Any], *, callers_only: bool) -> tuple[Mapped, int] | None:
        """Where in an arena an array lies, if it does, and as devices take it."""
        if array.nbytes == 0 or not _arrays.lies_as_sent(array):
            return None
        address: int = array.__array_interface__["data"][0]
        callers, arenas = self._callers, self._arenas
        for arena in callers if callers_only else (*callers, *arenas):
            offset = arena.offset_of(address, array.nbytes)
            if offset is not None and not arena.retired:
                return arena, offset
        return None

    def unused(self, *, for_arena_of: int, all_of_them: bool = False) -> list[Mapped]:
        """Arenas to be closed before another one is opened; they are used for nothing from now on.

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
            self._forget(going)
            staying = [arena for arena in self._arenas if arena not in going]
            self._going, self._arenas = self._going + going, staying
            return self._going

    def _crowded(self) -> bool:
        return len(self._arenas) + len(self._callers) >= MAX_ARENAS - _LEFT_FOR_CALLERS

    def _with_room(self, size: int) -> Mapped | None:
        for arena in reversed(self._arenas):
            if arena.has_room(size):
                return arena
        return None

    def _take_back(self) -> None:
        while self._returned:
            taken = self._returned[0]
            if taken.size:
                arena = taken.arena
                if taken.tainted:
                    arena.retired = True
                if arena.retired:
                    self._forget([arena])
                free = self._free.setdefault(taken.size, [])
                # No call from here on.
                if not arena.retired:
                    free += [(arena, taken.offset)]
                arena.live -= 1
                taken.size = 0
                del self._out[arena.id, taken.offset]
            del self._returned[0]

    def _forget(self, arenas: list[Mapped]) -> None:
        self._free = {size: [block for block in blocks if block[0] not in arenas] for size, blocks in self._free.items()}

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
