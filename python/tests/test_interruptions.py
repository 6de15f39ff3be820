"""Signal handlers that raise exceptions: whoever they interrupt gets theirs, and nobody loses a connection or an answer."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pappus
from fixture import PATIENCE, VEC_ADD, Supervisor, pretender
from interruptions import Interrupt, everywhere
from pappus import _requests, _wire, v1
from test_wire import Peer, greet, receive, reply

A = np.arange(6, dtype=np.float32)


@pytest.fixture
def handler() -> Iterator[None]:
    """SIGUSR1 raises an exception in the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupt("a signal handler's")

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def alone(start: Callable[..., Supervisor]) -> Iterator[pappus.Client]:
    """The only client of its supervisor."""
    with start().connect() as client:
        yield client


def close_unused(client: pappus.Client) -> None:
    """Closes the arenas of calls."""
    pool = client._pool
    client._run(_requests._close(pool, pool.unused(for_arena_of=1, all_of_them=True)))
    assert not pool._going


def until_answered(client: pappus.Client) -> None:
    """Waits for the answers of what was interrupted when it had been sent."""
    for _ in range(100_000):
        if not client._connection._requests.waiting:
            return
        client.status()
    raise AssertionError("what was interrupted is never answered")


def until_known(client: pappus.Client) -> None:
    """Waits until the supervisor has the arenas that the client knows and no others. It lets them go a little later."""
    known = sum(map(len, [*client._pool._arenas, *client._pool._callers]))
    for _ in range(100_000):
        if {quota.name: quota.used for quota in client.quota().quotas}["arena-bytes"] == known:
            return
    raise AssertionError(f"the client knows {known} bytes of arenas, and the supervisor others")


def test_a_call_is_interrupted_anywhere(alone: pappus.Client) -> None:
    vec_add = alone.add_function("vec_add", VEC_ADD)
    other: list[pappus.Call] = []

    def before() -> None:
        # In flight meanwhile.
        other.append(vec_add.submit(A, 3 * A))

    def check(place: str) -> None:
        assert not alone.closed, place
        np.testing.assert_array_equal(other.pop().result(), 4 * A, place)
        np.testing.assert_array_equal(vec_add(A, 2 * A), 3 * A, place)
        until_answered(alone)
        assert alone._connection._reader is None, place
        # No memory was lost.
        alone._pool._take_back()
        assert not sum(arena.live for arena in alone._pool._arenas), place

    assert everywhere(lambda: vec_add(A, A), check, before) > 50
    check("not at all")
    close_unused(alone)
    assert not alone._pool._arenas
    until_known(alone)


def test_arenas_that_open_and_close_are_interrupted_anywhere(alone: pappus.Client) -> None:
    vec_add = alone.add_function("vec_add", VEC_ADD)

    def check(place: str) -> None:
        np.testing.assert_array_equal(vec_add(A, 2 * A), 3 * A, place)
        until_answered(alone)
        gc.collect()
        close_unused(alone)
        assert not alone._pool._arenas, place
        # An arena may have been the caller's already when the interruption came.
        for arena in alone._pool._callers:
            alone._run(_requests.close_arena(alone._pool, arena))
        until_known(alone)

    everywhere(lambda: vec_add(A, A), check)
    assert everywhere(lambda: alone.close_arena(alone.arena(4096)), check) > 50


def test_a_result_is_interrupted_anywhere(client: pappus.Client, vec_add: pappus.Function) -> None:
    calls: list[pappus.Call] = []

    def check(place: str) -> None:
        np.testing.assert_array_equal(calls.pop().result(), 2 * A, place)

    everywhere(lambda: calls[0].result(), check, lambda: calls.append(vec_add.submit(A, A)))


def test_a_frame_that_does_not_fit_the_socket_is_interrupted_anywhere(client: pappus.Client) -> None:
    def work() -> None:
        with pytest.raises(pappus.Error):
            client.show_function("x" * (400 << 10))

    def check(place: str) -> None:
        assert not client.status().draining, place
        until_answered(client)

    everywhere(work, check)


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def test_who_waits_for_an_answer_is_interrupted(handler: None) -> None:
    def interrupted(peer: Peer) -> None:
        first = receive(peer)
        interrupt_main()
        second = receive(peer)
        for request, version in ((first, "first"), (second, "second")):
            answer = v1.Response(id=request.id, status=v1.Status(version=version))
            peer.sendall(_wire.frame(answer.SerializeToString()))

    with pretender(greet, interrupted) as path, pappus.connect(path) as client:
        with pytest.raises(Interrupt):
            client.status()
        assert client.status().version == "second"
        assert not client._connection._requests.waiting


def test_the_rest_of_a_frame_follows(handler: None) -> None:
    names: list[str] = []

    def interrupted(peer: Peer) -> None:
        # The frame is begun, and the socket full.
        peer.recv(1, socket.MSG_PEEK)
        until(lambda: client._connection._reader is not None)
        interrupt_main()
        for _ in range(2):
            request = receive(peer)
            names.append(request.show_function.name)
            answer = v1.Response(id=request.id, function=v1.FunctionInfo(name=names[-1]))
            peer.sendall(_wire.frame(answer.SerializeToString()))

    large = "x" * (2 << 20)
    with pretender(greet, interrupted) as path, pappus.connect(path) as client:
        with pytest.raises(Interrupt):
            client.show_function(large)
        assert client.show_function("small").name == "small"
        assert names == [large, "small"]


def test_another_thread_reads_on(handler: None) -> None:
    found: list[Any] = []

    def interrupted(peer: Peer) -> None:
        requests = [receive(peer)]
        other = threading.Thread(target=lambda: found.append(client.status().version))
        other.start()
        requests.append(receive(peer))
        until(lambda: bool(client._connection._asleep))
        interrupt_main()
        was_interrupted.wait(PATIENCE)
        for request in reversed(requests):
            answer = v1.Response(id=request.id, status=v1.Status(version=str(request.id)))
            peer.sendall(_wire.frame(answer.SerializeToString()))
        other.join()
        was_answered.set()

    was_interrupted, was_answered = threading.Event(), threading.Event()
    with pretender(greet, interrupted, reply(status=v1.Status(version="last"))) as path, pappus.connect(path) as client:
        with pytest.raises(Interrupt):
            client.status()
        was_interrupted.set()
        was_answered.wait(PATIENCE)
        assert client.status().version == "last"
        assert found == ["2"]


def test_connecting_is_interrupted(handler: None) -> None:
    def interrupted(peer: Peer) -> None:
        peer.recv(16)
        interrupt_main()
        peer.recv(1)

    with pretender(interrupted) as path, pytest.raises(Interrupt):
        pappus.connect(path, patience=PATIENCE)


def test_an_alarm_that_rings_again_and_again(alone: pappus.Client) -> None:
    """Whenever it rings: what was asked for is there, or the alarm's own exception is."""
    vec_add = alone.add_function("vec_add", VEC_ADD)
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    ringing = 0

    def ring(number: int, frame: object) -> None:
        raise Interrupt("a signal handler's")

    try:
        signal.signal(signal.SIGALRM, ring)
        for n in range(2000):
            call = vec_add.submit(A, np.full(6, n, np.float32))
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + n % 400 * 1e-6)
                result = vec_add(A, np.full(6, -n, np.float32))
                signal.setitimer(signal.ITIMER_REAL, 0)
                np.testing.assert_array_equal(result, A - n)
            except Interrupt:
                ringing += 1
            np.testing.assert_array_equal(call.result(), A + n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ringing
    del call
    gc.collect()
    assert alone.status().devices
    close_unused(alone)
    until_known(alone)


def until(condition: Callable[[], bool]) -> None:
    """Looks until it holds."""
    while not condition():
        os.sched_yield()
