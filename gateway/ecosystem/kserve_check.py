"""Calls functions through a gateway with KServe's own clients, unmodified, and compares what comes back with NumPy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput
from served import TOKEN, served

# It logs each refusal; they are meant here.
logging.disable()
HEADERS = {"authorization": f"Bearer {TOKEN}"}
METADATA = tuple(HEADERS.items())


def request(a: np.ndarray, b: np.ndarray, binary: bool, answer_binary: bool = True) -> InferRequest:
    """A call of `vec_add`."""
    given = []
    for name, array in (("A", a), ("B", b)):
        one = InferInput(name, list(array.shape), "FP32")
        one.set_data_from_numpy(array, binary_data=binary)
        given.append(one)
    wanted = [RequestedOutput("C", parameters={"binary_data": answer_binary})]
    return InferRequest("vec_add", given, request_id="7", request_outputs=wanted)


async def refused(call: Awaitable[object], words: str) -> None:
    try:
        await call
    except Exception as error:  # Each of its transports has errors of its own.
        response = getattr(error, "response", None)
        assert words in f"{error} {response.text if response is not None else ''}", error
    else:
        raise AssertionError(f"not refused: {words}")


async def over_http(address: str) -> None:
    client, url = InferenceRESTClient(RESTConfig(protocol="v2", retries=0)), f"http://{address}"
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, "vec_add", headers=dict(HEADERS))
    for size in (1, 3, 1000, 100_000):
        a, b = np.random.rand(size).astype(np.float32), np.ones(size, np.float32)
        for binary, answer_binary in ((True, True), (True, False), (False, True), (False, False)):
            answer = await client.infer(url, request(a, b, binary, answer_binary), "vec_add", headers=dict(HEADERS))
            assert answer.id == "7" and answer.model_name == "vec_add", answer
            assert np.array_equal(answer.outputs[0].as_numpy(), a + b), (size, binary, answer_binary)
    a, b = np.ones(3, np.float32), np.ones(4, np.float32)
    await refused(client.infer(url, request(a, b, True), "vec_add", headers=dict(HEADERS)), "INVALID_ARGUMENT")
    await refused(client.infer(url, request(a, a, True), "vec_add"), "no token")
    await refused(client.infer(url, request(a, a, True), "nothing", headers=dict(HEADERS)), "no model `nothing`")
    await client.close()


async def over_grpc(address: str) -> None:
    client = InferenceGRPCClient(address, retries=0)
    assert await client.is_server_live() and await client.is_server_ready()
    for size in (1, 3, 1000, 1_000_000):
        a, b = np.random.rand(size).astype(np.float32), np.ones(size, np.float32)
        for binary in (True, False) if size <= 1000 else (True,):
            answer = await client.infer(request(a, b, binary), headers=METADATA)
            assert answer.id == "7" and np.array_equal(answer.outputs[0].as_numpy(), a + b), (size, binary)
    pending = [client.infer(request(a[:4], b[:4] + n, True), headers=METADATA) for n in range(8)]
    for n, answer in enumerate(await asyncio.gather(*pending)):
        assert np.array_equal(answer.outputs[0].as_numpy(), a[:4] + (b[:4] + np.float32(n)))
    await refused(client.infer(request(a[:4], a[:4], True)), "no token")
    # It asks for a model without metadata, and so without a token: that is for gateways with --own-tenant.
    await refused(client.is_model_ready("vec_add"), "no token")
    await client.close()


async def check() -> None:
    with served() as addresses:
        for protocol, over in (("HTTP", over_http), ("gRPC", over_grpc)):
            await over(addresses[protocol])
            print(f"KServe's client over {protocol}: right")


asyncio.run(check())
