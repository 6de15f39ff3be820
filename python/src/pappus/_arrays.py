"""Element types, and what can be passed as an array: NumPy, buffers, DLPack (PyTorch, JAX, CuPy), numbers."""

from __future__ import annotations

import sys
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from pappus.errors import InvalidArgument, Unsupported

Array = npt.NDArray[Any]

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
_CPU = 1


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's type for one of Pappus's.

    >>> dtype_of("f32")
    dtype('float32')
    """
    try:
        return _NUMPY[name]
    except KeyError:
        if name == "bf16":
            return _bf16()
        raise InvalidArgument(f"an element type {name!r}, expected one of {', '.join([*_NUMPY, 'bf16'])}") from None


def name_of(dtype: np.dtype[Any]) -> str:
    """Pappus's name of an element type; NumPy's, where it has none."""
    dtype = dtype.newbyteorder("<")
    return _NAMES.get(dtype) or ("bf16" if dtype.name == "bfloat16" else dtype.str)


def as_dtype(given: npt.DTypeLike | str) -> np.dtype[Any]:
    """A type as a caller gives it: Pappus's name of it, or anything that NumPy takes."""
    if isinstance(given, str) and (given in _NUMPY or given == "bf16"):
        return dtype_of(given)
    dtype: np.dtype[Any] = np.dtype(given)
    if dtype.hasobject or dtype.fields is not None or dtype.kind not in "biufcV":
        raise InvalidArgument(f"an element type {dtype}, expected one of numbers")
    little: np.dtype[Any] = dtype.newbyteorder("<")
    return little


def as_array(value: object, dtype: np.dtype[Any] | None) -> Array:
    """Anything that holds an array in the host's memory, without a copy where it lies there; numbers become ``dtype``."""
    if isinstance(value, np.ndarray):
        array: Array = value
    elif isinstance(value, bytes | bytearray):
        # Bytes of no type: those that are expected.
        array = _from_bytes(value, BYTES if dtype is None else dtype)
    elif isinstance(value, int | float | bool | list | tuple | np.generic):
        array = _numbers(value, dtype)
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        array = _from_torch(value, torch)
    elif hasattr(value, "__dlpack_device__"):
        array = _from_dlpack(value)
    else:
        # The buffer protocol, __array_interface__, __array__.
        array = np.asarray(value)
    if array.dtype.kind not in "biufcV" or array.dtype.hasobject or array.dtype.fields is not None:
        raise InvalidArgument(
            f"elements of {array.dtype} ({type(value).__name__}): expected plain numbers, as an array or in a buffer"
        )
    return array


def check_dtype(what: str, array: Array, dtype: np.dtype[Any]) -> None:
    """Refuses an array of another type than is expected, but for the order of bytes, which a copy changes."""
    if array.dtype != dtype and array.dtype.newbyteorder("<") != dtype:
        raise InvalidArgument(
            f"elements of {name_of(array.dtype)} came, {name_of(dtype)} is expected: convert them with .astype",
            place=what,
        )


def _from_bytes(value: bytes | bytearray, dtype: np.dtype[Any]) -> Array:
    if len(value) % dtype.itemsize:
        raise InvalidArgument(f"{len(value)} bytes are no whole elements of {name_of(dtype)}")
    return np.frombuffer(value, dtype)


def _numbers(value: Any, dtype: np.dtype[Any] | None) -> Array:
    try:
        exact = np.asarray(value)
        if dtype is None or exact.dtype == dtype:
            return exact
        array = exact.astype(dtype)
        # Numbers as people write them: 1 for 1.0, and no others.
        if exact.dtype.kind in "biu" and not np.array_equal(array.astype(exact.dtype), exact):
            raise OverflowError(f"{value!r} is no {name_of(dtype)}")
        if exact.dtype.kind in "fc" and dtype.kind in "biu":
            raise OverflowError(f"{value!r} is no {name_of(dtype)}")
    except (ValueError, TypeError, OverflowError) as why:
        raise InvalidArgument(f"{value!r} does not become an array: {why}") from None
    return array


def _from_torch(tensor: Any, torch: Any) -> Array:
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        # No device memory crosses the socket.
        tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(_bf16())
    array: Array = tensor.numpy()
    return array


def _from_dlpack(value: Any) -> Array:
    kind, _ = value.__dlpack_device__()
    if kind != _CPU:
        raise InvalidArgument(
            f"a {type(value).__name__} in the memory of a device (DLPack's kind {int(kind)}): copy it to the host first"
        )
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        # DLPack has the type and NumPy does not: its own conversion yields ml_dtypes'.
        return np.asarray(value)
    try:
        array: Array = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as why:
        raise InvalidArgument(f"a {type(value).__name__} that NumPy does not take: {why}") from None
    return array


def _bf16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise Unsupported("arrays of bf16 need the package ml_dtypes: pip install 'pappus[bf16]'") from None
    bf16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bf16


def shape_of(given: SupportsIndex | tuple[SupportsIndex, ...]) -> tuple[int, ...]:
    """A shape as NumPy takes it."""
    if isinstance(given, tuple | list):
        return tuple(int(size) for size in given)
    return (int(given),)
