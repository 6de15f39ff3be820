"""Numbers and lists of numbers as arrays, if no value is lost: what people write where no array is at hand.

``1`` becomes ``1.0``, and a fraction is rounded to the next number of the type. Everything else that a conversion
changes is refused: ``1.5`` for integers, ``1e300`` for ``f32``, ``1+2j``, ``None``, text, dates, masked elements.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pappus.errors import InvalidArgument

# Lists inside lists that are looked at for masks. NumPy has fewer dimensions.
_MAX_DEPTH = 64
_BRIEF = 200
_TOO_LARGE = "objects, or numbers of more than 64 bits"
_KINDS = {"O": _TOO_LARGE, "U": "text", "S": "text", "M": "dates", "m": "durations", "V": "bytes"}

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = _short.maxfrozenset = 4
_short.maxlevel = 3
_short.maxstring = _short.maxlong = _short.maxother = 60


def shown(value: object) -> str:
    """A value in a message, however large it is."""
    try:
        return _short.repr(value)
    except ValueError:
        # Python writes no numbers of thousands of digits.
        return f"a large {type(value).__name__}"


def brief(what: object) -> str:
    """What another library says of a value, which may contain the value."""
    text = str(what)
    return text if len(text) <= _BRIEF else text[:_BRIEF] + "…"


def numbers(value: Any, dtype: np.dtype[Any] | None, name: str) -> npt.NDArray[Any]:
    """Numbers as elements of ``dtype``, which is called ``name``; without one, of the type that NumPy gives them."""
    if _is_masked(value, 0):
        raise InvalidArgument(f"{shown(value)} has masked elements: say what stands in their place, with .filled(number)")
    try:
        exact = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as why:
        raise InvalidArgument(f"{shown(value)} does not become an array: {brief(why)}") from None
    if exact.dtype.kind not in "biufc" and exact.dtype != dtype:
        raise InvalidArgument(f"{shown(value)} has {_KINDS[exact.dtype.kind]}, expected {name}")
    if dtype is not None and exact.dtype.kind in "fc" and dtype.kind not in "biu":
        # Beside fractions, NumPy rounds whole numbers before anybody sees them.
        for whole in _wholes(value, 0):
            if complex(dtype.type(float(whole) if dtype.isbuiltin == 2 else whole)).real != whole:
                raise InvalidArgument(f"{shown(whole)} is no {name}: in {shown(value)}")
    if dtype is None or exact.dtype == dtype:
        return exact
    with np.errstate(all="ignore"):
        array, lost = _converted(exact, dtype)
    if lost.any():
        raise InvalidArgument(f"{exact[lost].flat[0]} is no {name}: in {shown(value)}")
    return array


def _converted(exact: npt.NDArray[Any], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The numbers as another type, and which of them are lost by it."""
    if (exact.dtype.kind == "c" and dtype.kind != "c") or (exact.dtype.kind in "fc" and dtype.kind in "biu"):
        return exact, np.ones(exact.shape, bool)
    # ml_dtypes rounds to its own types, which are none of NumPy's, by way of f32.
    twice = dtype.isbuiltin == 2 and exact.dtype.kind == "f" and exact.itemsize > 4
    array = (_odd(exact) if twice else exact).astype(dtype)
    if exact.dtype.kind in "biu":
        back = array.real if dtype.kind == "c" else array
        lost = (back.astype(exact.dtype) != exact) | ((back < 0) != (exact < 0))
        if dtype.kind not in "biu":
            # The largest round up to what comes back as anything.
            floats = np.asarray(back, np.float64)
            lost |= ~np.isfinite(floats) | (floats >= 2.0 ** (exact.dtype.itemsize * 8 - (exact.dtype.kind == "i")))
        return array, lost
    parts = [(exact.real, array.real), (exact.imag, array.imag)] if exact.dtype.kind == "c" else [(exact, array)]
    lost = np.zeros(exact.shape, bool)
    for before, after in parts:
        kept = np.asarray(after.real, np.float64)
        # Some types have no infinity.
        lost |= (np.isfinite(before) & ~np.isfinite(kept)) | (np.isinf(before) & np.isnan(kept)) | ((before != 0) & (kept == 0))
    return array, lost


def _odd(exact: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Fractions as ``f32``, rounded so that rounding them once more gives what rounding them once would.

    The last bit of whatever is not exact is one (Boldo and Melquiond, "When double rounding is odd", 2005).
    """
    near = exact.astype(np.float32)
    even = near.view(np.uint32) & 1 == 0
    beside = np.nextafter(near, np.where(exact > near, np.inf, -np.inf).astype(np.float32))
    odd: npt.NDArray[Any] = np.where(even & (near != exact) & ~np.isnan(exact), beside, near)
    return odd


def _wholes(value: object, depth: int) -> Iterator[int]:
    """Whole numbers in lists, and in lists within them."""
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        for item in value:
            if type(item) is int:
                yield item
            else:
                yield from _wholes(item, depth + 1)


def _is_masked(value: object, depth: int) -> bool:
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return any(_is_masked(item, depth + 1) for item in value)
    return isinstance(value, np.ma.MaskedArray)
