"""For which machine code is made: NVIDIA architectures such as ``sm_90``, AMD ones such as ``gfx942``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import PackageError

DEFAULT = ("sm_90",)

# Dynamic shared memory of a block, in bytes, where the architecture is known.
_SHARED_BYTES = {
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_87": 163 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_103": 227 << 10,
    "sm_120": 99 << 10,
    "gfx950": 160 << 10,
}
_SHARED_BYTES_AMD = 64 << 10
_SHARED_BYTES_NVIDIA = 48 << 10


@dataclass(frozen=True, order=True)
class Target:
    """One architecture."""

    kind: str
    arch: str

    @property
    def file_suffix(self) -> str:
        """What a module file for it ends in, behind the stem.

        Triton compiles for the full instruction set of compute capabilities 9.0 and newer, which has an ``a`` behind it.
        """
        if self.kind == "hip":
            return f".{self.arch}.hsaco"
        suffix = "a" if self.capability >= 90 else ""
        return f".{self.arch}{suffix}.cubin"

    @property
    def text_suffix(self) -> str:
        """The same for its PTX, which NVIDIA's architectures have."""
        return self.file_suffix.replace(".cubin", ".ptx")

    @property
    def capability(self) -> int:
        """The compute capability of an NVIDIA architecture, times ten."""
        return int(self.arch.removeprefix("sm_"))

    @property
    def warp_size(self) -> int:
        """Threads that run in step."""
        if self.kind == "cuda":
            return 32
        return 64 if self.arch.startswith("gfx9") else 32

    @property
    def shared_bytes(self) -> int:
        """The most dynamic shared memory a block may have."""
        other = _SHARED_BYTES_NVIDIA if self.kind == "cuda" else _SHARED_BYTES_AMD
        return _SHARED_BYTES.get(self.arch, other)

    def __str__(self) -> str:
        return self.arch


def parse(names: str | Sequence[str]) -> tuple[Target, ...]:
    """Reads ``sm_90``, ``cuda:sm_90``, ``gfx942``, ``hip:gfx942``; each once, sorted.

    >>> [target.file_suffix for target in parse(["gfx942", "cuda:sm_90", "sm_90"])]
    ['.sm_90a.cubin', '.gfx942.hsaco']
    """
    found = set()
    for name in [names] if isinstance(names, str) else names:
        arch = name.removeprefix("cuda:").removeprefix("hip:")
        if re.fullmatch(r"sm_[1-9][0-9]{1,2}", arch) and not name.startswith("hip:"):
            found.add(Target("cuda", arch))
        elif re.fullmatch(r"gfx[0-9a-f]{3,6}", arch) and not name.startswith("cuda:"):
            found.add(Target("hip", arch))
        else:
            raise PackageError(f"{name!r} is no target, expected one such as sm_80, sm_90, gfx942")
    if not found:
        raise PackageError("no target: expected one or more such as sm_90, gfx942")
    return tuple(sorted(found))
