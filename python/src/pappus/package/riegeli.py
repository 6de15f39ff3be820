"""Record files in Riegeli's format, as XLA writes executables: a sequence of byte strings.

A file is chunks; every 64 KiB of it begin with a block header, which may stand in the middle of a chunk. Read is what XLA
writes: chunks of plain records, as they are or compressed with Snappy. Checksums are not looked at: the bytes
come from this process.
"""

from __future__ import annotations

import struct

from .errors import PackageError

# The first block header, and the chunk that every file begins with.
SIGNATURE = bytes.fromhex("83af70d10d884a3f")

_BLOCK = 1 << 16
_BLOCK_HEADER = 24
_CHUNK_HEADER = struct.Struct("<5Q")
_FIRST_CHUNK_END = _BLOCK_HEADER + _CHUNK_HEADER.size
_PLAIN_RECORDS, _PADDING, _METADATA = b"rpm"
_UNCOMPRESSED, _SNAPPY = 0, ord("s")


def read_records(file: bytes) -> list[bytes]:
    """All records, in their order."""
    if not file.startswith(SIGNATURE):
        raise PackageError("no record file: its signature is missing")
    try:
        return _Reader(file).records()
    except (IndexError, struct.error) as error:
        raise PackageError(f"a record file ends too early: {error}") from error


class _Reader:
    def __init__(self, file: bytes) -> None:
        self.file = file
        self.at = _FIRST_CHUNK_END

    def records(self) -> list[bytes]:
        found: list[bytes] = []
        while self.at < len(self.file):
            _, size, _, kind_and_count, decoded = _CHUNK_HEADER.unpack(self.bytes(_CHUNK_HEADER.size))
            kind, count = kind_and_count & 0xFF, kind_and_count >> 8
            data = self.bytes(size)
            if kind == _PLAIN_RECORDS:
                found += _plain_records(data, count, decoded)
            elif kind not in (_PADDING, _METADATA):
                raise PackageError(f"a record file has a chunk of kind {chr(kind)!r}, which is not read here")
        return found

    def bytes(self, size: int) -> bytes:
        """The next bytes without block headers."""
        out = bytearray()
        while len(out) < size:
            if self.at % _BLOCK == 0:
                self.at += _BLOCK_HEADER
            taken = self.file[self.at : min(self.at + size - len(out), (self.at // _BLOCK + 1) * _BLOCK)]
            if not taken:
                raise IndexError(f"{size - len(out)} bytes are missing at {self.at}")
            out += taken
            self.at += len(taken)
        return bytes(out)


def _plain_records(data: bytes, count: int, decoded: int) -> list[bytes]:
    """Lengths and contents, each compressed by itself."""
    compression = data[0]
    length, at = varint(data, 1)
    sizes = _decompressed(data[at : at + length], compression)
    values = _decompressed(data[at + length :], compression)
    lengths, at = [], 0
    while at < len(sizes):
        length, at = varint(sizes, at)
        lengths.append(length)
    if len(lengths) != count or sum(lengths) != len(values) or len(values) != decoded:
        raise PackageError(f"a record file has {len(values)} bytes of records where it announces {decoded}")
    records, at = [], 0
    for length in lengths:
        records.append(values[at : at + length])
        at += length
    return records


def _decompressed(data: bytes, compression: int) -> bytes:
    if compression == _UNCOMPRESSED:
        return data
    if compression != _SNAPPY:
        raise PackageError(f"a record file is compressed by {chr(compression)!r}, which is not read here")
    _, at = varint(data, 0)
    return unsnap(data[at:])


def unsnap(data: bytes) -> bytes:
    """Decompresses Snappy's format without a frame: literals, and copies of what is already there."""
    length, at = varint(data, 0)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            size = tag >> 2
            if size >= 60:
                wide = size - 59
                size = int.from_bytes(data[at : at + wide], "little")
                at += wide
            out += data[at : at + size + 1]
            at += size + 1
            continue
        if tag & 3 == 1:
            size, back = (tag >> 2 & 7) + 4, tag >> 5 << 8 | data[at]
            at += 1
        else:
            wide = 2 if tag & 3 == 2 else 4
            size, back = (tag >> 2) + 1, int.from_bytes(data[at : at + wide], "little")
            at += wide
        start = len(out) - back
        if back == 0 or start < 0:
            raise PackageError("compressed data refer to bytes before their start")
        # A copy may overlap what it makes: then it repeats.
        piece = bytes(out[start : start + size])
        out += (piece * (size // len(piece) + 1))[:size]
    if len(out) != length:
        raise PackageError(f"compressed data have {len(out)} bytes, {length} are announced")
    return bytes(out)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
