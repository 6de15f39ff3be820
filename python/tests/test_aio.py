"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
import pappus.aio
from fixture import KERNELS, VEC_ADD, Supervisor, pretender
from test_wire import greet, raw

A = np.arange(6, dtype=np.float32)


def test_calls_run_side_by_side(supervisor: Supervisor) -> None:
    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            vec_add = await client.add_function("vec_add", VEC_ADD, replace=True)
            assert str(vec_add) == "<AsyncFunction vec_add: A: f32[…], B: f32[…] → C: f32[…]>"
            results = await asyncio.gather(*(vec_add(A, np.full(6, n, np.float32)) for n in range(200)))
            for n, result in enumerate(results):
                np.testing.assert_array_equal(result, A + n)
            with pytest.raises(pappus.InvalidArgument):
                await vec_add(A)
            assert not (await client.status()).draining

    asyncio.run(main())


def test_arenas_are_the_same(supervisor: Supervisor) -> None:
    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            vec_add = await client.add_function("vec_add", VEC_ADD, replace=True)
            arena = await client.arena(4096)
            a, out = arena.array(A), arena.empty(6)
            assert await vec_add.options(out=out)(a, a) is out
            np.testing.assert_array_equal(out, 2 * A)
            lent = await vec_add.options(copy=False)(a, A)
            np.testing.assert_array_equal(lent, 2 * A)
            await client.close_arena(arena)

    asyncio.run(main())


def test_large_weights_travel_in_descriptors(supervisor: Supervisor, tmp_path: Path) -> None:
    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            blobs = [client.add_function(f"f{n}", VEC_ADD) for n in range(3)]
            for function in await asyncio.gather(*blobs):
                await client.remove_function(function.name)

    asyncio.run(main())


def test_more_is_sent_than_the_socket_holds(supervisor: Supervisor) -> None:
    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            vec_add = await client.add_function("vec_add", VEC_ADD, replace=True)
            for _ in range(3):
                results = await asyncio.gather(*(vec_add(A, A) for _ in range(2000)))
                assert all(result[1] == 2 for result in results)

    asyncio.run(main())


def test_a_cancelled_task_cancels_its_call(start: Callable[..., Supervisor]) -> None:
    supervisor = start(device="cpu:workers=1,memory=16MiB")
    one = np.ones(64, np.float32)
    inputs: dict[str, Any] = {"A": np.eye(64, dtype=np.float32), "b": one, "x": one}

    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            function = await client.add_function("jacobi", KERNELS / "configs/jacobi.json")
            task = asyncio.create_task(function(steps=900_000, **inputs))
            while not sum(device.running for device in (await client.status()).devices):
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The answer to it comes before that to a later call.
            result = await function(steps=2, **inputs)
            np.testing.assert_array_equal(result, one)
            assert not client._connection._requests.waiting

    asyncio.run(main())


def test_a_lost_connection_is_told_to_all(start: Callable[..., Supervisor]) -> None:
    supervisor = start(device="cpu:workers=1,memory=16MiB")
    one = np.ones(64, np.float32)

    async def main() -> None:
        client = await pappus.aio.connect(supervisor.path)
        function = await client.add_function("jacobi", KERNELS / "configs/jacobi.json")
        inputs = {"steps": 900_000, "A": np.eye(64, dtype=np.float32), "b": one, "x": one}
        calls = [asyncio.create_task(function(**inputs)) for _ in range(3)]
        await client.status()
        supervisor.kill()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, pappus.ConnectionLost)
        with pytest.raises(pappus.ConnectionLost):
            await client.status()
        await client.close()

    asyncio.run(main())


def test_broken_frames_end_the_connection() -> None:
    async def main(path: str) -> None:
        async with await pappus.aio.connect(path) as client:
            with pytest.raises(pappus.ProtocolError, match="must be zero"):
                await client.status()
            assert client.closed

    with pretender(greet, raw(b"\0\0\0\0\x01\0\0\0")) as path:
        asyncio.run(main(path))
