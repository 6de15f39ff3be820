"""A small client of HTTP/1.1 for measuring: connections that stay, one call in flight on each, all in one thread, so that it takes as
little of the machine as Python can. It compares each answer with what must come."""

from __future__ import annotations

import array
import json
import random
import select
import socket
import time

SIDE = 128
BYTES = SIDE * SIDE * 4


def operands() -> tuple[bytes, bytes, bytes]:
    """A, B and A B. B is twice the unit matrix, so the product is exact however it is added up."""
    dice = random.Random(7)
    a = array.array("f", (dice.random() for _ in range(SIDE * SIDE)))
    b = array.array("f", (2.0 * (n // SIDE == n % SIDE) for n in range(SIDE * SIDE)))
    return a.tobytes(), b.tobytes(), array.array("f", (2 * x for x in a)).tobytes()


A, B, C = operands()


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    head = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def plain() -> bytes:
    """The two matrices, one behind the other."""
    return post("/matmul", A + B, {"Content-Type": "application/octet-stream"})


def form() -> bytes:
    """The same as a file of a form."""
    begin = b'--limit\r\nContent-Disposition: form-data; name="tensors"; filename="tensors"\r\n'
    body = begin + b"Content-Type: application/octet-stream\r\n\r\n" + A + B + b"\r\n--limit--\r\n"
    return post("/matmul", body, {"Content-Type": "multipart/form-data; boundary=limit"})


def tensors(model: str) -> bytes:
    """The Open Inference Protocol with Triton's binary tensors."""
    sizes = {"binary_data_size": BYTES}
    of = lambda name: {"name": name, "datatype": "FP32", "shape": [SIDE, SIDE], "parameters": sizes}
    wanted = [{"name": "C", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [of("A"), of("B")], "outputs": wanted}).encode()
    return post(f"/v2/models/{model}/infer", head + A + B, {"Inference-Header-Content-Length": str(len(head))})


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(60)
        self.got, self.whole = bytearray(), None

    def send(self, request: bytes) -> None:
        self.began = time.perf_counter_ns()
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """An answer's body, once all of it is there. C must lie at its end."""
        part = self.socket.recv(1 << 18)
        if not part:
            raise ConnectionError("the server closed the connection")
        self.got += part
        if self.whole is None and (head := self.got.find(b"\r\n\r\n")) >= 0:
            lines = bytes(self.got[:head]).lower().split(b"\r\n")
            length = next((line for line in lines if line.startswith(b"content-length:")), None)
            if b" 200 " not in lines[0] or length is None:
                raise ConnectionError(bytes(self.got[:600]).decode(errors="replace"))
            self.whole = head + 4 + int(length.split(b":")[1])
        if self.whole is None or len(self.got) < self.whole:
            return None
        self.took = time.perf_counter_ns() - self.began
        answer, self.got, self.whole = bytes(self.got), bytearray(), None
        if not answer.endswith(C):
            raise ConnectionError("the product is wrong")
        return answer


def measure(port: int, request: bytes, in_flight: int, seconds: float, rounds: int) -> dict[str, float]:
    """Quantiles in microseconds, and calls a second, of that many connections: of the round with the lowest median, which other programs
    of the machine disturbed least."""
    return min((a_round(port, request, in_flight, seconds) for _ in range(rounds)), key=lambda one: one["p50_us"])


def a_round(port: int, request: bytes, in_flight: int, seconds: float) -> dict[str, float]:
    connections = [Connection(port) for _ in range(in_flight)]
    by_number = {one.socket.fileno(): one for one in connections}
    poll = select.poll()
    for one in connections:
        poll.register(one.socket, select.POLLIN)
        one.send(request)
    times: list[int] = []
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        for number, _ in poll.poll(1000):
            if by_number[number].receive() is not None:
                times.append(by_number[number].took)
                by_number[number].send(request)
    for one in connections:
        one.socket.close()
    times.sort()
    at = lambda share: times[int(len(times) * share)] / 1e3
    return {"p50_us": at(0.5), "p99_us": at(0.99), "calls_per_s": len(times) / (now - began), "calls": len(times)}
