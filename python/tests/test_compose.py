"""Compositions written in Python: registered, called, and refused with their places."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import pappus
from fixture import VEC_ADD
from pappus import package


def three_sums() -> package.Composition:
    """``a + b + b + b + b``, and a constant."""
    made = package.compose()
    a, b = made.input("a"), made.input("b")
    sums = made.step("sums", "vec_add", {"A": a, "B": b}, times=3, feed={"C": "A"})
    made.output("sum", made.step("last", "vec_add", {"A": sums["C"], "B": b}))
    made.output("more", made.constant("more", np.array([[1, 2, 3]], np.float16)))
    return made


def test_a_composition_gives_what_its_steps_give(client: pappus.Client, vec_add: object, tmp_path: Path) -> None:
    path = three_sums().save(tmp_path / "sums.json")
    client.add_function("sums", path)
    try:
        a, b = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
        found = client.function("sums")(a=a, b=b)
        np.testing.assert_array_equal(found["sum"], a + 4 * b)
        np.testing.assert_array_equal(found["more"], np.array([[1, 2, 3]], np.float16))
    finally:
        client.remove_function("sums")


def test_steps_of_another_owner_are_called_one_after_the_other(
    house: tuple[pappus.Client, pappus.Client], tmp_path: Path
) -> None:
    acme, globex = house
    acme.add_function("vec_add", VEC_ADD)
    acme.grant("vec_add", "globex")
    made = package.compose()
    a, b = made.input("a"), made.input("b")
    sums = made.step("sums", "acme/vec_add", {"A": a, "B": b}, times=3, feed={"C": "A"})
    made.output("sum", made.step("last", "acme/vec_add", {"A": sums["C"], "B": b}))
    globex.add_function("sums", made.save(tmp_path / "sums.json"))
    try:
        called = globex.function("sums").options(dtypes={"a": "f32", "b": "f32", "sum": "f32"})
        for count in (3, 50_000):
            a_, b_ = np.arange(count, dtype=np.float32), np.full(count, 2, np.float32)
            np.testing.assert_array_equal(called(a=a_, b=b_), a_ + 4 * b_)
    finally:
        globex.remove_function("sums")
        acme.remove_function("vec_add")


def test_what_is_written_is_the_document(tmp_path: Path) -> None:
    made = package.compose()
    made.output("y", made.step("s", "f", {"x": made.input("p")}, each=["x"], items=4))
    wanted = {
        "inputs": ["p"],
        "steps": [{"name": "s", "function": "f", "inputs": {"x": "p"}, "each": {"items": 4, "inputs": ["x"]}}],
        "outputs": {"y": {"step": "s"}},
    }
    assert made.document == wanted
    assert json.loads(made.save(tmp_path / "c.json").read_text()) == wanted
    with pytest.raises(package.PackageError, match="come together"):
        made.step("t", "f", {}, items=2)


def test_mistakes_are_told_with_the_file(client: pappus.Client, vec_add: object, tmp_path: Path) -> None:
    made = three_sums()
    made.output("other", made.step("wrong", "vec_sub", {"A": made.input("c")}))
    path = made.save(tmp_path / "wrong.json")
    with pytest.raises(pappus.InvalidArgument, match=r"wrong\.json:\d+:\d+: at steps\[2\]\.function: there is no function"):
        client.add_function("wrong", path)
