"""Clients that outlive a restart of their supervisor, and those that do not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

import pappus
import pappus.aio
from fixture import PATIENCE, VEC_ADD, Supervisor

ONE = np.float32([1, 2])


def sums(client: pappus.Client) -> list[float]:
    """One call."""
    return [float(value) for value in client.function("vec_add")(ONE, ONE)]


@pytest.fixture
def supervisor(start: Callable[..., Supervisor]) -> Supervisor:
    started = start()
    with started.connect() as client:
        client.add_function("vec_add", VEC_ADD)
    return started


def test_a_function_outlives_a_crash_and_a_restart(supervisor: Supervisor) -> None:
    with supervisor.connect(patience=PATIENCE) as client:
        vec_add = client.function("vec_add")
        arena = client.arena(4096)
        shared, out = arena.array(ONE), arena.empty(2)
        for end in (supervisor.kill, supervisor.end):
            assert vec_add(ONE, ONE).tolist() == [2, 4]
            end()
            supervisor.start()
            assert vec_add(ONE, ONE).tolist() == [2, 4]
            # Arrays of an arena that ended are arrays as others are.
            assert vec_add.options(out=out)(shared, shared) is out
            assert out.tolist() == [2, 4]
            assert client.status().devices
        client.close_arena(arena)
        assert vec_add(ONE, ONE).tolist() == [2, 4]
    with pytest.raises(pappus.ConnectionLost):
        vec_add(ONE, ONE)


def test_calls_go_on_while_the_supervisor_is_exchanged(supervisor: Supervisor) -> None:
    made: list[int] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def calls() -> None:
        try:
            with supervisor.connect(patience=PATIENCE) as client:
                vec_add = client.function("vec_add")
                while not stop.is_set():
                    assert vec_add(ONE, ONE).tolist() == [2, 4]
                    made.append(1)
        except BaseException as why:
            failed.append(why)

    def some_more() -> None:
        before = len(made)
        while len(made) < before + 3 and not failed:
            stop.wait(0.001)

    caller = threading.Thread(target=calls)
    caller.start()
    try:
        some_more()
        supervisor.end()
        supervisor.start()
        some_more()
        supervisor.kill()
        supervisor.start()
        some_more()
    finally:
        stop.set()
        caller.join()
    assert not failed


def test_without_patience_a_client_ends_with_its_supervisor(supervisor: Supervisor) -> None:
    with supervisor.connect() as client:
        assert sums(client) == [2, 4]
        supervisor.kill()
        supervisor.start()
        with pytest.raises(pappus.ConnectionLost):
            sums(client)


def test_patience_ends(supervisor: Supervisor) -> None:
    with supervisor.connect(patience=0.05) as client:
        vec_add = client.function("vec_add")
        supervisor.kill()
        with pytest.raises(pappus.Unavailable):
            vec_add(ONE, ONE)
        supervisor.start()
        assert vec_add(ONE, ONE).tolist() == [2, 4]


def test_a_call_is_submitted_to_the_next_supervisor(supervisor: Supervisor) -> None:
    with supervisor.connect(patience=PATIENCE) as client:
        vec_add = client.function("vec_add")
        call = vec_add.submit(ONE, ONE)
        call.result()
        supervisor.kill()
        supervisor.start()
        again = vec_add.submit(ONE, ONE)
        assert again.result().tolist() == [2, 4]


def test_clients_of_asyncio_outlive_a_crash_and_a_restart(supervisor: Supervisor) -> None:
    async def calls() -> None:
        async with await pappus.aio.connect(supervisor.path, patience=PATIENCE) as client:
            vec_add = await client.function("vec_add")
            for end in (supervisor.kill, supervisor.end):
                assert (await vec_add(ONE, ONE)).tolist() == [2, 4]
                await asyncio.to_thread(end)
                # They find nobody yet, and have patience.
                waiting = [asyncio.create_task(vec_add(ONE, ONE)) for _ in range(3)]
                await asyncio.to_thread(supervisor.start)
                assert [sum.tolist() for sum in await asyncio.gather(*waiting)] == [[2, 4]] * 3
                assert (await client.status()).devices
        with pytest.raises(pappus.ConnectionLost):
            await vec_add(ONE, ONE)

    asyncio.run(calls())


def test_without_patience_a_client_of_asyncio_ends_with_its_supervisor(supervisor: Supervisor) -> None:
    async def calls() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            vec_add = await client.function("vec_add")
            await asyncio.to_thread(supervisor.kill)
            await asyncio.to_thread(supervisor.start)
            with pytest.raises(pappus.ConnectionLost):
                await vec_add(ONE, ONE)

    asyncio.run(calls())
