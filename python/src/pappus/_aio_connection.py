"""The connection of an asynchronous client. It belongs to one event loop, which calls it when the socket has or takes bytes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from pappus import _pending, _wire
from pappus._opening import Opening, lost
from pappus._owner import Owned
from pappus._pending import ANSWER_SECONDS, Memory, Requests, Waiting, bounded
from pappus._proto import pappus_pb2 as v1
from pappus.errors import ConnectionLost, Error, fresh

_RECEIVE_BYTES = 256 << 10
# While this much waits to be sent, senders wait, too.
_MOST_UNSENT_BYTES = 1 << 20


async def run(steps: Opening, loop: asyncio.AbstractEventLoop) -> socket.socket:
    """Connects. A task that is cancelled meanwhile leaves nothing behind."""
    try:
        while True:
            pause = next(steps)
            told = loop.create_future()
            if pause.readable is not None:
                loop.add_reader(pause.readable, _tell, told)
            try:
                await _told(told, pause.seconds, loop)
            finally:
                if pause.readable is not None:
                    loop.remove_reader(pause.readable)
    except StopIteration as end:
        peer: socket.socket = end.value
        return peer
    finally:
        steps.close()


async def _told(told: asyncio.Future[None], seconds: float | None, loop: asyncio.AbstractEventLoop) -> None:
    """Waits until a future is told, or so many seconds are over."""
    timer = None if seconds is None else loop.call_later(bounded(seconds), _tell, told)
    try:
        await told
    finally:
        if timer is not None:
            timer.cancel()


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


class _Waiting(Waiting):
    """With what the task that wants the answer waits for."""

    __slots__ = ("answered",)

    def __init__(
        self,
        id: int,
        answered: asyncio.Future[None],
        memory: Memory | None = None,
        arrived: Callable[[v1.Response], None] | None = None,
        limit: float | None = None,
    ) -> None:
        super().__init__(id, memory, arrived, limit)
        self.answered = answered


class AsyncConnection(Owned):
    """Sends requests and gives each its answer."""

    def __init__(self, peer: socket.socket, loop: asyncio.AbstractEventLoop, answer_seconds: float = ANSWER_SECONDS) -> None:
        super().__init__()
        self._socket = peer
        self._loop = loop
        self._answer_seconds = answer_seconds
        self._next_id = 1
        self._requests: Requests[_Waiting] = Requests()
        # Frames that the socket did not take yet, with their descriptors, which are ours.
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._unsent_bytes = 0
        # Told when the socket has taken all of it.
        self._want_room: list[asyncio.Future[None]] = []
        loop.add_reader(peer, self._readable)

    async def ask(
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
        return await self._exchange(body, descriptors, arrived=arrived, limit=limit)

    async def call(self, body: bytes, memory: Memory, deadline_ns: int) -> v1.Response:
        """Makes a call that is encoded but for its number.

        A call whose caller is cancelled is cancelled at the supervisor; what it uses is kept until that answers.
        """
        limit = deadline_ns / 1e9 + self._answer_seconds if deadline_ns else None
        return await self._exchange(body, memory=memory, limit=limit)

    async def _exchange(
        self,
        body: bytes,
        descriptors: Sequence[int] = (),
        *,
        memory: Memory | None = None,
        arrived: Callable[[v1.Response], None] | None = None,
        limit: float | None = None,
    ) -> v1.Response:
        """Sends a request that is encoded but for its number, and waits for its answer."""
        self.check()
        while self._unsent_bytes > _MOST_UNSENT_BYTES and self._broken is None:
            room = self._loop.create_future()
            self._want_room.append(room)
            await _told(room, limit, self._loop)
            if room in self._want_room:
                self._want_room.remove(room)
                raise _pending.silent(limit)
        self.check()
        id = self._number()
        waiting = self._requests.waiting[id] = _Waiting(id, self._loop.create_future(), memory, arrived, limit)
        self._send(_wire.frame(v1.Request(id=id).SerializeToString() + body, len(descriptors)), descriptors)
        try:
            await _told(waiting.answered, limit, self._loop)
        except asyncio.CancelledError:
            if memory is not None and not waiting.done():
                self._cancel(id)
            raise
        if not waiting.done():
            raise _pending.silent(limit)
        return waiting.outcome()

    def is_lost(self) -> bool:
        """Whether the supervisor has ended it, as far as the socket tells without waiting."""
        if self._owner.is_this() and self._broken is None:
            self._readable()
        return isinstance(self.broken, ConnectionLost)

    def close(self) -> None:
        """Ends the connection; who waits is told. In a child of ``fork``, it ends for that child only."""
        if self._owner.is_this():
            self._fail(ConnectionLost("this client was closed"))
        else:
            # The event loop watches sockets of the parent, too.
            self._socket.close()

    def _number(self) -> int:
        id = self._next_id
        self._next_id = id + 1
        return id

    def _cancel(self, call: int) -> None:
        """Cancels a call that nobody waits for any more; the answer to this is not waited for either."""
        id = self._number()
        self._requests.waiting[id] = _Waiting(id, self._loop.create_future())
        request = v1.Request(id=id, cancel=v1.Cancel(request=call))
        self._send(_wire.frame(request.SerializeToString()), ())

    def _send(self, frame: bytes, descriptors: Sequence[int]) -> None:
        rest, left = memoryview(frame), list(descriptors)
        if not self._unsent:
            rest, left = self._write(rest, left)
            if not rest:
                return
        # The caller closes its descriptors when it has the answer, or gives up.
        self._unsent.append((rest, [os.dup(descriptor) for descriptor in left]))
        self._unsent_bytes += len(rest)
        self._loop.add_writer(self._socket, self._writable)

    def _write(self, rest: memoryview, descriptors: list[int]) -> tuple[memoryview, list[int]]:
        """Writes as much as the socket takes; what is left to write."""
        try:
            if descriptors:
                sent = socket.send_fds(self._socket, [rest], descriptors)
            else:
                sent = self._socket.send(rest)
        except (BlockingIOError, InterruptedError):
            return rest, descriptors
        except OSError:
            # Why the supervisor closed the connection is still to be read.
            return memoryview(b""), []
        return rest[sent:], []

    def _writable(self) -> None:
        if not self._owner.is_this():
            return
        while self._unsent:
            rest, descriptors = self._unsent[0]
            left, owed = self._write(rest, descriptors)
            self._unsent_bytes -= len(rest) - len(left)
            if not owed:
                _close_all(descriptors)
            if left:
                self._unsent[0] = left, owed
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._socket)
        self._make_room()

    def _make_room(self) -> None:
        for room in self._want_room:
            _tell(room)
        self._want_room.clear()

    def _readable(self) -> None:
        if not self._owner.is_this():
            return
        try:
            goes_on = self._requests.decoder.receive(self._socket.recv, _RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:
            goes_on = False
        try:
            if not goes_on:
                raise lost()
            while (waiting := self._requests.next()) is not None:
                _tell(waiting.answered)
                self._requests.taken()
        except Error as why:
            self._fail(why)

    def _fail(self, why: Error) -> None:
        """Ends the connection: all that wait get this error, and so does who comes later."""
        if self._broken is not None:
            return
        self._broken = fresh(why)
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._requests.fail(self._broken)
        for waiting in self._requests.waiting.values():
            _tell(waiting.answered)
        self._requests.waiting.clear()
        for _, descriptors in self._unsent:
            _close_all(descriptors)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._make_room()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
