"""Memory that is shared with the supervisor: memfds that cannot change their size, and mappings of them."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

# A supervisor takes an arena that can neither shrink nor grow, and other bytes only where nothing can change them.
_ARENA_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_FINAL_SEALS = _ARENA_SEALS | fcntl.F_SEAL_WRITE


@contextmanager
def _memfd(name: str) -> Iterator[int]:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def arena_memfd(size: int) -> Iterator[int]:
    """A writable memfd of ``size`` zeros; memory is taken as it is written to."""
    with _memfd("pappus-arena") as descriptor:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _ARENA_SEALS)
        yield descriptor


@contextmanager
def sealed_memfd(pieces: Iterator[memoryview]) -> Iterator[int]:
    """A memfd that holds these bytes for ever."""
    with _memfd("pappus-blob") as descriptor:
        for piece in pieces:
            while piece:
                piece = piece[os.write(descriptor, piece) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FINAL_SEALS)
        yield descriptor


def map_shared(descriptor: int, size: int) -> mmap.mmap:
    """Maps a memfd. The mapping stays for as long as an array over it is alive."""
    return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
