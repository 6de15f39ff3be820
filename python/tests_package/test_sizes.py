"""Sizes of blueprints: what is computed at once, and what is left to the call."""

from __future__ import annotations

import pytest

from pappus.package import sizes
from pappus.package.sizes import absolute, sizeof


def test_what_is_known_is_computed() -> None:
    assert sizes.total([absolute(2), absolute(3)]) == absolute(5)
    assert sizes.product([absolute(2), sizeof("x"), absolute(3)]) == {"Product": [sizeof("x"), absolute(6)]}
    assert sizes.product([absolute(0), sizeof("x")]) == absolute(0)
    assert sizes.product([absolute(1), sizeof("x")]) == sizeof("x")
    assert sizes.total([]) == absolute(0)
    assert sizes.ceil_div(absolute(7), absolute(2)) == absolute(4)
    assert sizes.ceil_div(sizeof("x"), absolute(1)) == sizeof("x")
    assert sizes.minimum([absolute(4), sizeof("x"), absolute(2), sizeof("x")]) == {"Min": [sizeof("x"), absolute(2)]}
    nested = sizes.total([sizes.total([sizeof("x"), absolute(1)]), absolute(2)])
    assert nested == {"Sum": [sizeof("x"), absolute(3)]}


def test_forms_of_free_dimensions() -> None:
    n = sizes.free("n")
    assert sizes.difference(n, absolute(0)) == n
    assert sizes.difference(absolute(5), absolute(3)) == absolute(2)
    assert sizes.floor_div(n, absolute(2)) == {"FloorDiv": [n, absolute(2)]}
    assert sizes.modulo(n, absolute(1)) == absolute(0)
    assert sizes.maximum([n, absolute(1), absolute(3)]) == {"Max": [n, absolute(3)]}


def test_they_evaluate_to_what_they_say() -> None:
    n = sizes.free("n")
    size = sizes.total(
        [sizes.product([n, absolute(3)]), sizes.ceil_div(sizeof("x"), absolute(4)), sizes.modulo(n, absolute(4))]
    )
    assert sizes.evaluate(size, {"x": 9}.__getitem__, {"n": 7}) == 21 + 3 + 3
    assert sizes.evaluate(sizes.difference(n, absolute(2)), len, {"n": 7}) == 5
    assert sizes.evaluate({"Max": [n, absolute(9)]}, len, {"n": 7}) == 9
    assert sizes.evaluate({"FloorDiv": [n, absolute(2)]}, len, {"n": 7}) == 3


@pytest.mark.parametrize(
    "size", [{"Sub": [absolute(1), absolute(2)]}, {"CeilDiv": [absolute(1), absolute(0)]}, {"Odd": [1, 2]}]
)
def test_what_is_no_size_is_refused(size: sizes.Size) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        sizes.evaluate(size, len)


def test_a_negative_number_is_no_size() -> None:
    with pytest.raises(ValueError, match="-1 is no size"):
        absolute(-1)
