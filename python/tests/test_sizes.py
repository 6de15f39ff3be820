"""Sizes as blueprints write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pappus._pool import ALIGN, aligned, block_size
from pappus._sizes import Blueprint, Sizes

ONE, THREE, SEVEN = ({"Absolute": n} for n in (1, 3, 7))


def check(size: Any, expected: int | None) -> None:
    config = {"blueprint": {"inputs": ["A"], "buffers": {"B": size, "C": {"Sizeof": "B"}}, "outputs": ["C"]}}
    blueprint = Blueprint(json.dumps(config))
    words = dict.fromkeys(blueprint.words, 5)
    assert Sizes(blueprint, {"A": 10}, words, {"n": 4}).bytes_of("C") == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ({"Absolute": 7}, 7),
        ({"Sizeof": "A"}, 10),
        ({"FromInput": {"bufname": "A", "idx": 0}}, 5),
        ({"Free": "n"}, 4),
        ({"Free": "m"}, None),
        ({"Sum": [ONE, THREE, SEVEN]}, 11),
        ({"Product": [THREE, SEVEN]}, 21),
        ({"Min": [THREE, SEVEN]}, 3),
        ({"Max": [THREE, SEVEN]}, 7),
        ({"CeilDiv": [SEVEN, THREE]}, 3),
        ({"FloorDiv": [SEVEN, THREE]}, 2),
        ({"Mod": [SEVEN, THREE]}, 1),
        ({"Sub": [SEVEN, THREE]}, 4),
        ({"Sub": [THREE, SEVEN]}, None),
        ({"Sub": [SEVEN]}, None),
        ({"Sum": []}, None),
        ({"Sum": [ONE, {"Sub": [ONE, SEVEN]}]}, None),
        ({"Product": [{"Absolute": 1 << 40}] * 2}, None),
        ({"Absolute": 1, "Sizeof": "A"}, None),
        ({"Absolute": "1"}, None),
        ({"Sizeof": ["A"]}, None),
        ({"Sizeof": "D"}, None),
        (7, 7),
        (True, None),
        (-1, None),
        ({"Sum": [1, {"Sizeof": "A"}]}, 11),
        ({"CeilDiv": [{"Free": "n"}, 3]}, 2),
    ],
)
def test_sizes_are_what_they_say(size: Any, expected: int | None) -> None:
    check(size, expected)


def test_short_forms_and_a_byte_order_mark_are_read() -> None:
    types = {"B": {"dtype": "f32", "shape": [2, {"Absolute": 3}, {"Free": "n"}, {"Sizeof": "A"}]}}
    config = {"blueprint": {"inputs": ["A"], "buffers": {"B": 24}, "outputs": ["B"], "types": types}}
    blueprint = Blueprint("\ufeff" + json.dumps(config))
    assert blueprint.dims("B") == [2, 3, "n", None]
    assert Sizes(blueprint, {"A": 10}, {}, {"n": 4}).dims_of("B") == [2, 3, 4, 10]


def test_blocks_waste_little_and_begin_in_cache_lines() -> None:
    for size in [1, 4096, 4097, 12288, 12289, 1 << 20, (1 << 20) + 1, 3_000_000, (5 << 30) + 7]:
        block = block_size(size)
        assert size <= block <= max(4096, size + size // 8 + 4096)
        assert block % 4096 == 0
        assert block_size(block) == block
        assert size <= aligned(size) < size + ALIGN
