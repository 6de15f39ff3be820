"""Buffers in one arena: none touches another one's bytes while both live."""

from __future__ import annotations

import random

import pytest

from pappus.package import memory, sizes
from pappus.package.memory import ALIGN_BYTES, Live
from pappus.package.plan import Launch, Plan, Pointer

ONE = (sizes.absolute(1),) * 3


@pytest.mark.parametrize("seed", range(200))
def test_live_buffers_never_overlap(seed: int) -> None:
    chance = random.Random(seed)
    buffers = []
    for at in range(chance.randrange(1, 40)):
        first = chance.randrange(20)
        buffers.append(Live(f"b{at}", chance.randrange(1, 5000), first, first + chance.randrange(6)))
    layout = memory.place(buffers)
    for a in buffers:
        start = layout.offsets[a.name]
        assert start % ALIGN_BYTES == 0
        assert start + a.size <= layout.size
        for b in buffers:
            if a is not b and a.meets(b):
                other = layout.offsets[b.name]
                assert start + a.size <= other or other + b.size <= start
    peak = max(sum(memory.round_up(b.size) for b in buffers if b.first <= t <= b.last) for t in range(26))
    assert peak <= layout.size <= sum(memory.round_up(b.size) for b in buffers)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Live(f"b{at}", 1000, at, at + 1) for at in range(10)]
    assert memory.place(chain).size == 2 * 1024


def step(kernel: str, *buffers: str) -> Launch:
    return Launch(kernel, {f"p{at}": Pointer(name) for at, name in enumerate(buffers)}, ONE)


def test_outputs_and_sizes_of_the_call_stay_their_own() -> None:
    plan = Plan(
        inputs=["x"],
        outputs=["y"],
        buffers={name: sizes.absolute(1000) for name in ("a", "b", "c", "y")} | {"d": sizes.sizeof("x")},
        steps=[step("k", "x", "a"), step("k", "a", "b"), step("k", "b", "c", "d"), step("k", "c", "d", "y")],
    )
    arranged = plan.arranged()
    assert arranged.buffers == {"d": sizes.sizeof("x"), "y": sizes.absolute(1000), "arena": sizes.absolute(2048)}
    pointers = [list(one.arguments.values()) for one in arranged.steps if isinstance(one, Launch)]
    assert pointers[0][0] == Pointer("x")
    used = {pointer.buffer for launch in pointers for pointer in launch if isinstance(pointer, Pointer)}
    assert used == {"x", "arena", "d", "y"}


def test_an_arena_takes_no_name_that_is_taken() -> None:
    plan = Plan(
        inputs=["arena"],
        outputs=["y"],
        buffers={name: sizes.absolute(8) for name in ("a", "b", "y")},
        steps=[step("k", "arena", "a"), step("k", "a", "b"), step("k", "b", "y")],
    )
    assert "arena_2" in plan.arranged().buffers
