"""NumPy's files: the array in one, without reading more of it than its header.

The header is read here, not by NumPy, whose releases differ in what they take for one.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pappus._archive import Member, open_regular
from pappus._arrays import Array, is_plain
from pappus.errors import InvalidArgument

SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY"
# Versions of the format, and how many bytes say how long its header is.
_VERSIONS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_MAX_HEADER_BYTES = 10_000
_MAX_RANK = 32
# An entry of a dictionary as Python writes it.
_ENTRY = re.compile(
    r"""(['"])(?P<key>\w+)\1\s*:\s*"""
    r"""(?:(['"])(?P<text>.*?)\3|(?P<flag>True|False)|\((?P<dims>[^()]*)\)|(?P<fields>\[.*))\s*(?:,\s*|$)"""
)
_DESCR = re.compile(r"[<>=|][biufcV][0-9]+")
_DIMS = re.compile(r"\s*|\s*\d+\s*,\s*|\s*\d+\s*(,\s*\d+\s*)+,?\s*", re.ASCII)


def read(source: Path | Member) -> Array:
    """The array of a file, in the order of bytes and dimensions that it has there."""
    if isinstance(source, Member):
        return _read(source)
    with open_regular(source) as file:
        return _read(Member(source, file.fileno(), 0, os.fstat(file.fileno()).st_size))


def _read(member: Member) -> Array:
    path = member.path
    with member.open() as file:
        try:
            dtype, fortran, shape = _header(file)
        except (ValueError, TypeError) as why:
            raise _wrong(path, f"no .npy file of numbers: {why}") from None
        start = file.tell()
    announced, there = math.prod(shape) * dtype.itemsize, member.size - start
    if announced != there:
        raise _wrong(path, f"its header announces {announced} bytes of data, but there are {there}")
    if not announced:
        return np.empty(shape, dtype)
    # The mapping stays for as long as the array does.
    mapped = mmap.mmap(member.descriptor, 0, prot=mmap.PROT_READ)
    array: Array = np.ndarray(shape, dtype, mapped, member.offset + start, order="F" if fortran else "C")
    return array


def _header(file: BinaryIO) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    start = _take(file, 8)
    if start[:6] != _MAGIC:
        raise ValueError("it does not start with \\x93NUMPY")
    length = _VERSIONS.get((start[6], start[7]))
    if length is None:
        raise ValueError(f"version {start[6]}.{start[7]} of the format, expected 1.0, 2.0 or 3.0")
    size = int.from_bytes(_take(file, length), "little")
    if size > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size} bytes, expected at most {_MAX_HEADER_BYTES}")
    text = _take(file, size).decode("utf8").strip()
    inside = text[1:-1].strip() if text[:1] + text[-1:] == "{}" else ""
    found: dict[str, re.Match[str]] = {}
    at = 0
    while (entry := _ENTRY.match(inside, at)) and entry["key"] not in found:
        found[entry["key"]], at = entry, entry.end()
        if entry["fields"]:
            raise ValueError("elements of several fields, expected plain numbers")
    if found.keys() != {"descr", "fortran_order", "shape"} or at < len(inside):
        raise ValueError("a header that is no dictionary of 'descr', 'fortran_order' and 'shape'")
    descr, flag, dims = found["descr"]["text"], found["fortran_order"]["flag"], found["shape"]["dims"]
    if descr is None or flag is None or dims is None or not _DIMS.fullmatch(dims):
        raise ValueError("a header that is no dictionary of 'descr', 'fortran_order' and 'shape'")
    shape = tuple(int(size) for size in dims.split(",") if size.strip())
    if len(shape) > _MAX_RANK:
        raise ValueError(f"a shape of {len(shape)} dimensions, expected at most {_MAX_RANK}")
    # What ml_dtypes calls E5M2, and NumPy does not read.
    known = "V1" if descr[1:] == "f1" else descr
    dtype = np.dtype(known) if _DESCR.fullmatch(descr) else np.dtype(object)
    if not is_plain(dtype):
        raise ValueError(f"elements of type {descr!r}, expected plain numbers")
    return dtype, flag == "True", shape


def _take(file: BinaryIO, size: int) -> bytes:
    taken = file.read(size)
    if len(taken) != size:
        raise ValueError("it ends in its header")
    return taken


def _wrong(path: Path, message: str) -> InvalidArgument:
    return InvalidArgument(f"{path}: {message}")
