"""Sizes as compilers write them: every form, evaluated at many numbers, is what sympy says."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import CeilDiv, FloorDiv, ModularIndexing

from pappus.package import expressions, sizes
from pappus.package.errors import PackageError

N = sympy.Symbol("n", integer=True, positive=True)
M = sympy.Symbol("m", integer=True, positive=True)
SYMBOLS = {N: sizes.free("n"), M: sizes.free("m")}

FORMS = [
    (N * 64 + 3, "Sum"),
    (-(N // -32), "CeilDiv"),
    (-((N * 49) // -32), "CeilDiv"),
    ((N + 31) // 32, "CeilDiv"),
    (FloorDiv(N + 31, 32) * 4, "Product"),
    (CeilDiv(N * 3, 7), "CeilDiv"),
    (FloorDiv(N, 2), "FloorDiv"),
    (FloorDiv(N * M + 100, 32), "CeilDiv"),
    (sympy.floor(N / 3), "FloorDiv"),
    (sympy.ceiling(N / 3), "CeilDiv"),
    (N + M - 2, "Sub"),
    (FloorDiv(N + 10 - 3, 2) + 1, "Sum"),
    (sympy.Max(N, 5), "Max"),
    (sympy.Min(N, M, 8), "Min"),
    (sympy.Mod(N, 8), "Mod"),
    (ModularIndexing(N, 4, 8), "Mod"),
    (N**2 * M, "Product"),
]


@pytest.mark.parametrize(("expr", "form"), FORMS, ids=str)
def test_a_form_is_what_it_says(expr: sympy.Expr, form: str) -> None:
    size = expressions.to_size(expr, SYMBOLS)
    assert set(size) == {form}
    for n in [2, 3, 31, 32, 33, 100, 1023]:
        for m in (1, 2, 77):
            wanted = int(expr.subs({N: n, M: m}))
            assert sizes.evaluate(size, len, {"n": n, "m": m}) == wanted, (n, m)


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(PackageError, match="no input tells"):
        expressions.to_size(sympy.Symbol("k"), SYMBOLS)
    with pytest.raises(PackageError, match="negative"):
        expressions.to_size(-3, SYMBOLS)
    with pytest.raises(PackageError, match="no form"):
        expressions.to_size(sympy.sqrt(N), SYMBOLS)
