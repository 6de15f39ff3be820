"""A function in one file: ``NAME.pappus``, a zip archive without compression of the folder that ``_files`` reads.

Its members are ranges of the file and are read where they lie; nothing is unpacked. Archives come from strangers: what is
taken is one shape of the format, drawn in ``client/src/archive.rs``, which says the same words. ``tests/packages`` has
archives that both must judge alike; readers that look for archives in more places, as that of the standard library does,
would not.
"""

from __future__ import annotations

import io
import json
import os
import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.errors import InvalidArgument

SUFFIX = ".pappus"
CONFIG = "function.json"
_MOST_MEMBERS = 8192
_MOST_NAME_BYTES = 1024
_MOST_DIRECTORY_BYTES = 16 << 20
_PIECE = 1 << 20

_LOCAL = struct.Struct("<I22xHH")
_ENTRY = struct.Struct("<I4xHH4xIIIHHHH2xII")
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQ4xIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_ELSEWHERE16 = 0xFFFF
_ELSEWHERE32 = 0xFFFF_FFFF
# Encrypted, strongly encrypted, names hidden.
_ENCRYPTED = 1 | 1 << 6 | 1 << 13


@dataclass(frozen=True, slots=True)
class Member:
    """A range of an archive that is open."""

    path: Path
    descriptor: int
    offset: int
    size: int

    def open(self) -> io.BufferedReader:
        """Its bytes, to read; its position is its own."""
        return io.BufferedReader(_Range(self))


class Archive:
    """The files of a package, by their names."""

    def __init__(self, path: Path, members: dict[str, Member]) -> None:
        self.path = path
        self.members = members

    def inside(self, name: str) -> str:
        """A name in the configuration as that of a member; one that leads elsewhere is refused."""
        plain = name.removeprefix("./")
        if plain.endswith("/") or not _is_name(plain):
            raise _wrong(self.path / CONFIG, f"it names {_shown(name)}, and a package may name only files that are in it")
        return plain


@contextmanager
def opened(path: Path) -> Iterator[Archive | None]:
    """The package, open until the end, if the path is one; all of it was checked."""
    if path.suffix != SUFFIX or path.is_dir():
        yield None
        return
    with open_regular(path) as file:
        try:
            members = _members(path, file.fileno(), os.fstat(file.fileno()).st_size)
        except OSError as why:
            raise _wrong(path, why.strerror or str(why)) from None
        yield Archive(path, members)


def open_regular(path: Path) -> io.FileIO:
    """Opens a file. A pipe, which would make its reader wait, or a device, which has no end, is refused."""
    try:
        file = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as why:
        raise _wrong(path, why.strerror or str(why)) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _wrong(path, "not a regular file")
    return file


class _Range(io.RawIOBase):
    """Reads a member."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer) as view:
            left = min(len(view), self._member.size - self._at)
            read = os.preadv(self._member.descriptor, [view[:left]], self._member.offset + self._at)
        self._at += read
        return read

    def tell(self) -> int:
        return self._at


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file, as the list of files has it."""

    name: str
    size: int
    checksum: int
    at: int


def _members(path: Path, descriptor: int, size: int) -> dict[str, Member]:
    """All files of an archive, if each of them may be read."""

    def refuse(why: str) -> InvalidArgument:
        return _wrong(path, why)

    offset, length, count = _end(descriptor, size, refuse)
    if count > _MOST_MEMBERS:
        raise refuse(f"it has more than {_MOST_MEMBERS} files")
    damaged = refuse("it is no package: its list of files is damaged")
    if length > _MOST_DIRECTORY_BYTES:
        raise damaged
    listed = io.BytesIO(_read(descriptor, offset, length))
    entries = [_entry(listed, damaged, refuse) for _ in range(count)]
    if listed.read(1):
        raise damaged
    members: dict[str, Member] = {}
    behind = 0
    # In the order in which they lie, so that each must begin behind the one before.
    for entry in sorted(entries, key=lambda entry: entry.at):
        name = entry.name
        if entry.at < behind:
            raise refuse(f"member {_shown(name)} overlaps another one")
        start = _data(descriptor, entry, offset)
        if start is None:
            raise refuse(f"member {_shown(name)} does not lie where the list of files says")
        behind = start + entry.size
        if name.endswith("/"):
            continue
        member = Member(path / name, descriptor, start, entry.size)
        if _checksum(member) != entry.checksum:
            raise refuse(f"member {_shown(name)} is damaged: its bytes do not have their checksum")
        if name in members:
            raise refuse(f"member {_shown(name)} comes twice")
        members[name] = member
    if CONFIG not in members:
        raise refuse(f"it is no package: there is no {CONFIG} in it")
    return members


def _end(descriptor: int, size: int, refuse: Any) -> tuple[int, int, int]:
    """Where the list of files is, how long, and how many they are."""
    other = refuse("it is no package: it does not end as a zip archive without a comment")
    at = size - _END.size
    if at < 0:
        raise other
    magic, disk, other_disk, here, count, length, offset, comment = _END.unpack(_read(descriptor, at, _END.size))
    if (magic, disk, other_disk, here, comment) != (0x06054B50, 0, 0, count, 0):
        raise other
    if count == _ELSEWHERE16 or _ELSEWHERE32 in (length, offset):
        at -= _END64.size + _LOCATOR64.size
        if at < 0:
            raise other
        wide = _read(descriptor, at, _END64.size + _LOCATOR64.size)
        magic, rest, disk, other_disk, here, count, length, offset = _END64.unpack(wide[: _END64.size])
        if (magic, rest, disk, other_disk, here) != (0x06064B50, _END64.size - 12, 0, 0, count):
            raise other
        if _LOCATOR64.unpack(wide[_END64.size :]) != (0x07064B50, 0, at, 1):
            raise other
    # Nothing stands between the list and the end, and what is in front of the archive is part of it.
    if offset + length != at:
        raise refuse("it is no package: bytes stand in front of the archive, or it was cut off")
    return offset, length, count


def _entry(listed: io.BytesIO, damaged: InvalidArgument, refuse: Any) -> _Entry:
    """Reads the next of the list of files, if it may be read."""

    def take(size: int) -> bytes:
        taken = listed.read(size)
        if len(taken) != size:
            raise damaged
        return taken

    magic, flags, method, checksum, packed, size, *lengths, disk, attributes, at = _ENTRY.unpack(take(_ENTRY.size))
    if magic != 0x02014B50:
        raise damaged
    raw, extra, _ = (take(length) for length in lengths)
    name = raw.decode(errors="replace")
    if len(raw) > _MOST_NAME_BYTES or name.encode() != raw or not _is_name(name):
        shown = _shown(raw[:_MOST_NAME_BYTES].decode(errors="replace"))
        raise refuse(f"member {shown} has no name for a file of a package, expected one such as weights/w0.npy")
    kind = stat.S_IFMT(attributes >> 16)
    if kind not in (0, stat.S_IFDIR if name.endswith("/") else stat.S_IFREG):
        raise refuse(f"member {_shown(name)} is a link, or no plain file")
    if flags & _ENCRYPTED:
        raise refuse(f"member {_shown(name)} is encrypted")
    wide = io.BytesIO(_extra64(extra))
    numbers = []
    for number in (size, packed, at):
        if number == _ELSEWHERE32:
            found = wide.read(8)
            if len(found) != 8:
                raise damaged
            number = int.from_bytes(found, "little")
        numbers.append(number)
    size, packed, at = numbers
    if method != 0 or packed != size:
        raise refuse(f"member {_shown(name)} is compressed: packages hold files as they are (zip -0)")
    if disk != 0 or (name.endswith("/") and size != 0):
        raise damaged
    return _Entry(name, size, checksum, at)


def _data(descriptor: int, entry: _Entry, end: int) -> int | None:
    """Where the bytes of a file begin: behind a header that has its name. They end in front of the list of files."""
    name = entry.name.encode()
    behind = entry.at + _LOCAL.size + len(name)
    if behind > end:
        return None
    header = _read(descriptor, entry.at, _LOCAL.size + len(name))
    magic, name_size, extra_size = _LOCAL.unpack(header[: _LOCAL.size])
    if magic != 0x04034B50 or name_size != len(name) or header[_LOCAL.size :] != name:
        return None
    start: int = behind + extra_size
    return start if start + entry.size <= end else None


def _extra64(extra: bytes) -> bytes:
    """The extra field with numbers of 64 bits, if it is there."""
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        content, extra = extra[4 : 4 + size], extra[4 + size :]
        if len(content) != size:
            break
        if kind == 1:
            return content
    return b""


def _checksum(member: Member) -> int:
    checksum = 0
    with member.open() as file:
        while piece := file.read(_PIECE):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def _read(descriptor: int, offset: int, size: int) -> bytes:
    found = os.pread(descriptor, size, offset)
    if len(found) != size:
        raise OSError("it became shorter while it was read")
    return found


def _is_name(name: str) -> bool:
    """Whether a name stays inside of the folder that the package was made of."""
    parts = name.removesuffix("/").split("/")
    return not any(part in ("", ".", "..") or "\\" in part or ":" in part for part in parts) and not any(
        unicodedata.category(character) == "Cc" for character in name
    )


def _shown(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _wrong(path: Path, message: str) -> InvalidArgument:
    return InvalidArgument(f"{path}: {message}")
