"""What travels on the socket: sixteen bytes of greeting each way, then frames. Bytes in, messages out; no input or output.

::

    greeting   0 magic 8 | lowest 10 | highest 12 | zeros 16
    frame      0 length 4 | descriptors 5 | zeros 8 | message …       integers are little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
    """Turns received bytes into messages. A supervisor sends no descriptors, so a frame that announces some is broken."""

    __slots__ = ("_needed", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        # Bytes of the frame that is pending, as far as is known.
        self._needed = HEADER_BYTES

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The messages that are complete with these bytes."""
        if self._pending:
            self._pending += received
            if len(self._pending) < self._needed:
                return
            received = bytes(self._pending)
            self._pending.clear()
        at, end, needed = 0, len(received), HEADER_BYTES
        while end - at >= HEADER_BYTES:
            length, descriptors, reserved, more = _HEADER.unpack_from(received, at)
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"the supervisor announces a message of {length} bytes, more than there can be")
            if descriptors or reserved or more:
                raise ProtocolError("the supervisor sent a broken frame: bytes of its header that must be zero are not")
            if end - at - HEADER_BYTES < length:
                needed = HEADER_BYTES + length
                break
            at += HEADER_BYTES
            yield received[at : at + length]
            at += length
            needed = HEADER_BYTES
        if at < end:
            self._pending += received[at:]
            self._needed = needed
