"""The connection of a blocking client. Any number of threads send and wait; one of those that wait reads for all.

::

    a thread waits ─► nobody reads? ─► it reads: gives each answer to its request, wakes who waits for it
                   └► another reads ─► it sleeps until its answer is there, or the reader leaves and it takes over

There is no thread of its own: a single caller's answer reaches it without a change of threads.

A signal handler may raise an exception between any two steps of the interpreter (not between a call and the ``with`` block
or the ``try`` that it begins). What was received or sent by then is kept where the next one who reads or sends finds it.
"""

from __future__ import annotations

import array
import contextlib
import functools
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from pappus import _pending, _wire
from pappus._opening import lost
from pappus._owner import Owned
from pappus._pending import ANSWER_SECONDS, Memory, Requests, Waiting, bounded
from pappus._proto import pappus_pb2 as v1
from pappus.errors import ConnectionLost, Error, fresh

# For one receive.
_RECEIVE_BYTES = 64 << 10
# Seconds for which a writer whose socket is full leaves the reading to another thread.
_LOOK_AGAIN = 0.01


class Sent(Waiting):
    """With the threads that wait for the answer while another one reads."""

    __slots__ = ("sleepers",)

    def __init__(
        self, id: int, memory: Memory | None, arrived: Callable[[v1.Response], None] | None, limit: float | None
    ) -> None:
        super().__init__(id, memory, arrived, limit)
        self.sleepers: tuple[threading.Lock, ...] = ()


class _Frame:
    """A request on its way to the socket."""

    __slots__ = ("bytes", "descriptors", "request", "sent")

    def __init__(self, request: Sent, bytes: bytes, descriptors: Sequence[int]) -> None:
        self.request = request
        self.bytes = bytes
        self.descriptors = descriptors
        # How many bytes each step sent.
        self.sent: list[int] = []


class Connection(Owned):
    """Sends requests and gives each its answer."""

    def __init__(self, peer: socket.socket, answer_seconds: float = ANSWER_SECONDS) -> None:
        super().__init__()
        peer.setblocking(True)
        self._socket = peer
        self._answer_seconds = answer_seconds
        self._readable = select.poll()
        self._readable.register(peer, select.POLLIN)
        # One writer at a time; guards the frame that was begun.
        self._sending = threading.Lock()
        self._begun: _Frame | None = None
        # Guards what follows.
        self._lock = threading.Lock()
        self._requests: Requests[Sent] = Requests()
        # Threads that wait while another one reads.
        self._asleep: dict[object, threading.Lock] = {}
        # Stands for the thread that reads.
        self._reader: object | None = None
        self._next_id = 1

    def ask(
        self,
        request: v1.Request,
        descriptors: Sequence[int] = (),
        arrived: Callable[[v1.Response], None] | None = None,
        *,
        slow: bool = False,
    ) -> v1.Response:
        """Sends a request and waits for its answer, which comes soon unless it is a ``slow`` one."""
        body = _pending.encode(request, len(descriptors))
        limit = None if slow else self._answer_seconds
        return self.wait(self.send(body, descriptors, arrived=arrived, limit=limit))

    def call(self, body: bytes, memory: Memory, deadline_ns: int) -> Sent:
        """Sends a call that is encoded but for its number."""
        return self.send(body, memory=memory, limit=deadline_ns / 1e9 + self._answer_seconds if deadline_ns else None)

    def send(
        self,
        body: bytes,
        descriptors: Sequence[int] = (),
        *,
        memory: Memory | None = None,
        arrived: Callable[[v1.Response], None] | None = None,
        limit: float | None = None,
    ) -> Sent:
        """Sends a request that is encoded but for its number."""
        self.check()
        end = _end(limit)
        with self._sending:
            self._finish(end)
            if self._begun is not None:
                raise _pending.silent(limit)
            id = self._next_id
            self._next_id = id + 1
            waiting = Sent(id, memory, arrived, limit)
            # Messages that lie behind each other are merged: this is the request with its number.
            frame = _wire.frame(v1.Request(id=id).SerializeToString() + body, len(descriptors))
            self._begun = begun = _Frame(waiting, frame, descriptors)
            try:
                with self._lock:
                    self.check()
                    self._requests.waiting[id] = waiting
                if not self._write(begun, end):
                    raise _pending.silent(limit)
                self._begun = None
            except BaseException:
                # The caller closes the descriptors now. Where bytes were sent, the descriptors went with the first one.
                if not begun.sent:
                    self._finish(end)
                raise
        return waiting

    def wait(self, waiting: Sent, timeout: float | None = None) -> v1.Response:
        """The answer to a request; :class:`TimeoutError` if it does not come in time."""
        self._owner.check()
        limits = [limit for limit in (timeout, waiting.limit) if limit is not None]
        limit = min(limits, default=None)
        if not self._wait_until(waiting, _end(limit)):
            if timeout is not None and (waiting.limit is None or timeout < waiting.limit):
                raise TimeoutError("no answer yet")
            raise _pending.silent(limit)
        return waiting.outcome()

    def poll(self, waiting: Sent) -> bool:
        """Whether the answer to a request is there, without waiting for it."""
        self._owner.check()
        return self._wait_until(waiting, time.monotonic())

    def is_lost(self) -> bool:
        """Whether the supervisor has ended it, as far as the socket tells without waiting."""
        if self._owner.is_this() and self._broken is None:
            self._read(functools.partial(self._until, _NOTHING, time.monotonic()))
        return isinstance(self.broken, ConnectionLost)

    def close(self) -> None:
        """Ends the connection; who waits is told. In a child of ``fork``, it ends for that child only."""
        if not self._owner.is_this():
            # A lock may be held for ever here: its holder is a thread of the parent.
            self._socket.close()
            return
        self._fail(ConnectionLost("this client was closed"))
        if self._sending.acquire(blocking=False):
            try:
                with self._lock:
                    if self._reader is None:
                        self._socket.close()
            finally:
                self._sending.release()

    def __del__(self) -> None:
        # No thread uses it any more.
        self._socket.close()

    def _wait_until(self, waiting: Sent, end: float | None) -> bool:
        """Waits for the answer to a request; false if it does not come in time."""
        while not waiting.done():
            if self._broken is not None:
                # Who broke it may have been interrupted before all were told.
                self._fail(self._broken)
                continue
            if self._begun is not None and not self._sending.locked():
                with self._sending:
                    self._finish(end)
            if not self._read(functools.partial(self._until, waiting, end)):
                self._sleep(waiting, end)
            if end is not None and time.monotonic() >= end:
                break
        return waiting.done()

    def _until(self, waiting: Sent, end: float | None) -> None:
        """Receives until a request has its answer. By whoever reads."""
        while not waiting.done() and self._broken is None and self._receive(end):
            pass

    def _read(self, receive: Callable[[], None]) -> bool:
        """Makes this thread the one that reads; false where another one is."""
        me = object()
        try:
            with self._lock:
                if self._reader is None:
                    self._reader = me
            if self._reader is not me:
                return False
            receive()
            return True
        finally:
            try:
                self._leave(me)
            except BaseException:
                # It was interrupted itself.
                self._leave(me)
                raise

    def _sleep(self, waiting: Sent, end: float | None) -> None:
        """Sleeps until a request has its answer, or nobody reads."""
        woken = threading.Lock()
        woken.acquire()
        try:
            with self._lock:
                if self._reader is None or waiting.done():
                    return
                self._asleep[woken] = woken
                waiting.sleepers += (woken,)
            woken.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic()))
        finally:
            try:
                self._leave(woken)
            except BaseException:
                self._leave(woken)
                raise

    def _leave(self, me: object) -> None:
        """Reads and sleeps no longer; has one of those that sleep read on, if nobody does. To do so twice changes nothing."""
        with self._lock:
            if self._reader is me:
                self._reader = None
            self._asleep.pop(me, None)
            if self._reader is None:
                # It may have been woken to read before, and have no reason to any more.
                for woken in reversed(self._asleep.values()):
                    _wake(woken)
                    break

    def _receive(self, end: float | None) -> bool:
        """Waits for bytes until ``end``, and gives out the answers in them; false if none came. By whoever reads."""
        try:
            # What another reader left behind comes first.
            if self._give():
                return True
            if end is not None and not self._readable.poll(_left_ms(end)):
                return False
            try:
                goes_on = self._requests.decoder.receive(self._socket.recv, _RECEIVE_BYTES)
            except ConnectionError:
                goes_on = False
            if not goes_on:
                raise lost()
            self._give()
        except Error as why:
            self._fail(why)
        return True

    def _give(self) -> bool:
        """Gives out the answers that were received; false if there was none."""
        given = False
        while True:
            with self._lock:
                waiting = self._requests.next()
                if waiting is None:
                    return given
                for woken in waiting.sleepers:
                    _wake(woken)
                self._requests.taken()
                given = True

    def _fail(self, why: Error) -> None:
        """Ends the connection: all that wait get this error, and so does who comes later. To do so twice changes nothing."""
        with self._lock:
            if self._broken is None:
                self._broken = fresh(why)
            self._requests.fail(self._broken)
            for woken in self._asleep.values():
                _wake(woken)
            self._requests.waiting.clear()
        # Wakes the thread that reads. The descriptor is closed with this object, when no thread uses it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _finish(self, end: float | None) -> None:
        """Ends what another sender was interrupted in: writes the rest of its frame, or forgets it. Senders only."""
        begun = self._begun
        if begun is None:
            return
        if begun.sent:
            if not self._write(begun, end):
                return
        else:
            with self._lock:
                self._requests.waiting.pop(begun.request.id, None)
        self._begun = None

    def _write(self, frame: _Frame, end: float | None) -> bool:
        """Writes the rest of a frame; false if the socket does not take it until ``end``.

        What comes meanwhile is read, so that neither side waits for the other for ever.
        """
        try:
            while (sent := sum(frame.sent)) < len(frame.bytes):
                # The step that writes keeps how much it was.
                try:
                    if frame.descriptors and not sent:
                        descriptors = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", frame.descriptors))
                        writing = map(self._socket.sendmsg, ([frame.bytes],), ([descriptors],), (socket.MSG_DONTWAIT,))
                    else:
                        writing = map(self._socket.send, (memoryview(frame.bytes)[sent:],), (socket.MSG_DONTWAIT,))
                    frame.sent.extend(writing)
                except BlockingIOError:
                    if end is not None and time.monotonic() >= end:
                        return False
                    self._make_room(end)
        except (BrokenPipeError, ConnectionResetError):
            self._last_words()
        return True

    def _make_room(self, end: float | None) -> None:
        """Waits until the socket takes more, and reads meanwhile, unless another thread does."""
        if not self._read(functools.partial(self._until_writable, end)):
            # In the end another thread reads, or none: then it is looked at again who does.
            self._ready(select.POLLOUT, time.monotonic() + _LOOK_AGAIN)
        self.check()

    def _until_writable(self, end: float | None) -> None:
        if self._ready(select.POLLIN | select.POLLOUT, end) & select.POLLIN:
            self._receive(time.monotonic())

    def _ready(self, events: int, end: float | None) -> int:
        """Waits for the socket until ``end``: what of this it is ready for."""
        ready = select.poll()
        ready.register(self._socket, events)
        found = ready.poll(_left_ms(end))
        return found[0][1] if found else 0

    def _last_words(self) -> None:
        """The supervisor closed the connection; it may have said why before it did."""
        while self._broken is None and self._read(functools.partial(self._until, _NOTHING, None)):
            pass


def _end(seconds: float | None) -> float | None:
    """When so many seconds are over."""
    return None if seconds is None else time.monotonic() + bounded(seconds)


def _left_ms(end: float | None) -> float | None:
    """What is left until then, for the system's ``poll``."""
    return None if end is None else max(0.0, end - time.monotonic()) * 1000


def _wake(woken: threading.Lock) -> None:
    """Wakes a thread that sleeps on a lock. To do so twice changes nothing. The connection's lock is held."""
    if woken.locked():
        woken.release()


# Stands for no request: reading for it ends with the connection.
_NOTHING = Sent(0, None, None, None)
