"""The connection of an asynchronous client. It belongs to one event loop, which calls it when the socket has or takes bytes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence

from pappus import _pending, _wire
from pappus._connection import lost
from pappus._pending import Memory, Waiting
from pappus._proto import pappus_pb2 as v1
from pappus.errors import ConnectionLost, Error, fresh

_RECEIVE_BYTES = 256 << 10
# While this much waits to be sent, senders wait, too.
_MOST_UNSENT_BYTES = 1 << 20


class AsyncConnection:
    """Sends requests and gives each its answer."""

    def __init__(self, peer: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        peer.setblocking(False)
        self._socket = peer
        self._loop = loop
        self._decoder = _wire.Decoder()
        self._next_id = 1
        self._waiting: dict[int, tuple[Waiting, asyncio.Future[None]]] = {}
        # Frames that the socket did not take yet, with their descriptors, which are ours.
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._unsent_bytes = 0
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self.broken: Error | None = None
        loop.add_reader(peer, self._readable)

    async def call(self, body: bytes, descriptors: Sequence[int] = (), memory: Memory | None = None) -> v1.Response:
        """Sends a request that is encoded but for its number, and waits for its answer.

        A call whose caller is cancelled is cancelled at the supervisor; what it uses is kept until that answers.
        """
        while not self._room.is_set() and self.broken is None:
            await self._room.wait()
        if self.broken is not None:
            raise fresh(self.broken)
        id = self._next_id
        self._next_id += 1
        waiting, answered = Waiting(id, memory), self._loop.create_future()
        self._waiting[id] = waiting, answered
        self._send(_wire.frame(v1.Request(id=id).SerializeToString() + body, len(descriptors)), descriptors)
        try:
            await answered
        except asyncio.CancelledError:
            if memory is not None and id in self._waiting and self.broken is None:
                self._cancel(id)
            raise
        return waiting.outcome()

    def close(self) -> None:
        """Ends the connection; who waits is told."""
        self._fail(ConnectionLost("this client was closed"))

    def _cancel(self, call: int) -> None:
        """Cancels a call that nobody waits for any more; the answer to this is not waited for either."""
        id = self._next_id
        self._next_id += 1
        self._waiting[id] = Waiting(id, None), self._loop.create_future()
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
        if self._unsent_bytes > _MOST_UNSENT_BYTES:
            self._room.clear()
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
        self._room.set()

    def _readable(self) -> None:
        try:
            received = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = b""
        try:
            if not received:
                raise lost()
            for message in self._decoder.feed(received):
                answer = _pending.decode(message)
                waiting, answered = self._waiting.pop(answer.id, (None, None))
                _pending.settle(waiting, answer)
                if answered is not None and not answered.done():
                    answered.set_result(None)
        except Error as why:
            self._fail(why)

    def _fail(self, why: Error) -> None:
        """Ends the connection: all that wait get this error, and so does who comes later."""
        if self.broken is not None:
            return
        self.broken = fresh(why)
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for waiting, answered in self._waiting.values():
            waiting.error = self.broken
            if not answered.done():
                answered.set_result(None)
        self._waiting.clear()
        for _, descriptors in self._unsent:
            _close_all(descriptors)
        self._unsent.clear()
        self._room.set()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
