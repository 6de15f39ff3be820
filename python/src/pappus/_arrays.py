"""What an array may be: the one rule for inputs, weights and outputs alike.

- Its elements are plain numbers of a type that devices know, or bytes of no type.
- Where a type is declared, the elements are of that type; another one is refused, with both named.
- Where a shape is declared, the array has that shape; one dimension says only how many elements there are, and bytes
  say only how many bytes.
- Order of bytes and strides are the caller's affair: what is sent is little-endian, one row behind the other.

``client/src/array.rs`` has the same rule, and ``tests/npy/cases.json`` what both make of the same files.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from pappus._extras import install
from pappus._numbers import brief, numbers, shown
from pappus.errors import InvalidArgument, Unsupported

Array = npt.NDArray[Any]

Dims = Sequence[int | str | None]
"""A declared shape: sizes, names of free dimensions, and ``None`` for what a call computes."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "u8": np.dtype("u1"),
    "i8": np.dtype("i1"),
    "u16": np.dtype("<u2"),
    "i16": np.dtype("<i2"),
    "u32": np.dtype("<u4"),
    "i32": np.dtype("<i4"),
    "u64": np.dtype("<u8"),
    "i64": np.dtype("<i8"),
    "f16": np.dtype("<f2"),
    "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
    "bool": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}
BYTES = np.dtype("u1")
# What the package ml_dtypes calls types that NumPy lacks, of whose elements NumPy's files have nothing but the bytes.
_ML_DTYPES = {"bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_THEIRS = {theirs: name for name, theirs in _ML_DTYPES.items()}
# Bytes of an element, by the kind of number; integers and bytes of no type have any.
_WIDTHS = {"f": (2, 4, 8), "c": (8, 16)}
_MAX_WIDTH = 1 << 16
_CPU = 1


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's type for one of Pappus's.

    >>> dtype_of("f32")
    dtype('float32')
    """
    try:
        return _NUMPY[name]
    except KeyError:
        if name in _ML_DTYPES:
            return _of_ml_dtypes(name)
        raise InvalidArgument(f"an element type {shown(name)}, expected one of {', '.join([*_NUMPY, *_ML_DTYPES])}") from None


def bytes_of(name: str) -> np.dtype[Any]:
    """What NumPy's files make of a type that NumPy lacks: elements of so many bytes and no type."""
    return np.dtype("V2" if name == "bf16" else "V1")


def name_of(dtype: np.dtype[Any]) -> str:
    """Pappus's name of an element type; NumPy's, where it has none."""
    dtype = dtype.newbyteorder("<")
    return _NAMES.get(dtype) or _THEIRS.get(dtype.name, dtype.str)


def text_of(dtype: np.dtype[Any], dims: Dims | None = None) -> str:
    """A type and a shape for people, as in ``f32[n,3]``; ``…`` is computed."""
    shape = "" if dims is None else f"[{','.join('…' if dim is None else str(dim) for dim in dims)}]"
    return name_of(dtype) + shape


def as_dtype(given: npt.DTypeLike | str) -> np.dtype[Any]:
    """A type as a caller gives it: Pappus's name of it, or anything that NumPy takes."""
    if isinstance(given, str) and (given in _NUMPY or given in _ML_DTYPES):
        return dtype_of(given)
    try:
        dtype: np.dtype[Any] = np.dtype(given)
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if not is_plain(dtype):
        raise InvalidArgument(f"{shown(given)} is no type of numbers, expected one such as 'f32' or numpy.float32")
    little: np.dtype[Any] = dtype.newbyteorder("<")
    return little


def lies_as_sent(array: Array) -> bool:
    """True if its bytes are what devices take: little-endian, as Linux is, and one row behind the other."""
    return array.flags.c_contiguous and array.dtype.isnative


def as_sent(array: Array) -> Array:
    """The same numbers as devices take them; a copy only where they lie otherwise."""
    return array if lies_as_sent(array) else np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def as_array(value: object, dtype: np.dtype[Any] | None) -> Array:
    """Anything that holds an array in the host's memory, without a copy where it lies there; numbers become ``dtype``."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgument("a masked array: its mask would be lost; say what stands in the holes, with .filled(number)")
    if isinstance(value, np.ndarray):
        array: Array = value
    elif isinstance(value, bytes | bytearray):
        array = _from_bytes(value, BYTES if dtype is None else dtype)
    elif isinstance(value, int | float | complex | list | tuple | range | np.generic):
        array = numbers(value, dtype, "numbers" if dtype is None else name_of(dtype))
    elif value is None or isinstance(value, str):
        raise InvalidArgument(f"{shown(value)} where an array is expected")
    else:
        array = _from_elsewhere(value)
    if not is_plain(array.dtype):
        raise InvalidArgument(
            f"elements of {brief(array.dtype)} ({type(value).__name__}): expected plain numbers, as an array or in a buffer"
        )
    return array


def as_input(place: str, value: object, dtype: np.dtype[Any] | None, dims: Dims | None) -> Array:
    """The same, where elements of ``dtype`` are expected. Bytes become elements of no type, since they have no shape."""
    try:
        if isinstance(value, bytes | bytearray) and dtype is not None:
            return _from_bytes(value, np.dtype(f"V{dtype.itemsize}"))
        array = as_array(value, dtype)
    except InvalidArgument as why:
        why.place = why.place or place
        raise
    if dtype is not None and array.dtype.kind == "V" and dtype.name in _THEIRS and array.dtype == f"V{dtype.itemsize}":
        return array.view(dtype)
    check_type(place, array, dtype, dims)
    return array


def check_type(place: str, array: Array, dtype: np.dtype[Any] | None, dims: Dims | None) -> None:
    """Refuses an array of another type than is declared; the order of its bytes is not looked at."""
    if dtype is not None and array.dtype != dtype and array.dtype.newbyteorder("<") != dtype:
        came = text_of(array.dtype, array.shape)
        raise InvalidArgument(f"{came} came, {text_of(dtype, dims)} is expected: convert it with .astype", place=place)


def is_bytes(array: Array, dtype: np.dtype[Any]) -> bool:
    """True if it was given as bytes where elements of this type are expected."""
    return array.dtype.kind == "V" and array.dtype != dtype


def check_shape(place: str, given: Array | int, dtype: np.dtype[Any], dims: Dims | None) -> None:
    """Refuses an array, or so many bytes, of another shape than is declared, as far as that is known."""
    if isinstance(given, int):
        came, (elements, rest) = f"{given} bytes", divmod(given, dtype.itemsize)
        if rest:
            raise InvalidArgument(f"{came} came, expected a multiple of {dtype.itemsize} ({name_of(dtype)})", place=place)
    else:
        came, elements = text_of(dtype, given.shape), given.size
    if dims is None:
        return
    if isinstance(given, int) or len(dims) < 2:
        sizes = [dim for dim in dims if isinstance(dim, int)]
        fits = len(sizes) < len(dims) or math.prod(sizes) == elements
    else:
        known = zip(dims, given.shape, strict=False)
        fits = len(dims) == given.ndim and all(not isinstance(dim, int) or dim == size for dim, size in known)
    if not fits:
        raise InvalidArgument(f"{came} came, {text_of(dtype, dims)} is expected", place=place)


def is_plain(dtype: np.dtype[Any]) -> bool:
    """True if its elements are numbers that devices know, or bytes of no type."""
    return (
        dtype.kind in "biufcV"
        and not dtype.hasobject
        and dtype.fields is None
        and 0 < dtype.itemsize <= _MAX_WIDTH
        and (dtype.itemsize in _WIDTHS.get(dtype.kind, (dtype.itemsize,)) or dtype.name in _THEIRS)
    )


def _from_bytes(value: bytes | bytearray, dtype: np.dtype[Any]) -> Array:
    if len(value) % dtype.itemsize:
        raise InvalidArgument(f"{len(value)} bytes came, expected a multiple of {dtype.itemsize}")
    return np.frombuffer(value, dtype)


def _from_elsewhere(value: object) -> Array:
    """Arrays of other libraries."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return _from_torch(value, torch)
        if hasattr(value, "__dlpack_device__"):
            return _from_dlpack(value)
        # The buffer protocol, __array_interface__, __array__.
        return np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as why:
        if isinstance(why, InvalidArgument):
            raise
        raise InvalidArgument(f"a {type(value).__name__} that NumPy does not take: {brief(why)}") from None


def _from_torch(tensor: Any, torch: Any) -> Array:
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        # No device memory crosses the socket.
        tensor = tensor.cpu()
    name = _THEIRS.get(str(tensor.dtype).removeprefix("torch."))
    if name is not None:
        bits: Array = tensor.view(torch.int16 if tensor.dtype.itemsize == 2 else torch.uint8).numpy()
        return bits.view(_of_ml_dtypes(name))
    array: Array = tensor.numpy()
    return array


def _from_dlpack(value: Any) -> Array:
    kind, _ = value.__dlpack_device__()
    if kind != _CPU:
        raise InvalidArgument(
            f"a {type(value).__name__} in the memory of a device (DLPack's kind {int(kind)}): copy it to the host first"
        )
    if str(getattr(value, "dtype", "")).endswith(tuple(_THEIRS)):
        # DLPack has the type and NumPy does not: its own conversion yields ml_dtypes'.
        return np.asarray(value)
    array: Array = np.from_dlpack(value)
    return array


def _of_ml_dtypes(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise Unsupported(f"arrays of {name} need the package ml_dtypes: {install('bf16')}") from None
    theirs: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return theirs


def shape_of(given: SupportsIndex | tuple[SupportsIndex, ...]) -> tuple[int, ...]:
    """A shape as NumPy takes it."""
    if isinstance(given, tuple | list):
        return tuple(int(size) for size in given)
    return (int(given),)
