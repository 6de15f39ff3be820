"""From the symbolic sizes of compilers (sympy) to sizes of the blueprint.

Blueprints know no negative numbers and check each intermediate result, so sums are sorted into what is added and what is taken
away, and rounding is recognised: ``floor((n + 31) / 32)`` and ``-floor(-n / 32)`` are both ``CeilDiv(n, 32)``.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from . import sizes
from .errors import PackageError
from .sizes import Size


def to_size(expression: object, symbols: Mapping[sympy.Symbol, Size]) -> Size:
    """The size that an expression (or a number) is; ``symbols`` says what its symbols are."""
    expr = sympy.sympify(expression)
    if expr.is_Integer:
        if expr < 0:
            raise PackageError(f"a size is negative: {expr}")
        return sizes.absolute(int(expr))
    if expr.is_Symbol:
        if expr not in symbols:
            raise PackageError(f"a size depends on {expr}, which no input tells")
        return symbols[expr]

    def each() -> list[Size]:
        return [to_size(argument, symbols) for argument in expr.args]

    name = type(expr).__name__
    if expr.is_Add:
        return _sum(expr, symbols)
    if expr.is_Mul:
        return _product(expr, symbols)
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        return sizes.product([to_size(expr.base, symbols)] * int(expr.exp))
    if name in ("FloorDiv", "CleanDiv"):
        a, b = expr.args
        return _floor_div(a, b, symbols)
    if name in ("CeilDiv", "CeilToInt") and len(expr.args) == 2:
        return sizes.ceil_div(*each())
    if name == "floor":
        numerator, denominator = _fraction(expr.args[0])
        return _floor_div(numerator, denominator, symbols)
    if name == "ceiling":
        numerator, denominator = _fraction(expr.args[0])
        return sizes.ceil_div(to_size(numerator, symbols), to_size(denominator, symbols))
    if name in ("Mod", "PythonMod"):
        return sizes.modulo(*each())
    if name == "ModularIndexing":
        value, divisor, modulus = expr.args
        return sizes.modulo(_floor_div(value, divisor, symbols), to_size(modulus, symbols))
    if name in ("Max", "LazyMax"):
        return sizes.maximum(each())
    if name in ("Min", "LazyMin"):
        return sizes.minimum(each())
    if name in ("Identity", "IntTrueDiv") and len(expr.args) == 1:
        return each()[0]
    raise PackageError(f"a size of this kind has no form in a blueprint: {expr} ({name})")


def _sum(expr: sympy.Expr, symbols: Mapping[sympy.Symbol, Size]) -> Size:
    negative = [-term for term in expr.args if term.could_extract_minus_sign()]
    positive = [term for term in expr.args if not term.could_extract_minus_sign()]
    added = sizes.total(to_size(term, symbols) for term in positive)
    return sizes.difference(added, sizes.total(to_size(term, symbols) for term in negative))


def _product(expr: sympy.Expr, symbols: Mapping[sympy.Symbol, Size]) -> Size:
    coefficient, rest = expr.as_coeff_Mul()
    if coefficient == -1 and type(rest).__name__ in ("floor", "FloorDiv"):
        # -floor(-a / b) = ceil(a / b)
        a, b = rest.args if type(rest).__name__ == "FloorDiv" else _fraction(rest.args[0])
        return sizes.ceil_div(to_size(-a, symbols), to_size(b, symbols))
    numerator, denominator = _fraction(expr)
    if denominator != 1:
        # Divisions that compilers write without rounding leave no remainder.
        return sizes.ceil_div(to_size(numerator, symbols), to_size(denominator, symbols))
    if coefficient < 0:
        raise PackageError(f"a size is negative: {expr}")
    return sizes.product(to_size(factor, symbols) for factor in expr.args)


def _floor_div(a: sympy.Expr, b: sympy.Expr, symbols: Mapping[sympy.Symbol, Size]) -> Size:
    # Both may come negated: a // -b as compilers write to round up.
    if b.could_extract_minus_sign():
        a, b = -a, -b
    # floor((a + b - 1) / b) = ceil(a / b)
    rounded_up = sympy.expand(a - (b - 1))
    if not rounded_up.could_extract_minus_sign() and not _subtracts(rounded_up):
        return sizes.ceil_div(to_size(rounded_up, symbols), to_size(b, symbols))
    if (a / b).is_integer:
        return sizes.ceil_div(to_size(a, symbols), to_size(b, symbols))
    return sizes.floor_div(to_size(a, symbols), to_size(b, symbols))


def _subtracts(expr: sympy.Expr) -> bool:
    return any(term.could_extract_minus_sign() for term in sympy.Add.make_args(expr))


def _fraction(expr: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    numerator, denominator = sympy.fraction(sympy.together(expr))
    return numerator, denominator
