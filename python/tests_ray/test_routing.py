"""Which node runs a call: decisions, without a cluster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

from pappus.ray._routing import INSTALL_ROUNDS, SPILL_ROUNDS, Router


def router(*capacities: int) -> Router:
    made = Router()
    for at, capacity in enumerate(capacities):
        made.joined(f"n{at}", capacity)
    return made


def holding(made: Router, *names: str, warm: Collection[str] = ()) -> None:
    """Each node's supervisor has these functions; calls find them ready on the nodes in ``warm`` only."""
    for id in made.nodes:
        made.told(id, 0, names, names if id in warm else ())


def test_a_function_stays_where_it_is_until_too_much_waits_there() -> None:
    nodes = router(4, 4)
    holding(nodes, "f")
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


def test_calls_go_where_a_supervisor_says_that_the_function_is_ready() -> None:
    nodes = router(4, 4, 4)
    holding(nodes, "f", warm={"n1"})
    for _ in range(4):
        assert nodes.choose("f") == "n1"
        nodes.ended("n1", "f")
    # It is elsewhere now: what this router knew from its own calls gives way, but for those that are on their way.
    for id in ("n0", "n1", "n2"):
        nodes.asked(id)
    holding(nodes, "f", warm={"n2"})
    assert nodes.choose("f") == "n2"
    assert nodes.choose("f", {"n2"}) in {"n0", "n1"}


def test_a_call_since_the_question_counts_although_the_answer_does_not_know_of_it() -> None:
    nodes = router(4, 4)
    holding(nodes, "f")
    nodes.asked("n0")
    nodes.asked("n1")
    first = nodes.choose("f")
    assert first is not None
    nodes.ended(first, "f")
    holding(nodes, "f")
    assert nodes.nodes[first].is_warm("f")
    # Asked again, it has not answered yet; then it has, and knows better.
    nodes.asked(first)
    assert nodes.nodes[first].is_warm("f")
    holding(nodes, "f")
    assert not nodes.nodes[first].is_warm("f")
    assert nodes.choose("f") == nodes.choose("f")
    first = next(id for id, node in nodes.nodes.items() if node.is_warm("f"))
    # A call that was on its way when the node was asked, and ends behind the answer.
    nodes.asked(first)
    nodes.told(first, 0, ["f"], [])
    nodes.ended(first, "f")
    nodes.ended(first, "f")
    assert nodes.nodes[first].is_warm("f")
    assert nodes.choose("f") == first
    # Nor is a function gone from where a call of it runs, whatever is told.
    nodes.asked(first)
    holding(nodes, "f")
    assert nodes.choose("f") == first


def test_an_answer_that_is_too_old_binds_nothing() -> None:
    nodes = router(1, 1)
    nodes.told("n0", 0, ["f"], ["f"])
    nodes.told("n1", 8, ["f"], [])
    assert nodes.choose("f") == "n0"
    nodes.ended("n0", "f")
    for id in nodes.nodes:
        nodes.asked(id)
        nodes.stale(id)
    # Both have it in equal measure, and take turns.
    assert nodes.choose("f") == "n1"


def test_a_node_that_has_the_function_not_ready_comes_before_one_that_lacks_it() -> None:
    nodes = router(4, 4, 4)
    nodes.told("n0", 0, ["f"], ["f"])
    nodes.told("n1", 0, ["f"], [])
    chosen = [nodes.choose("f") for _ in range(40)]
    assert chosen.index("n1") < chosen.index("n2")
    assert INSTALL_ROUNDS > SPILL_ROUNDS > 0


def test_a_function_that_the_client_cannot_install_goes_only_where_it_is() -> None:
    nodes = router(1, 1, 1)
    nodes.told("n1", 50, ["f"], [])
    assert nodes.holds("f")
    assert [nodes.choose("f", installed=True) for _ in range(20)] == ["n1"] * 20
    # Where that is full, no other one will do; where it is gone, any may be asked.
    assert nodes.choose("f", {"n1"}, installed=True) is None
    nodes.lacks("n1", "f")
    assert not nodes.holds("f")
    assert nodes.choose("f", {"n1"}, installed=True) in {"n0", "n2"}
    nodes.told("n1", 0, ["f"], ["f"])
    nodes.away("n1")
    assert not nodes.holds("f")


def test_functions_spread_over_nodes() -> None:
    nodes = router(1, 1, 1)
    chosen = []
    for name in ("f", "g", "h"):
        chosen.append(nodes.choose(name))
        nodes.ended(str(chosen[-1]), name)
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
    nodes.ended("n1", "f")


def test_larger_nodes_get_more_and_busy_ones_less() -> None:
    nodes = router(1, 3)
    for _ in range(400):
        nodes.choose("f")
    assert abs(nodes.nodes["n0"].in_flight - 100) <= 2
    nodes.told("n1", 300, ["f"], ["f"])
    for _ in range(100):
        nodes.choose("f")
    assert nodes.nodes["n0"].in_flight >= 190


def test_whatever_happens_a_call_goes_to_a_node_that_is_up_and_counts_are_right() -> None:
    chance = random.Random(5)
    nodes = Router()
    flying: list[tuple[str, str]] = []
    for _ in range(20_000):
        name = f"n{chance.randrange(5)}"
        some = [f"f{n}" for n in range(3) if chance.random() < 0.5]
        match chance.randrange(8):
            case 0:
                nodes.joined(name, chance.randrange(4))
            case 1:
                nodes.away(name)
            case 2 if chance.random() < 0.2:
                nodes.left(name)
                flying = [one for one in flying if one[0] != name]
            case 3 if flying:
                nodes.ended(*flying.pop(chance.randrange(len(flying))))
            case 4:
                nodes.told(name, chance.randrange(5) - 2, some, some[:1])
            case 5:
                chance.choice((nodes.asked, nodes.stale))(name)
            case _:
                function = f"f{chance.randrange(3)}"
                chosen = nodes.choose(function, installed=chance.random() < 0.5)
                up = [node.id for node in nodes.nodes.values() if node.up]
                assert (chosen in up) if up else chosen is None
                if chosen is not None:
                    flying.append((chosen, function))
        for node in nodes.nodes.values():
            assert node.calls == Counter(function for id, function in flying if id == node.id)
            assert node.others >= 0
