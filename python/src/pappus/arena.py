"""Shared memory of a caller's own, for inputs and outputs that are not copied."""

from __future__ import annotations

import threading
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from pappus import _arrays
from pappus._arrays import Array
from pappus._call import OfThisProcess
from pappus._owner import Owner
from pappus._pool import Mapped, aligned
from pappus.errors import InvalidArgument


class Arena(OfThisProcess):
    """Memory that a client shares with its supervisor, as NumPy arrays.

    A call that is given such an array as an input, or as the place of an output, uses it where it lies. Arrays are handed
    out one after the other; they stay valid memory after the arena is closed, but calls cannot use them any more.

    >>> arena = client.arena(1 << 20)
    >>> a = arena.array(np.float32([1, 2, 3]))
    >>> c = arena.empty(3, "f32")
    >>> vec_add = client.function("vec_add")
    >>> vec_add.options(out=c)(a, a) is c
    True
    >>> c
    array([2., 4., 6.], dtype=float32)
    >>> client.close_arena(arena)
    """

    def __init__(self, mapped: Mapped, pool: object = None) -> None:
        self._mapped = mapped
        # Of the connection that it was opened on.
        self._pool = pool
        self._owner = Owner()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Its bytes."""
        return len(self._mapped)

    def __repr__(self) -> str:
        return f"<Arena {self._mapped.id} of {len(self)} bytes, {self._mapped.used} used>"

    def empty(self, shape: SupportsIndex | tuple[SupportsIndex, ...], dtype: npt.DTypeLike | str = "f32") -> Array:
        """An array in it; what it holds at first is what was written there before, or zeros."""
        self._owner.check()
        kind, dims = _arrays.as_dtype(dtype), _arrays.shape_of(shape)
        if kind.hasobject or any(size < 0 for size in dims):
            raise InvalidArgument(f"no array of {dims} {kind} can be shared")
        size = kind.itemsize
        for dim in dims:
            size *= dim
        with self._lock:
            offset = self._mapped.used
            if size > len(self) - offset:
                raise InvalidArgument(
                    f"no room for {size} bytes in an arena of {len(self)} of which {offset} are taken: open a larger one"
                )
            self._mapped.used = min(offset + aligned(size), len(self))
        return self._mapped.view(offset, kind, dims)

    def array(self, source: object, dtype: npt.DTypeLike | str | None = None) -> Array:
        """An array in it with the contents of another one, or of whatever else can be an input."""
        kind = None if dtype is None else _arrays.as_dtype(dtype)
        given = _arrays.as_array(source, kind)
        _arrays.check_type("array", given, kind, None)
        copied = self.empty(given.shape, given.dtype.newbyteorder("<") if kind is None else kind)
        np.copyto(copied, given)
        return copied

    def reset(self) -> None:
        """Hands out its memory from the start again; arrays that were handed out share it with new ones from then on."""
        self._owner.check()
        with self._lock:
            self._mapped.used = 0
