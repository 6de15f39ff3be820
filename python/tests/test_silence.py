"""Supervisors that are there and do not answer: every wait has an end, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
import pappus.aio
from fixture import PATIENCE, Supervisor, pretender
from pappus import _wire, v1
from test_wire import CONFIG, INFO, Peer, greet, receive, reply

# Seconds; whoever answers does so within.
SOON = 0.02
SILENT = "the supervisor.* does not answer"


def hold(peer: Peer) -> None:
    """Answers nothing, until the client leaves."""
    peer.settimeout(PATIENCE)
    while peer.recv(1 << 16):
        pass


@contextlib.contextmanager
def full(folder: Path) -> Iterator[str]:
    """A socket on which more connections wait to be accepted than there is room for."""
    path = str(folder / "full")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            if waiting.connect_ex(path) == errno.EAGAIN:
                break
        yield path


def connect_and_leave(path: str, patience: float) -> None:
    pappus.connect(path, patience=patience).close()


def connect_and_leave_later(path: str, patience: float) -> None:
    async def main() -> None:
        async with await pappus.aio.connect(path, patience=patience):
            pass

    asyncio.run(main())


CONNECTS: list[Callable[[str, float], None]] = [connect_and_leave, connect_and_leave_later]


@pytest.mark.parametrize("connect", CONNECTS, ids=["blocking", "asyncio"])
def test_connecting_ends(connect: Any, tmp_path: Path) -> None:
    with pretender(hold) as path, pytest.raises(pappus.Unreachable, match=SILENT) as caught:
        connect(path, SOON)
    assert caught.value.retryable
    with full(tmp_path) as path, pytest.raises(pappus.Unreachable, match=SILENT):
        connect(path, SOON)
    # An answer in time is one.
    with pretender(greet) as path:
        connect(path, PATIENCE)


@pytest.mark.parametrize("patience", [-1, float("nan")])
def test_a_patience_that_is_none_is_refused(patience: float) -> None:
    with pytest.raises(pappus.InvalidArgument, match="patience of"):
        pappus.connect("absent", patience=patience)


def test_a_task_that_connects_can_be_cancelled(tmp_path: Path) -> None:
    """Nothing is left: no socket (one that is dropped while it is open warns), and no thread for which a program would wait."""

    async def main(path: str) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pappus.aio.connect(path), SOON)
        assert threading.active_count() <= before

    with pretender(hold) as path:
        before = threading.active_count()
        asyncio.run(main(path))
    with full(tmp_path) as path:
        before = threading.active_count()
        asyncio.run(main(path))


def test_a_stopped_supervisor_is_told_apart_from_none(start: Callable[..., Supervisor]) -> None:
    supervisor = start()
    supervisor.process.send_signal(signal.SIGSTOP)
    while ") T " not in Path(f"/proc/{supervisor.process.pid}/stat").read_text():
        pass
    try:
        with pytest.raises(pappus.Unreachable, match=SILENT):
            supervisor.connect(patience=SOON)
    finally:
        supervisor.process.send_signal(signal.SIGCONT)
    supervisor.connect(patience=PATIENCE).close()


def test_requests_end_and_their_late_answers_are_nobody_elses() -> None:
    go = threading.Event()

    def late(peer: Peer) -> None:
        first = receive(peer)
        go.wait(PATIENCE)
        second = receive(peer)
        for request, version in ((first, "first"), (second, "second")):
            response = v1.Response(id=request.id, status=v1.Status(version=version))
            peer.sendall(_wire.frame(response.SerializeToString()))

    with pretender(greet, late) as path, pappus.connect(path, patience=SOON) as client:
        with pytest.raises(pappus.Unavailable, match=SILENT) as caught:
            client.status()
        assert caught.value.retryable
        assert not client.closed
        client._connection._answer_seconds = PATIENCE
        go.set()
        assert client.status().version == "second"
        assert not client._connection._requests.waiting


def test_a_call_ends_with_its_deadline() -> None:
    shown = v1.FunctionInfo(config=CONFIG)
    shown.MergeFrom(INFO)
    opened = v1.ArenaOpened(arena=1, bytes=1 << 20)
    answers = (greet, reply(function=shown), reply(arena=opened), hold)
    x = np.zeros(2, np.float32)
    with pretender(*answers) as path, pappus.connect(path) as client:
        function = client.function("f").options(deadline=SOON)
        client._connection._answer_seconds = SOON
        with pytest.raises(pappus.Unavailable, match=SILENT):
            function(x)

    async def main(path: str) -> None:
        async with await pappus.aio.connect(path) as client:
            function = (await client.function("f")).options(deadline=SOON)
            # The arena is still opened with patience: this is about the call.
            prepared = await client._prepare(client._link, function._bound, [x], {})
            client._connection._answer_seconds = SOON
            with pytest.raises(pappus.Unavailable, match=SILENT):
                await client._connection.call(prepared.request, prepared, int(SOON * 1e9))
            with pytest.raises(pappus.Unavailable, match=SILENT):
                await client.status()
            assert not client.closed

    with pretender(*answers) as path:
        asyncio.run(main(path))


def test_sending_ends_and_goes_on_where_it_ended() -> None:
    large, go, names = "x" * (1 << 20), threading.Event(), []

    def reads_late(peer: Peer) -> None:
        go.wait(PATIENCE)
        for _ in range(2):
            request = receive(peer)
            names.append(request.show_function.name)
            answer = v1.Response(id=request.id, function=v1.FunctionInfo(name=names[-1]))
            peer.sendall(_wire.frame(answer.SerializeToString()))

    with pretender(greet, reads_late) as path, pappus.connect(path, patience=SOON) as client:
        for _ in range(2):
            # The second finds that the first was sent in part.
            with pytest.raises(pappus.Unavailable, match=SILENT):
                client.show_function(large)
        client._connection._answer_seconds = PATIENCE
        go.set()
        assert client.show_function("small").name == "small"
        assert names == [large, "small"]


def test_asynchronous_sending_ends() -> None:
    go, names = threading.Event(), []

    def reads_late(peer: Peer) -> None:
        go.wait(PATIENCE)
        for _ in range(3):
            request = receive(peer)
            names.append(len(request.show_function.name))
            answer = v1.Response(id=request.id, function=v1.FunctionInfo(name="f"))
            peer.sendall(_wire.frame(answer.SerializeToString()))

    async def main(path: str) -> None:
        async with await pappus.aio.connect(path, patience=SOON) as client:
            large = [client.show_function("x" * (1 << 20)) for _ in range(3)]
            outcomes = await asyncio.gather(*large, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [pappus.Unavailable] * 3
            client._connection._answer_seconds = PATIENCE
            go.set()
            await client.show_function("small")

    with pretender(greet, reads_late) as path:
        asyncio.run(main(path))
    # The third had no room, and was never sent.
    assert names == [1 << 20, 1 << 20, 5]
