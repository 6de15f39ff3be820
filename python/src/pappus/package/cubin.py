"""What machine code for NVIDIA GPUs says of its kernels' parameters."""

from __future__ import annotations

import struct

from .errors import PackageError

_SECTION = struct.Struct("<IIQQQQIIQQ")
_PARAMETER = struct.Struct("<IHHI")
_PARAMETER_INFO = 0x17
_SIZED, _SHORT = 4, (1, 2, 3)


def parameters(code: bytes, kernel: str) -> list[tuple[int, int]]:
    """Where each parameter begins and its bytes, in their order."""
    try:
        info = _section(code, f".nv.info.{kernel}")
        found, at = {}, 0
        while at < len(info):
            form, attribute, value = struct.unpack_from("<BBH", info, at)
            at += 4
            if form == _SIZED:
                if attribute == _PARAMETER_INFO:
                    _, ordinal, offset, flags = _PARAMETER.unpack_from(info, at)
                    found[ordinal] = offset, flags >> 18
                at += value
            elif form not in _SHORT:
                raise PackageError(f"kernel {kernel}: its machine code describes parameters in a way that is not known here")
    except struct.error as error:
        raise PackageError(f"kernel {kernel}: its machine code ends too early: {error}") from error
    if sorted(found) != list(range(len(found))):
        raise PackageError(f"kernel {kernel}: its machine code describes parameters {sorted(found)}")
    return [found[ordinal] for ordinal in range(len(found))]


def _section(code: bytes, name: str) -> bytes:
    if not code.startswith(b"\x7fELF\x02\x01"):
        raise PackageError("machine code that is no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", code, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", code, 0x3A)
    sections = [_SECTION.unpack_from(code, table + at * size) for at in range(count)]
    names = sections[names_at][4]
    for section in sections:
        start = names + section[0]
        if code[start : code.index(b"\0", start)].decode() == name:
            return code[section[4] : section[4] + section[5]]
    raise PackageError(f"machine code without a section {name}")
