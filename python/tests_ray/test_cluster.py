"""Functions on several nodes: where they run, and what happens when a node is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

import pappus.ray
from fixture import KERNELS, VEC_ADD
from pappus.ray import _catalogue

Until = Callable[[Callable[[], bool]], None]
A = np.arange(6, dtype=np.float32)
# Some milliseconds on a worker: 64 x 64 numbers, that many steps.
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
        return function.submit(eye, b, np.zeros(SIDE, np.float32), steps)

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
    futures = [submit(n, 6000) for n in range(24)]
    for n, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), np.full(SIDE, n, np.float32))
    assert all("jacobi" in node["functions"] for node in cluster.nodes().values())
    assert all(node["in_flight"] == 0 for node in cluster.nodes().values())


def test_errors_are_those_of_the_call(cluster: pappus.ray.Cluster) -> None:
    vec_add = cluster.add_function("vec_add", VEC_ADD)
    with pytest.raises(pappus.InvalidArgument, match=r"f64\[6\] came"):
        vec_add(A, A.astype(float))
    with pytest.raises(pappus.NotFound):
        cluster.function("absent")(A)
    submit = jacobi(cluster)
    del submit
    slow = cluster.function("jacobi").options(deadline=0.02)
    one = np.ones(SIDE, np.float32)
    with pytest.raises(pappus.DeadlineExceeded):
        slow(np.eye(SIDE, dtype=np.float32), one, one, 900_000)
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
    future = submit(1, 900_000)

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


def test_a_node_killed_under_load_loses_no_call_and_doubles_none(machines: Any, nodes: list[Any], until: Until) -> None:
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
            futures.append(submit(number, 4000))
            futures[-1].add_done_callback(count(number))
        doomed = next(id for id in cluster.nodes() if id == victim.node_id)
        wait(futures[:40])
        assert cluster.nodes()[doomed]["in_flight"] > 0
        machines.kill(victim)
        for number, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), np.full(SIDE, number, np.float32))
        assert answered == dict.fromkeys(range(200), 1)
        # Where none of its calls told of its end, Ray does.
        until(lambda: doomed not in cluster.nodes())


def test_an_answer_of_before_a_loss_brings_no_node_back(cluster: pappus.ray.Cluster, nodes: list[Any], until: Until) -> None:
    node = nodes[0].node_id
    until(lambda: node in cluster.nodes())

    async def ask(*, lost_meanwhile: bool) -> bool:
        """Asks a node that a call finds gone before its answer comes, or no call does."""
        place = cluster._places[node]
        actor = place.actor
        health = await actor.health.remote()

        async def answer() -> Any:
            if lost_meanwhile:
                cluster._lose(node, place, with_actor=False)
            return health

        place.actor = SimpleNamespace(health=SimpleNamespace(remote=answer))
        await asyncio.gather(*cluster._asking.values())
        cluster._asking[node] = asyncio.ensure_future(asyncio.sleep(0))
        await cluster._ask(node)
        place.actor = actor
        return cluster._router.nodes[node].up

    assert not cluster._wait(ask(lost_meanwhile=True))
    assert cluster._wait(ask(lost_meanwhile=False))


def installed(cluster: pappus.ray.Cluster, name: str) -> set[str]:
    return {id for id, node in cluster.nodes().items() if name in node["installed"]}


def test_calls_go_where_supervisors_have_the_function_ready(
    cluster: pappus.ray.Cluster, machines: Any, nodes: list[Any], until: Until
) -> None:
    # Somebody else, not through Ray, registered it everywhere, and called it on one node.
    for node in nodes:
        with machines.supervisor(node).connect() as client:
            function = client.add_function("told", VEC_ADD)
            if node is nodes[1]:
                function(A, A)
    ready = {nodes[1].node_id}
    until(lambda: {id for id, node in cluster.nodes().items() if "told" in node["functions"]} == ready)
    until(lambda: len(installed(cluster, "told")) == 3)
    for _ in range(5):
        np.testing.assert_array_equal(cluster.function("told")(A, A), 2 * A)
    assert [bool(client_sees(machines, node, "told")) for node in nodes] == [False, True, False]
    # It moves: calls follow what supervisors say, although this client called it where it was.
    with machines.supervisor(nodes[1]).connect() as client:
        client.remove_function("told")
    with machines.supervisor(nodes[2]).connect() as client:
        client.function("told")(A, A)
    np.testing.assert_array_equal(cluster.function("told")(A, A), 2 * A)
    assert not client_sees(machines, nodes[1], "told")


def client_sees(machines: Any, node: Any, name: str) -> list[str]:
    """Devices of a node on which its supervisor says that a function is ready."""
    with machines.supervisor(node).connect() as client:
        return [device for one in client.functions() if one.name == name for device in one.warm_on]


def test_clients_find_what_others_added(cluster: pappus.ray.Cluster, machines: Any, nodes: list[Any]) -> None:
    with pappus.ray.connect(refresh=0.2) as other:
        ours = cluster.add_function("shared", VEC_ADD)
        # Never called by who added it: the other client installs it.
        np.testing.assert_array_equal(other.function("shared")(A, A), 2 * A)
        theirs = [id for id, node in other.nodes().items() if "shared" in node["functions"]]
        assert len(theirs) == 1
        # Where it is, calls of the first one go, too, as soon as that has heard of it.
        while not installed(cluster, "shared"):
            pass
        np.testing.assert_array_equal(ours(A, A), 2 * A)
        assert installed(cluster, "shared") == set(theirs)
        assert sum(bool(client_sees(machines, node, "shared")) for node in nodes) == 1


def test_a_function_outlives_the_client_that_added_it(cluster: pappus.ray.Cluster) -> None:
    script = (
        "import pappus.ray, ray, sys; ray.init(address=sys.argv[1], log_to_driver=False);"
        "pappus.ray.connect().add_function('bequest', sys.argv[2])"
    )
    address = ray.get_runtime_context().gcs_address
    path = str(KERNELS / "configs/jacobi.json")
    subprocess.run([sys.executable, "-c", script, address, path], check=True, capture_output=True)
    # No node has it, and who added it is gone.
    assert not installed(cluster, "bequest")
    bequest = cluster.function("bequest")
    one = np.ones(SIDE, np.float32)
    eye = np.eye(SIDE, dtype=np.float32)
    futures = [bequest.submit(eye, n * one, one, 6000) for n in range(24)]
    for n, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), n * one)
    # Nor is it bound to the node that was first.
    assert all("bequest" in node["functions"] for node in cluster.nodes().values())


def test_a_catalogue_that_is_lost_is_told_again(cluster: pappus.ray.Cluster, until: Until) -> None:
    cluster.add_function("retold", VEC_ADD)
    with pappus.ray.connect(refresh=0.2) as other:
        name = _catalogue.name(None)
        before, _ = ray.get(_catalogue.find(name).since.remote(0))
        ray.kill(_catalogue.find(name), no_restart=False)

        def told_again() -> bool:
            try:
                life, entries = ray.get(_catalogue.find(name).since.remote(0))
            except ray.exceptions.RayError:
                return False
            return life != before and any(entry.name == "retold" for entry in entries)

        until(told_again)
        np.testing.assert_array_equal(other.function("retold")(A, A), 2 * A)


def test_of_one_name_what_was_added_last_is_called_by_all(cluster: pappus.ray.Cluster, until: Until) -> None:
    with pappus.ray.connect(refresh=0.2) as other:
        first = cluster.add_function("newest", VEC_ADD)
        np.testing.assert_array_equal(first(A, A), 2 * A)
        other.add_function("newest", KERNELS / "configs/jacobi.json")
        # It takes other inputs now.
        one = np.ones(SIDE, np.float32)

        def replaced() -> bool:
            try:
                result = first(np.eye(SIDE, dtype=np.float32), one, one, 2)
            except pappus.Error:
                return False
            return bool((result == one).all())

        until(replaced)
