"""Connecting to a supervisor, as a generator: it yields what is to be waited for, and returns the socket.

A blocking client and an asynchronous one run the same generator, each in its own way. No step of it blocks.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Generator
from typing import NamedTuple

from pappus import _wire
from pappus._pending import ANSWER_SECONDS, bounded
from pappus.errors import ConnectionLost, InvalidArgument, Unreachable

# Bytes that the kernel takes as a socket's path, without the zero at its end.
_SOCKET_PATH_BYTES = 107
# Seconds between attempts.
_RETRY_EVERY = 0.01


class Pause(NamedTuple):
    """What is waited for: so many seconds, or until a socket has something to read, if one is named."""

    seconds: float
    readable: socket.socket | None = None


Opening = Generator[Pause, None, socket.socket]


def lost() -> ConnectionLost:
    """The error of what was in flight, and of what is asked for later."""
    return ConnectionLost(
        "the supervisor closed the connection: it stopped, or it refused what it was sent (its log says); connect again",
        retryable=True,
    )


def seconds_of(patience: float | None) -> float:
    """How long a supervisor may take to answer, for a caller with so much patience."""
    if patience is None or patience == 0:
        return ANSWER_SECONDS
    if not patience > 0:
        raise InvalidArgument(f"a patience of {patience} s, expected 0 or more", place="patience")
    return bounded(patience)


def opening(path: str, patience: float | None) -> Opening:
    """Connects and greets within ``patience`` seconds. Where ``patience`` is given, it tries again while nobody listens."""
    limit = seconds_of(patience)
    size = len(os.fsencode(path))
    if size > _SOCKET_PATH_BYTES:
        raise _unreachable(path, f"the path has {size} bytes, a socket's can have {_SOCKET_PATH_BYTES}: use a shorter one")
    end = time.monotonic() + limit
    while True:
        with contextlib.ExitStack() as closing:
            peer = closing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            try:
                peer.connect(path)
                yield from _greet(peer, path, limit, end)
                closing.pop_all()
                return peer
            except BlockingIOError:
                # More connections wait to be accepted than there is room for.
                if time.monotonic() >= end:
                    raise _silent(path, limit) from None
            except (FileNotFoundError, ConnectionRefusedError) as why:
                if not patience or time.monotonic() >= end:
                    start = "start `pappus-supervisor --socket … --state-dir …`, or name the socket it was started with"
                    raise _unreachable(path, f"{why.strerror}; {start}") from None
            except PermissionError as why:
                other = "it belongs to another user: use the supervisor's uid or root"
                raise _unreachable(path, f"{why.strerror}; {other}") from None
            except OSError as why:
                # One of a signal handler's own names no error of the system's.
                if why.errno is None:
                    raise
                raise _unreachable(path, f"{why.strerror}; is it the supervisor's socket?") from None
        yield Pause(_RETRY_EVERY)


def run(steps: Opening) -> socket.socket:
    """Runs it in a thread that may block."""
    try:
        while True:
            pause = next(steps)
            if pause.readable is None:
                time.sleep(pause.seconds)
            else:
                ready = select.poll()
                ready.register(pause.readable, select.POLLIN)
                ready.poll(pause.seconds * 1000)
    except StopIteration as end:
        peer: socket.socket = end.value
        return peer
    finally:
        steps.close()


def _greet(peer: socket.socket, path: str, limit: float, end: float) -> Generator[Pause, None, None]:
    # A connection that is refused may be closed already, with the reason still to be read from it.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        peer.sendall(_wire.GREETING)
    answer = b""
    while len(answer) < _wire.GREETING_BYTES:
        try:
            piece = peer.recv(_wire.GREETING_BYTES - len(answer))
        except BlockingIOError:
            left = end - time.monotonic()
            if left <= 0:
                raise _silent(path, limit) from None
            yield Pause(left, peer)
            continue
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise lost()
        answer += piece
    _wire.check_greeting(answer)


def _silent(path: str, limit: float) -> Unreachable:
    return Unreachable(
        f"the supervisor at {path} does not answer: it took no connection for {limit:g} s. Its process is stopped, swaps, or "
        "is in a debugger (`ps -C pappus-supervisor -o pid,stat,wchan` shows T or t where it is stopped), or one that ends "
        "lets its last calls finish; its log says more. Give it longer with `patience`",
        retryable=True,
    )


def _unreachable(path: str, reason: str) -> Unreachable:
    return Unreachable(f"cannot reach a supervisor at {path}: {reason}", retryable=True)
