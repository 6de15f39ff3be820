"""Free dimensions of a model's inputs: what the author calls them, their bounds, and how a call tells them.

``torch.export`` names them by symbols of its own, and promises the compiler that they stay within bounds. A call that does not
is refused by the supervisor, since the kernels were made for what was promised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from . import expressions, sizes
from .errors import Unsupported
from .sizes import Size


@dataclass
class Dimensions:
    """Of each symbol the author's name, and the least and the largest number where there is one."""

    names: dict[sympy.Symbol, str] = field(default_factory=dict)
    bounds: dict[sympy.Symbol, tuple[int | None, int | None]] = field(default_factory=dict)

    def name(self, symbol: sympy.Symbol) -> str:
        """What a blueprint calls it."""
        return self.names.get(symbol, str(symbol))


def read(program: Any, dynamic_shapes: Any) -> Dimensions:
    """Names and bounds of an exported program's free dimensions; one without a name is called by its place, as ``x_0``."""
    from torch.export.graph_signature import InputKind

    found = Dimensions()
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    inputs = {
        spec.arg.name: node.meta["val"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
        if spec.kind == InputKind.USER_INPUT and hasattr(node.meta.get("val"), "shape")
    }
    for value, shape in zip(inputs.values(), _shapes(dynamic_shapes, list(inputs)), strict=False):
        for at, called in _named(shape):
            for symbol in _symbols(value.shape[at]) if at < len(value.shape) else ():
                if called not in found.names.values():
                    found.names.setdefault(symbol, called)
    for name, value in inputs.items():
        for at, size in enumerate(value.shape):
            for symbol in _symbols(size):
                found.names.setdefault(symbol, f"{name}_{at}")
    for symbol, allowed in program.range_constraints.items():
        least, most = (_number(bound) for bound in (allowed.lower, allowed.upper))
        found.bounds[symbol] = (least, most)
    return found


def _symbols(size: Any) -> set[sympy.Symbol]:
    return set(size.node.expr.free_symbols) if hasattr(size, "node") else set()


def _number(bound: Any) -> int | None:
    expr = sympy.sympify(bound)
    return int(expr) if expr.is_Integer and 0 <= expr < 2**62 else None


def _shapes(dynamic_shapes: Any, inputs: list[str]) -> list[Any]:
    """What the author said of each input, in their order."""
    import torch

    def is_shape(node: Any) -> bool:
        if isinstance(node, list | tuple):
            return not any(isinstance(one, dict | list | tuple) for one in node)
        return not isinstance(node, dict) or all(isinstance(key, int) for key in node)

    if isinstance(dynamic_shapes, dict) and set(dynamic_shapes) <= set(inputs):
        return [dynamic_shapes.get(name) for name in inputs]
    shapes, _ = torch.utils._pytree.tree_flatten(dynamic_shapes, is_leaf=is_shape)
    return list(shapes)


def _named(shape: Any) -> Iterator[tuple[int, str]]:
    pairs = shape.items() if isinstance(shape, dict) else enumerate(shape or ())
    for at, dim in pairs:
        root = getattr(dim, "root", dim)
        name = getattr(root, "__name__", None)
        if isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name, re.A):
            yield at, name


def told(arrays: Mapping[str, tuple[list[Any], int]], free: Dimensions) -> dict[sympy.Symbol, Size]:
    """What each symbol is: a free dimension of the blueprint where an input has it as it is, else computed from bytes.

    ``arrays`` are shape and bytes of an element by input. A dimension ``2 * n`` tells ``n``, too. Raises
    :class:`Unsupported` where no input has a dimension that tells a symbol by itself.
    """
    shapes = {name: ([sympy.sympify(size) for size in shape], item) for name, (shape, item) in arrays.items()}
    every = [size for shape, _ in shapes.values() for size in shape]
    found = {size: sizes.free(free.name(size)) for size in every if size.is_Symbol}
    while _by_bytes(shapes, found):
        pass
    for name, (shape, _) in shapes.items():
        for at, size in enumerate(shape):
            for symbol in size.free_symbols - found.keys():
                shown = size.subs({one: sympy.Symbol(free.name(one)) for one in size.free_symbols})
                why = (
                    f"no input has {free.name(symbol)} itself as a dimension, and this one is not the only free one of {name!r}"
                )
                raise Unsupported(f"dimension {at} of input {name!r}, {shown}", why)
    return found


def _by_bytes(shapes: Mapping[str, tuple[list[sympy.Expr], int]], found: dict[sympy.Symbol, Size]) -> bool:
    """Finds one symbol that the bytes of an input tell; whether there was one."""
    for name, (shape, item) in shapes.items():
        unknown = [size for size in shape if size.free_symbols - found.keys()]
        if len(unknown) != 1 or len(unknown[0].free_symbols) != 1:
            continue
        (symbol,) = unknown[0].free_symbols
        others = [expressions.to_size(size, found) for size in shape if size is not unknown[0]]
        rows = sizes.ceil_div(sizes.sizeof(name), sizes.product([*others, sizes.absolute(item)]))
        solved = _solved(unknown[0], symbol, rows)
        if solved is not None:
            found[symbol] = solved
            return True
    return False


def _solved(expr: sympy.Expr, symbol: sympy.Symbol, value: Size) -> Size | None:
    """The symbol, where ``expr`` is a whole multiple of it, more or less: a remainder shows in the shape that is declared."""
    try:
        factor, rest = sympy.Poly(expr, symbol).all_coeffs()
    except (sympy.PolynomialError, ValueError):
        return None
    if not (factor.is_Integer and factor > 0 and rest.is_Integer):
        return None
    moved = (
        sizes.difference(value, sizes.absolute(int(rest))) if rest >= 0 else sizes.total([value, sizes.absolute(int(-rest))])
    )
    return sizes.floor_div(moved, sizes.absolute(int(factor)))


def guards(symbols: Mapping[sympy.Symbol, Size], free: Dimensions) -> dict[str, Size]:
    """Sizes that are 0 where a dimension is within its bounds, and have no value elsewhere, by what they say."""
    made: dict[str, Size] = {}
    for symbol, size in symbols.items():
        least, most = free.bounds.get(symbol, (None, None))
        name = free.name(symbol)
        if most is not None:
            made[f"{name}_is_at_most_{most}"] = _zero(sizes.difference(sizes.absolute(most), size))
        if least is not None and least > 0:
            made[f"{name}_is_at_least_{least}"] = _zero(sizes.difference(size, sizes.absolute(least)))
    return made


def _zero(size: Size) -> Size:
    return sizes.minimum([size, sizes.absolute(0)])
