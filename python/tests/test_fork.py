"""A client belongs to the process that made it: what a child of `fork` does with its copy is nothing to the parent."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pappus
import pappus.aio
from fixture import VEC_ADD, Supervisor
from pappus._owner import Owner

A = np.arange(6, dtype=np.float32)
REFUSED = "a fork: connect in each process"


def in_child(work: Callable[[], None]) -> None:
    """Does it in a child of this process, where it must succeed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def forget_the_owner() -> None:
    """For controls: what a child would do if nobody asked whose the client is."""
    Owner.is_this = lambda self: True  # type: ignore[method-assign]


def leave_its_block(client: pappus.Client) -> None:
    with client:
        pass


def collect(client: pappus.Client) -> None:
    client._connection.__del__()
    gc.collect()


ENDS: list[Callable[[pappus.Client], None]] = [pappus.Client.close, leave_its_block, collect]


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_childs_copy_is_not_the_parents(client: pappus.Client, vec_add: pappus.Function, end: Any) -> None:
    arena = client.arena(4096)
    shared, out = arena.array(A), arena.empty(6)
    lent = vec_add.options(copy=False)(A, A)
    call = vec_add.submit(A, 3 * A)

    def work() -> None:
        nonlocal arena, shared, lent, call
        del arena, shared, lent, call
        end(client)

    in_child(work)
    np.testing.assert_array_equal(call.result(), 4 * A)
    np.testing.assert_array_equal(vec_add.options(out=out)(shared, lent), 3 * A)


def test_the_end_of_an_unguarded_copy_would_be_the_parents(supervisor: Supervisor) -> None:
    with supervisor.connect() as client:

        def work() -> None:
            forget_the_owner()
            client.close()

        in_child(work)
        with pytest.raises(pappus.ConnectionLost):
            client.status()


PROGRAM = """
import os, sys, pappus, numpy as np
client = pappus.connect(sys.argv[1])
vec_add = client.add_function("forking", sys.argv[2], replace=True)
one = np.ones(1, np.float32)
call = vec_add.submit(one, one)
if (child := os.fork()) == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(call.result(), vec_add(one, one))
"""


def test_an_interpreter_that_ends_in_a_child_ends_nothing(supervisor: Supervisor) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, supervisor.path, VEC_ADD], capture_output=True, text=True)
    assert done.stdout == "[2.] [2.]\n", done.stderr


def use_everything(client: pappus.Client, vec_add: pappus.Function, call: pappus.Call, arena: pappus.Arena) -> None:
    uses: list[Callable[[], object]] = [
        client.status,
        lambda: client.function("vec_add"),
        lambda: vec_add(A, A),
        lambda: vec_add.submit(A, A),
        lambda: client.arena(4096),
        lambda: client.close_arena(arena),
        call.result,
        call.done,
        call.cancel,
        call.timings,
        lambda: arena.empty(1),
        lambda: arena.array(A),
        arena.reset,
    ]
    for use in uses:
        with pytest.raises(pappus.InvalidArgument, match=REFUSED):
            use()
    assert client.closed


def test_every_use_in_a_child_is_refused(client: pappus.Client, vec_add: pappus.Function) -> None:
    arena = client.arena(4096)
    call = vec_add.submit(A, A)
    in_child(lambda: use_everything(client, vec_add, call, arena))
    # The answer is its parent's, and so is what the arena has handed out.
    np.testing.assert_array_equal(call.result(), 2 * A)
    assert arena._mapped.used == 0
    client.close_arena(arena)


def test_a_pool_of_processes_is_refused_with_words(client: pappus.Client, vec_add: pappus.Function) -> None:
    processes = multiprocessing.get_context("fork")
    heard = processes.SimpleQueue()

    def work() -> None:
        try:
            vec_add(A, A)
        except pappus.Error as why:
            heard.put(str(why))
        client.close()

    process = processes.Process(target=work)
    process.start()
    assert REFUSED in heard.get()
    process.join()
    np.testing.assert_array_equal(vec_add(A, A), 2 * A)


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_a_child_writes_nothing_into_shared_memory(client: pappus.Client, vec_add: pappus.Function, guarded: bool) -> None:
    vec_add(A, A)
    read, write = os.pipe()

    def work() -> None:
        # Its copy of the pool gives out the memory that its parent was given meanwhile.
        os.read(read, 1)
        if not guarded:
            vec_add._bound.prepare([7 * A, 7 * A], {})
            return
        with pytest.raises(pappus.InvalidArgument, match=REFUSED):
            vec_add(7 * A, 7 * A)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    prepared = client._prepare(client._link, vec_add._bound, [A, A], {})
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(read)
    os.close(write)
    result = prepared.finish(client._connection.wait(client._connection.call(prepared.request, prepared, 0)))
    np.testing.assert_array_equal(result, 2 * A if guarded else 14 * A)


def test_an_asynchronous_client_is_its_process_own(supervisor: Supervisor) -> None:
    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            vec_add = await client.add_function("vec_add", VEC_ADD, replace=True)
            task = asyncio.ensure_future(vec_add(A, A))
            await asyncio.sleep(0)

            def work() -> None:
                for use in (client.status(), vec_add(A, A), client.arena(4096)):
                    with pytest.raises(pappus.InvalidArgument, match=REFUSED):
                        use.send(None)
                # What the event loop would call in the child reads nothing.
                client._connection._readable()
                client._connection._writable()
                assert client.closed
                with pytest.raises(StopIteration):
                    client.close().send(None)

            in_child(work)
            np.testing.assert_array_equal(await task, 2 * A)
            np.testing.assert_array_equal(await vec_add(A, A), 2 * A)

    asyncio.run(main())
