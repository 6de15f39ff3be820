"""Which node runs a call: decisions, without a cluster."""

from __future__ import annotations

import random

from pappus.ray._routing import SPILL_ROUNDS, Router


def router(*capacities: int) -> Router:
    made = Router()
    for at, capacity in enumerate(capacities):
        made.joined(f"n{at}", capacity)
    return made


def test_a_function_stays_where_it_is_until_too_much_waits_there() -> None:
    nodes = router(4, 4)
    first = nodes.choose("f")
    assert [nodes.choose("f") for _ in range(4)] == [first] * 4
    # Now a round more is on its way there than to the other node.
    other = nodes.choose("f")
    assert other not in (None, first)
    # From here on both have it, and share.
    for _ in range(100):
        nodes.choose("f")
    loads = sorted(node.load() for node in nodes.nodes.values())
    assert loads[1] - loads[0] <= SPILL_ROUNDS


def test_functions_spread_over_nodes() -> None:
    nodes = router(1, 1, 1)
    chosen = []
    for name in ("f", "g", "h"):
        chosen.append(nodes.choose(name))
        nodes.ended(str(chosen[-1]))
    assert len(set(chosen)) == 3
    assert [nodes.choose(name) for name in ("f", "g", "h")] == chosen


def test_nodes_that_are_away_or_avoided_get_nothing() -> None:
    nodes = router(1, 1)
    assert nodes.choose("f", {"n0"}) == "n1"
    nodes.away("n1")
    assert nodes.choose("f") == "n0"
    nodes.away("n0")
    assert nodes.choose("f") is None
    nodes.joined("n1", 2)
    assert nodes.choose("f") == "n1"
    nodes.left("n1")
    assert nodes.choose("f") is None
    nodes.ended("n1")


def test_larger_nodes_get_more_and_busy_ones_less() -> None:
    nodes = router(1, 3)
    for _ in range(400):
        nodes.choose("f")
    assert abs(nodes.nodes["n0"].in_flight - 100) <= 2
    nodes.counted("n1", 300)
    for _ in range(100):
        nodes.choose("f")
    assert nodes.nodes["n0"].in_flight >= 190


def test_whatever_happens_a_call_goes_to_a_node_that_is_up_and_counts_are_right() -> None:
    chance = random.Random(5)
    nodes = Router()
    flying: list[str] = []
    for _ in range(20_000):
        name = f"n{chance.randrange(5)}"
        match chance.randrange(6):
            case 0:
                nodes.joined(name, chance.randrange(4))
            case 1:
                nodes.away(name)
            case 2 if chance.random() < 0.2:
                nodes.left(name)
                flying = [one for one in flying if one != name]
            case 3 if flying:
                nodes.ended(flying.pop(chance.randrange(len(flying))))
            case _:
                chosen = nodes.choose(f"f{chance.randrange(3)}")
                up = [node.id for node in nodes.nodes.values() if node.up]
                assert (chosen in up) if up else chosen is None
                if chosen is not None:
                    flying.append(chosen)
        for node in nodes.nodes.values():
            assert node.in_flight == flying.count(node.id)
