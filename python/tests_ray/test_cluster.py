"""Functions on several nodes: where they run, and what happens when a node is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest

import pappus.ray
from fixture import KERNELS, VEC_ADD

Until = Callable[[Callable[[], bool]], None]
A = np.arange(6, dtype=np.float32)
# Some milliseconds on a worker: 64 x 64 numbers, pairs of steps.
SIDE = 64


@pytest.fixture(scope="module")
def nodes(machines: Any) -> list[Any]:
    return [machines.add(labels={"pool": "a" if at < 2 else "b"}) for at in range(3)]


@pytest.fixture
def cluster(nodes: list[Any]) -> Iterator[pappus.ray.Cluster]:
    with pappus.ray.connect(refresh=0.2) as cluster:
        yield cluster


def jacobi(cluster: pappus.ray.Cluster) -> Callable[[int, int], Any]:
    """Starts a call whose result is its number, after so many steps."""
    function = cluster.add_function("jacobi", KERNELS / "configs/jacobi.json")
    eye = np.eye(SIDE, dtype=np.float32)

    def submit(number: int, steps: int) -> Any:
        b = np.full(SIDE, number, np.float32)
        return function.submit(np.uint64([steps]), eye, b, np.zeros(SIDE, np.float32))

    return submit


def test_a_function_is_registered_once_and_installed_where_it_is_called(cluster: pappus.ray.Cluster) -> None:
    vec_add = cluster.add_function("vec_add", VEC_ADD)
    np.testing.assert_array_equal(vec_add(A, B=2 * A), 3 * A)
    np.testing.assert_array_equal(vec_add([1, 2], [3, 4]), [4, 6])
    where = [node["functions"] for node in cluster.nodes().values()]
    assert sorted(where) == [[], [], ["vec_add"]]


def test_large_arrays_travel_through_the_object_store(cluster: pappus.ray.Cluster) -> None:
    vec_add = cluster.add_function("vec_add", VEC_ADD)
    large = np.arange(500_000, dtype=np.float32)
    futures = [vec_add.submit(large, np.full_like(large, n)) for n in range(4)]
    for n, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), large + n)


def test_calls_spread_when_they_wait(cluster: pappus.ray.Cluster) -> None:
    submit = jacobi(cluster)
    futures = [submit(n, 3000) for n in range(24)]
    for n, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), np.full(SIDE, n, np.float32))
    assert all("jacobi" in node["functions"] for node in cluster.nodes().values())
    assert all(node["in_flight"] == 0 for node in cluster.nodes().values())


def test_errors_are_those_of_the_call(cluster: pappus.ray.Cluster) -> None:
    vec_add = cluster.add_function("vec_add", VEC_ADD)
    with pytest.raises(pappus.InvalidArgument, match="elements of f64 came"):
        vec_add(A, A.astype(float))
    with pytest.raises(pappus.NotFound):
        cluster.function("absent")(A)
    submit = jacobi(cluster)
    del submit
    slow = cluster.function("jacobi").options(deadline=0.02)
    one = np.ones(SIDE, np.float32)
    with pytest.raises(pappus.DeadlineExceeded):
        slow(np.uint64([450_000]), np.eye(SIDE, dtype=np.float32), one, one)
    with pytest.raises(pappus.InvalidArgument, match="no option 'out'"):
        vec_add.options(out=A)


def test_nodes_are_chosen_by_labels(nodes: list[Any]) -> None:
    with pappus.ray.connect(labels={"pool": "a"}) as cluster:
        assert len(cluster.nodes()) == 2
    with pappus.ray.connect(labels={"pool": "c"}, patience=0.1) as cluster:
        assert not cluster.nodes()
        with pytest.raises(pappus.Unavailable, match="no node takes calls"):
            cluster.function("vec_add")(A, A)


def test_a_cancelled_future_cancels_its_call(
    cluster: pappus.ray.Cluster, machines: Any, nodes: list[Any], until: Until
) -> None:
    submit = jacobi(cluster)
    submit(0, 1).result()
    future = submit(1, 450_000)

    def running() -> int:
        found = 0
        for node in nodes:
            with machines.supervisor(node).admin() as admin:
                found += sum(device.running for device in admin.status().devices)
        return found

    until(lambda: running() == 1)
    assert future.cancel()
    until(lambda: all(node["in_flight"] == 0 for node in cluster.nodes().values()))
    # Its worker is replaced when its time to end is over.
    until(lambda: running() == 0)


def test_a_supervisor_that_starts_again_is_used_again(machines: Any, until: Until) -> None:
    node = machines.add(labels={"pool": "again"})
    with pappus.ray.connect(labels={"pool": "again"}, refresh=0.1) as cluster:
        vec_add = cluster.add_function("vec_add", VEC_ADD)
        np.testing.assert_array_equal(vec_add(A, A), 2 * A)
        supervisor = machines.supervisor(node)
        supervisor.kill()
        until(lambda: not cluster.nodes())
        future = vec_add.submit(A, A)
        supervisor.start()
        np.testing.assert_array_equal(future.result(), 2 * A)
    machines.kill(node)


def test_a_node_killed_under_load_loses_no_call_and_doubles_none(machines: Any, nodes: list[Any]) -> None:
    victim = machines.add(labels={"pool": "doomed"})
    with pappus.ray.connect(refresh=0.2) as cluster:
        assert len(cluster.nodes()) == 4
        submit = jacobi(cluster)
        answered: dict[int, int] = {}
        lock = threading.Lock()

        def count(number: int) -> Callable[[Any], None]:
            def ended(future: Any) -> None:
                with lock:
                    answered[number] = answered.get(number, 0) + 1

            return ended

        futures = []
        for number in range(200):
            futures.append(submit(number, 2000))
            futures[-1].add_done_callback(count(number))
        doomed = next(id for id in cluster.nodes() if id == victim.node_id)
        wait(futures[:40])
        assert cluster.nodes()[doomed]["in_flight"] > 0
        machines.kill(victim)
        for number, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), np.full(SIDE, number, np.float32))
        assert answered == dict.fromkeys(range(200), 1)
        assert doomed not in cluster.nodes()
