"""Tasks that are cancelled, at every point where they wait: nothing is left behind, and the client goes on."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
import pappus.aio
from fixture import KERNELS, PATIENCE, VEC_ADD, Supervisor
from pappus import _requests

A = np.arange(6, dtype=np.float32)
# More than an arena that is opened at first has.
LARGE = np.ones(1 << 20, np.float32)


class CancelledAt:
    """Awaits something, and cancels the task when it waits for the nth time: at once, or just when it need wait no more."""

    def __init__(self, work: Coroutine[Any, Any, Any], nth: int, *, late: bool) -> None:
        self._work, self._left, self._late = work, nth, late

    def __await__(self) -> Generator[Any, None, Any]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._work.__await__()
        step: Callable[[], Any] = functools.partial(next, steps)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                del step
            self._left -= 1
            if self._left == 0:
                if self._late and waits_for is not None:
                    waits_for.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                yield waits_for
                step = functools.partial(next, steps)
            except BaseException as why:
                step = functools.partial(steps.throw, why)


async def cancel_everywhere(client: Any, make: Callable[[], Coroutine[Any, Any, Any]], check: Any, *, late: bool) -> int:
    """Does it again and again, cancelled at one point after the other, until it is not reached; how many there are."""
    for nth in range(1, 100):

        async def work(nth: int = nth) -> None:
            await CancelledAt(make(), nth, late=late)

        task = asyncio.ensure_future(work())
        try:
            await task
            return nth - 1
        except asyncio.CancelledError:
            pass
        await check()
        # It keeps what it was doing when it was cancelled.
        del task
        pool, end = client._pool, time.monotonic() + PATIENCE
        await client.status()
        while client._connection._requests.waiting:
            assert time.monotonic() < end, "what was cancelled is never answered"
            await client.status()
        gc.collect()
        # What calls no longer use is closed. Then the supervisor has none that the client does not know.
        await client._run(_requests._close(pool, pool.unused(for_arena_of=1, all_of_them=True)))
        assert not pool._arenas
        assert not pool._going
        await until_known(client)
    raise AssertionError("it never ends")


async def until_known(client: Any) -> None:
    """Waits until the supervisor has the arenas that the client knows and no others. It lets them go a little later."""
    pool, end = client._pool, time.monotonic() + PATIENCE
    while True:
        used = {quota.name: quota.used for quota in (await client.quota()).quotas}["arena-bytes"]
        known = sum(map(len, [*pool._arenas, *pool._callers, *pool._going]))
        if used == known:
            return
        assert time.monotonic() < end, f"{used} bytes of arenas are open, the client knows {known}"


def weighted(folder: Path) -> Path:
    """A function with weights that travel in a descriptor."""
    (folder / "w.bin").write_bytes(bytes(2 << 20))
    blueprint = {
        "inputs": [],
        "weights": ["w"],
        "buffers": {"out": {"Sizeof": "w"}},
        "outputs": ["out"],
        "control_flow": [{"Copy": {"from": "w", "to": "out"}}],
    }
    config = {
        "module_path": str(KERNELS / "built/module.wasm"),
        "kernels": [],
        "weight_files": {"w": "w.bin"},
        "blueprint": blueprint,
    }
    (folder / "weighted.json").write_text(json.dumps(config))
    return folder / "weighted.json"


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_cancelling_leaves_nothing_behind(start: Callable[..., Supervisor], tmp_path: Path, late: bool) -> None:
    supervisor = start()
    config = weighted(tmp_path)

    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            vec_add = await client.add_function("vec_add", VEC_ADD)

            async def works() -> None:
                np.testing.assert_array_equal(await vec_add(A, A), 2 * A)

            async def nothing() -> None:
                pass

            async def many() -> None:
                await asyncio.gather(*(vec_add(A, A) for _ in range(3)))

            async def own_arena() -> None:
                await client.close_arena(await client.arena(4096))

            async def add() -> None:
                await client.add_function("weighted", config, replace=True)

            async def two_sizes() -> None:
                await vec_add(A, A)
                await vec_add(LARGE, LARGE)

            for make, check, least in (
                # Where nothing is called in between, each is the first to open an arena.
                (lambda: vec_add(A, A), nothing, 2),
                (lambda: vec_add(A, A), works, 2),
                (two_sizes, works, 3),
                (many, works, 1),
                (own_arena, nothing, 2),
                (add, works, 4),
                (client.status, works, 1),
            ):
                assert await cancel_everywhere(client, make, check, late=late) >= least
            # Nothing of it was in vain.
            assert (await client.show_function("weighted")).name == "weighted"
            await works()

    asyncio.run(main())


def test_more_cancelled_calls_than_there_are_arenas(start: Callable[..., Supervisor]) -> None:
    supervisor = start()

    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            vec_add = await client.add_function("vec_add", VEC_ADD)
            for _ in range(70):
                for work in (vec_add(A, A), client.arena(4096)):
                    task = asyncio.ensure_future(work)
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            np.testing.assert_array_equal(await vec_add(A, A), 2 * A)
            await until_known(client)

    asyncio.run(main())
