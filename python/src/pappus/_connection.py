"""The connection of a blocking client. Any number of threads send and wait; one of those that wait reads for all.

::

    a thread waits ─► nobody reads? ─► it reads: gives each answer to its request, wakes who waits for it
                   └► another reads ─► it sleeps until its answer is there, or the reader leaves and it takes over

There is no thread of its own: a single caller's answer reaches it without a change of threads.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from pappus import _pending, _wire
from pappus._pending import Memory, Waiting
from pappus._proto import pappus_pb2 as v1
from pappus.errors import ConnectionLost, Error, InvalidArgument, Unreachable, fresh

# For one receive.
_RECEIVE_BYTES = (64 << 10,)
# Bytes that the kernel takes as a socket's path, without the zero at its end.
_SOCKET_PATH_BYTES = 107
# How long `connect` waits between attempts.
_RETRY_EVERY = 0.01
# How long a writer whose socket is full leaves the reading to another thread.
_LOOK_AGAIN_MS = 10


def lost() -> ConnectionLost:
    """The error of what was in flight, and of what is asked for later."""
    return ConnectionLost(
        "the supervisor closed the connection: it stopped, or it refused what it was sent (its log says); connect again",
        retryable=True,
    )


def unreachable(path: str, why: OSError) -> Unreachable:
    """Why a socket cannot be connected to, and what to do about it."""
    size = len(os.fsencode(path))
    if isinstance(why, PermissionError):
        reason = f"{why.strerror}; it belongs to another user: use the supervisor's uid or root"
    elif size > _SOCKET_PATH_BYTES:
        reason = f"the path has {size} bytes, a socket's can have {_SOCKET_PATH_BYTES}: use a shorter one"
    else:
        start = "start `pappus-supervisor --socket … --state-dir …`, or name the socket it was started with"
        reason = f"{why.strerror or why}; {start}"
    return Unreachable(f"cannot reach a supervisor at {path}: {reason}", retryable=True)


def open_socket(path: str, patience: float | None) -> socket.socket:
    """Connects and greets; tries again for ``patience`` seconds while nobody listens."""
    end = time.monotonic() + (patience or 0)
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(path)
            _greet(peer)
            return peer
        except (FileNotFoundError, ConnectionRefusedError) as why:
            peer.close()
            if time.monotonic() >= end:
                raise unreachable(path, why) from None
            time.sleep(_RETRY_EVERY)
        except OSError as why:
            peer.close()
            raise unreachable(path, why) from None
        except BaseException:
            peer.close()
            raise


def _greet(peer: socket.socket) -> None:
    # A connection that is refused may be closed already, with the reason still to be read from it.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        peer.sendall(_wire.GREETING)
    answer = b""
    while len(answer) < _wire.GREETING_BYTES:
        try:
            piece = peer.recv(_wire.GREETING_BYTES - len(answer))
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise lost()
        answer += piece
    _wire.check_greeting(answer)


class Connection:
    """Sends requests and gives each its answer."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._pid = os.getpid()
        self._decoder = _wire.Decoder()
        # What was received and not looked at yet.
        self._received: deque[bytes] = deque()
        self._readable = select.poll()
        self._readable.register(peer, select.POLLIN)
        # One writer at a time.
        self._sending = threading.Lock()
        # Guards what follows.
        self._lock = threading.Lock()
        self._waiting: dict[int, Waiting] = {}
        # Threads that wait while another one reads.
        self._asleep: dict[threading.Lock, None] = {}
        self._reading = False
        self._next_id = 1
        self._broken: Error | None = None

    @property
    def broken(self) -> Error | None:
        """Why nothing can be sent any more."""
        return self._broken

    def send(self, request: v1.Request, descriptors: Sequence[int] = (), memory: Memory | None = None) -> Waiting:
        """Sends a request; it is given its number here."""
        return self.send_encoded(_pending.encode(request, len(descriptors)), descriptors, memory)

    def send_encoded(self, body: bytes, descriptors: Sequence[int] = (), memory: Memory | None = None) -> Waiting:
        """Sends a request that is encoded but for its number."""
        if os.getpid() != self._pid:
            raise InvalidArgument("this connection belongs to the process that forked this one: connect again")
        with self._lock:
            self._check()
            id = self._next_id
            self._next_id += 1
            waiting = self._waiting[id] = Waiting(id, memory)
        # Messages that lie behind each other are merged: this is the request with its number.
        frame = _wire.frame(v1.Request(id=id).SerializeToString() + body, len(descriptors))
        with self._sending:
            self._write(frame, descriptors)
        return waiting

    def wait(self, waiting: Waiting, timeout: float | None = None) -> v1.Response:
        """The answer to a request; :class:`TimeoutError` if it does not come in time."""
        end = None if timeout is None else time.monotonic() + timeout
        while not waiting.done():
            if not self._lead(waiting, end):
                self._follow(waiting, end)
        return waiting.outcome()

    def poll(self, waiting: Waiting) -> bool:
        """Whether the answer to a request is there, without waiting for it."""
        try:
            if not waiting.done():
                self._lead(waiting, time.monotonic())
        except TimeoutError:
            pass
        return waiting.done()

    def close(self) -> None:
        """Ends the connection; who waits is told."""
        self._fail(ConnectionLost("this client was closed"))
        if self._sending.acquire(blocking=False):
            with self._lock:
                if not self._reading:
                    self._socket.close()
            self._sending.release()

    def __del__(self) -> None:
        # No thread uses it any more.
        self._socket.close()

    def _check(self) -> None:
        if self._broken is not None:
            raise fresh(self._broken)

    def _lead(self, waiting: Waiting, end: float | None) -> bool:
        """Reads until a request has its answer; false where another thread reads."""
        leads = False
        try:
            with self._lock:
                if not self._reading:
                    self._reading = leads = True
            while leads and not waiting.done() and self._broken is None:
                self._receive(end)
            return leads
        finally:
            if leads:
                with self._lock:
                    self._reading = False
                    self._wake_one()

    def _follow(self, waiting: Waiting, end: float | None) -> None:
        """Sleeps until a request has its answer, or nobody reads."""
        woken = threading.Lock()
        woken.acquire()
        try:
            with self._lock:
                if not self._reading or waiting.done():
                    return
                self._asleep[woken] = None
                waiting.sleepers += (woken,)
            if not woken.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
                raise TimeoutError("no answer yet")
        finally:
            with self._lock:
                self._asleep.pop(woken, None)
                # It may have been woken to read, and have no reason to any more.
                self._wake_one()

    def _wake_one(self) -> None:
        """Has one of those that sleep read on, if nobody does. The lock is held."""
        if self._asleep and not self._reading:
            woken, _ = self._asleep.popitem()
            woken.release()

    def _receive(self, end: float | None) -> None:
        """Waits for bytes until ``end``, and gives out the answers in them. By the one thread that reads."""
        received = self._received
        if not received:
            if end is not None and not self._readable.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError("no answer yet")
            try:
                # One step of the interpreter: an interruption comes before bytes are taken, or finds them kept.
                received.extend(map(self._socket.recv, _RECEIVE_BYTES))
            except OSError:
                received.append(b"")
        # From here on it would lose them, and with them the connection.
        try:
            data = received.popleft()
            if not data:
                raise lost()
            for message in self._decoder.feed(data):
                self._give(_pending.decode(message))
        except BaseException as why:
            self._fail(why)
            if not isinstance(why, Error):
                raise

    def _give(self, answer: v1.Response) -> None:
        with self._lock:
            waiting = _pending.settle(self._waiting.pop(answer.id, None), answer)
            for woken in waiting.sleepers:
                if woken in self._asleep:
                    del self._asleep[woken]
                    woken.release()

    def _fail(self, why: BaseException) -> None:
        """Ends the connection: all that wait get this error, and so does who comes later."""
        with self._lock:
            if self._broken is not None:
                return
            # An interruption is for whom it interrupts; others lost their connection.
            self._broken = fresh(why) if isinstance(why, Error) else lost()
            for waiting in self._waiting.values():
                waiting.error = self._broken
            self._waiting.clear()
            for woken in self._asleep:
                woken.release()
            self._asleep.clear()
        # Wakes the thread that reads. The descriptor is closed with this object, when no thread uses it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _write(self, frame: bytes, descriptors: Sequence[int]) -> None:
        """Writes all of a frame; what comes meanwhile is read, so that neither side waits for the other for ever."""
        sent = 0
        try:
            while sent < len(frame):
                try:
                    if descriptors and not sent:
                        sent += socket.send_fds(self._socket, [frame], list(descriptors), socket.MSG_DONTWAIT)
                    else:
                        # Most frames go at once.
                        rest: Any = memoryview(frame)[sent:] if sent else frame
                        sent += self._socket.send(rest, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._make_room()
        except (BrokenPipeError, ConnectionResetError):
            self._last_words()
        except BaseException as why:
            # Part of the frame may be on its way, and no more of it will follow.
            if sent < len(frame):
                self._fail(why)
            raise

    def _make_room(self) -> None:
        """Waits until the socket takes more, and reads meanwhile, unless another thread does."""
        reads = False
        try:
            with self._lock:
                if not self._reading:
                    self._reading = reads = True
            ready = select.poll()
            ready.register(self._socket, select.POLLOUT | (select.POLLIN if reads else 0))
            # In the end another thread reads, or none: then it is looked at again who does.
            events = ready.poll(None if reads else _LOOK_AGAIN_MS)
            if reads and any(event & select.POLLIN for _, event in events):
                self._receive(time.monotonic())
        finally:
            if reads:
                with self._lock:
                    self._reading = False
                    self._wake_one()
        self._check()

    def _last_words(self) -> None:
        """The supervisor closed the connection; it may have said why before it did."""
        while self._broken is None and self._lead(_NOTHING, None):
            pass


# Stands for no request: reading for it ends with the connection.
_NOTHING = Waiting(0, None)
