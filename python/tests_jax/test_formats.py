"""Record files and machine code are read as they are written, and what is cut off or strange is refused."""

from __future__ import annotations

import struct

import pytest

from pappus.package import cubin, riegeli
from pappus.package.errors import PackageError

BLOCK = 1 << 16


def varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def snapped(data: bytes) -> bytes:
    """As literals only, which is one of many ways."""
    out = varint(len(data))
    for at in range(0, len(data), 60):
        piece = data[at : at + 60]
        out += bytes([len(piece) - 1 << 2]) + piece
    return varint(len(data)) + out


def file_of(*chunks: tuple[bytes, bytes, int, int]) -> bytes:
    """Chunks of kind, data, records and decoded bytes, with block headers wherever blocks begin."""
    out = bytearray(riegeli.SIGNATURE + bytes(16))
    out += struct.pack("<5Q", 0, 0, 0, ord("s"), 0)
    for kind, data, count, decoded in chunks:
        for byte in struct.pack("<5Q", 0, len(data), 0, kind[0] | count << 8, decoded) + data:
            if len(out) % BLOCK == 0:
                out += bytes(24)
            out.append(byte)
    return bytes(out)


def plain(*records: bytes, compression: bytes = b"\0") -> tuple[bytes, bytes, int, int]:
    lengths, values = b"".join(varint(len(record)) for record in records), b"".join(records)
    if compression == b"s":
        lengths, values = snapped(lengths), snapped(values)
    return b"r", compression + varint(len(lengths)) + lengths + values, len(records), sum(map(len, records))


def test_records_across_blocks() -> None:
    records = [b"first", b"", bytes(range(256)) * 600, b"last"]
    file = file_of(plain(*records[:2]), (b"p", bytes(100), 0, 0), plain(*records[2:]), plain(*records, compression=b"s"))
    assert len(file) > 4 * BLOCK
    assert riegeli.read_records(file) == records + records


def test_what_is_no_file_of_records() -> None:
    file = file_of(plain(b"some", b"records"))
    with pytest.raises(PackageError, match="signature is missing"):
        riegeli.read_records(file[1:])
    with pytest.raises(PackageError, match="ends too early"):
        riegeli.read_records(file[:-1])
    with pytest.raises(PackageError, match="compressed by 'b'"):
        riegeli.read_records(file_of(plain(b"x", compression=b"b")))
    with pytest.raises(PackageError, match="of kind 't'"):
        riegeli.read_records(file_of((b"t", b"", 0, 0)))
    kind, data, count, decoded = plain(b"some")
    with pytest.raises(PackageError, match="announces 5"):
        riegeli.read_records(file_of((kind, data, count, decoded + 1)))


def test_copies_are_decompressed() -> None:
    # "abcd", 6 bytes from 4 back, 5 bytes from 1 back, 4 bytes from 15 back with a long distance.
    packed = varint(19) + b"\x0cabcd" + bytes([2 << 2 | 1, 4]) + bytes([4 << 2 | 2, 1, 0]) + bytes([3 << 2 | 3, 15, 0, 0, 0])
    assert riegeli.unsnap(packed) == b"abcdabcdabbbbbbabcd"
    long = bytes(range(200)) * 2
    assert riegeli.unsnap(varint(400) + bytes([61 << 2]) + struct.pack("<H", 399) + long) == long
    with pytest.raises(PackageError, match="before their start"):
        riegeli.unsnap(varint(8) + b"\x0cabcd" + bytes([0 << 2 | 1, 5]))
    with pytest.raises(PackageError, match="9 are announced"):
        riegeli.unsnap(varint(9) + b"\x0cabcd" + bytes([0 << 2 | 1, 4]))


def elf(name: str, content: bytes) -> bytes:
    """A file with one section."""
    names = b"\0" + name.encode() + b"\0.names\0"
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    start = 64 + len(content) + len(names)
    struct.pack_into("<Q", header, 0x28, start)
    struct.pack_into("<HHH", header, 0x3A, 64, 2, 1)
    sections = struct.pack("<IIQQQQIIQQ", 1, 0, 0, 0, 64, len(content), 0, 0, 0, 0)
    sections += struct.pack("<IIQQQQIIQQ", 2 + len(name), 0, 0, 0, 64 + len(content), len(names), 0, 0, 0, 0)
    return bytes(header) + content + names + sections


def parameter(ordinal: int, offset: int, size: int) -> bytes:
    return struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)


def test_parameters_of_machine_code() -> None:
    info = parameter(1, 112, 128) + struct.pack("<BBH", 3, 0x1B, 255) + parameter(0, 0, 8)
    code = elf(".nv.info.add", info)
    assert cubin.parameters(code, "add") == [(0, 8), (112, 128)]
    with pytest.raises(PackageError, match=r"without a section \.nv\.info\.mul"):
        cubin.parameters(code, "mul")
    with pytest.raises(PackageError, match=r"describes parameters \[1\]"):
        cubin.parameters(elf(".nv.info.add", parameter(1, 8, 8)), "add")
    with pytest.raises(PackageError, match="in a way that is not known here"):
        cubin.parameters(elf(".nv.info.add", bytes(4)), "add")
    with pytest.raises(PackageError, match="no 64-bit ELF"):
        cubin.parameters(b"MZ", "add")
    with pytest.raises(PackageError, match="ends too early"):
        cubin.parameters(code[:70], "add")
