"""What travels on the socket: sixteen bytes of greeting each way, then frames. Bytes in, messages out; no input or output.

::

    greeting   0 magic 8 | lowest 10 | highest 12 | zeros 16
    frame      0 length 4 | descriptors 5 | zeros 8 | message …       integers are little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from pappus.errors import ProtocolError

MAGIC = b"PAPPUS\r\n"
VERSION = 1
GREETING_BYTES = 16
HEADER_BYTES = 8
MAX_MESSAGE_BYTES = 4 << 20
MAX_MESSAGE_FDS = 8
MAX_INLINE_BYTES = 1 << 20
# Of one connection.
MAX_ARENAS = 64
MAX_ARENA_BYTES = 64 << 30

_HEADER = struct.Struct("<IBBH")
_VERSIONS = struct.Struct("<HHI")

GREETING = MAGIC + _VERSIONS.pack(VERSION, VERSION, 0)


def check_greeting(answer: bytes) -> None:
    """Judges the supervisor's greeting: it chose our version, or there is no talking to it."""
    lowest, highest, reserved = _VERSIONS.unpack(answer[8:GREETING_BYTES])
    if answer[:8] != MAGIC or reserved != 0 or (lowest, highest) not in ((VERSION, VERSION), (0, 0)):
        raise ProtocolError("this socket does not belong to a Pappus supervisor")
    if highest == 0:
        raise ProtocolError("the supervisor speaks another version of the protocol: install the `pappus` package it came with")


def frame(message: bytes, descriptors: int = 0) -> bytes:
    """A message with its header."""
    return _HEADER.pack(len(message), descriptors, 0, 0) + message


class Decoder:
    """Turns received bytes into messages. A supervisor sends no descriptors, so a frame that announces some is broken.

    An exception of a signal handler may strike between any two steps of the interpreter. Each change here is one step, and a
    message stays the next one until it is taken: who reads next goes on where another one was interrupted.
    """

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # Pieces as they were received; how many bytes of the first one were taken; the next frame's length and its message,
        # as far as they are known.
        self._state: tuple[list[bytes], int, int | None, bytes | None] = [], 0, None, None

    def receive(self, receive: Callable[[int], bytes], size: int) -> bool:
        """Takes bytes from a socket; false at its end."""
        pieces = self._state[0]
        # The step that takes bytes from the socket keeps them, too.
        pieces.extend(map(receive, (size,)))
        return bool(pieces[-1])

    def message(self) -> bytes | None:
        """The next message, if all of it was received."""
        pieces, at, length, message = self._state
        if message is not None:
            return message
        there = sum(map(len, pieces)) - at
        if there < HEADER_BYTES + (length or 0):
            return None
        if len(pieces) > 1:
            pieces, at = [b"".join((pieces[0][at:], *pieces[1:]))], 0
        if length is None:
            length = _length(pieces[0], at)
        if there >= HEADER_BYTES + length:
            start = at + HEADER_BYTES
            message = pieces[0][start : start + length]
        self._state = pieces, at, length, message
        return message

    def taken(self) -> None:
        """Goes on behind the next message."""
        pieces, at, length, _ = self._state
        at += HEADER_BYTES + (length or 0)
        self._state = ([], 0, None, None) if at == len(pieces[0]) else (pieces, at, None, None)


def _length(frame: bytes, at: int) -> int:
    """What a frame's header says."""
    length, descriptors, reserved, more = _HEADER.unpack_from(frame, at)
    if length > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"the supervisor announces a message of {length} bytes, more than there can be")
    if descriptors or reserved or more:
        raise ProtocolError("the supervisor sent a broken frame: bytes of its header that must be zero are not")
    size: int = length
    return size
