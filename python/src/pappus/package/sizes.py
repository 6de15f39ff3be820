"""Sizes of the blueprint: numbers that a call computes from what it brings.

A size is the JSON that stands in the blueprint, made by the functions here, which compute what is known already. Forms that
the format knows since free dimensions came are made by the functions of the second half, and only where the first half
has none.

>>> rows = ceil_div(sizeof("x"), absolute(128))
>>> rows
{'CeilDiv': [{'Sizeof': 'x'}, {'Absolute': 128}]}
>>> evaluate(product([rows, absolute(4)]), {"x": 1280}.__getitem__)
40
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Size = dict[str, Any]

MAX_SIZE = 2**64 - 1


def absolute(number: int) -> Size:
    """A number."""
    number = int(number)
    if not 0 <= number <= MAX_SIZE:
        raise ValueError(f"{number} is no size: sizes are 0 to 2^64 - 1")
    return {"Absolute": number}


def sizeof(buffer: str) -> Size:
    """The bytes of a buffer."""
    return {"Sizeof": buffer}


def known(size: Size) -> int | None:
    """The number, where it does not depend on the call."""
    return size.get("Absolute")


def total(sizes: Iterable[Size]) -> Size:
    """The sum."""
    return _fold("Sum", sizes, sum, 0)


def product(sizes: Iterable[Size]) -> Size:
    """The product."""
    sizes = list(sizes)
    if any(known(size) == 0 for size in sizes):
        return absolute(0)
    return _fold("Product", sizes, math.prod, 1)


def ceil_div(a: Size, b: Size) -> Size:
    """``a / b``, rounded up."""
    x, y = known(a), known(b)
    if y == 1:
        return a
    if x is not None and y:
        return absolute(-(-x // y))
    return {"CeilDiv": [a, b]}


def minimum(sizes: Iterable[Size]) -> Size:
    """The smallest."""
    return _extreme("Min", sizes, min)


def _fold(form: str, sizes: Iterable[Size], combine: Callable[[list[int]], int], neutral: int) -> Size:
    numbers: list[int] = []
    others: list[Size] = []
    for size in sizes:
        # A sum of sums is one sum.
        for part in size.get(form, [size]):
            number = known(part)
            if number is None:
                others.append(part)
            else:
                numbers.append(number)
    number = combine(numbers)
    if number != neutral or not others:
        others.append(absolute(number))
    return others[0] if len(others) == 1 else {form: others}


def _extreme(form: str, sizes: Iterable[Size], choose: Callable[[list[int]], int]) -> Size:
    distinct: list[Size] = []
    for size in sizes:
        if size not in distinct:
            distinct.append(size)
    numbers = [number for number in map(known, distinct) if number is not None]
    others = [size for size in distinct if known(size) is None]
    if numbers:
        others.append(absolute(choose(numbers)))
    return others[0] if len(others) == 1 else {form: others}


# What follows needs a supervisor that knows free dimensions.


def difference(a: Size, b: Size) -> Size:
    """``a - b``; a call for which it is negative is refused."""
    x, y = known(a), known(b)
    if y == 0:
        return a
    if x is not None and y is not None:
        return absolute(x - y)
    return {"Sub": [a, b]}


def floor_div(a: Size, b: Size) -> Size:
    """``a / b``, rounded down."""
    x, y = known(a), known(b)
    if y == 1:
        return a
    if x is not None and y:
        return absolute(x // y)
    return {"FloorDiv": [a, b]}


def modulo(a: Size, b: Size) -> Size:
    """The remainder of ``a / b``."""
    x, y = known(a), known(b)
    if y == 1:
        return absolute(0)
    if x is not None and y:
        return absolute(x % y)
    return {"Mod": [a, b]}


def maximum(sizes: Iterable[Size]) -> Size:
    """The largest."""
    return _extreme("Max", sizes, max)


def free(name: str) -> Size:
    """A dimension that the call's arrays decide."""
    return {"Free": name}


def evaluate(size: Size, sizeof: Callable[[str], int], dims: Mapping[str, int] = {}) -> int:
    """The number for one call: ``sizeof`` tells the bytes of a buffer, ``dims`` the free dimensions."""
    ((form, value),) = size.items()
    if form == "Absolute":
        return int(value)
    if form == "Sizeof":
        return sizeof(value)
    if form == "Free":
        return dims[value]
    numbers = [evaluate(part, sizeof, dims) for part in value]
    if form == "Sum":
        result = sum(numbers)
    elif form == "Product":
        result = math.prod(numbers)
    elif form == "Min":
        result = min(numbers)
    elif form == "Max":
        result = max(numbers)
    else:
        a, b = numbers
        if form == "Sub":
            result = a - b
        elif b == 0:
            raise ValueError(f"{form}: division by zero")
        elif form == "CeilDiv":
            result = -(-a // b)
        elif form == "FloorDiv":
            result = a // b
        elif form == "Mod":
            result = a % b
        else:
            raise ValueError(f"{form!r} is no size")
    if not 0 <= result <= MAX_SIZE:
        raise ValueError(f"{form}: {result} is no size")
    return result
