"""Calls functions through a gateway with the unmodified tritonclient, and compares what comes back with NumPy."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
from collections.abc import Callable

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException
from served import TOKEN, served
from tritonclient.utils import shared_memory as shm

# Handed on as a copy: the client changes what it is given.
HEADERS = {"authorization": f"Bearer {TOKEN}"}


def inputs(module, a: np.ndarray, b: np.ndarray, **how) -> list:
    """The inputs of `vec_add`."""
    given = []
    for name, array in (("A", a), ("B", b)):
        one = module.InferInput(name, list(array.shape), "FP32")
        one.set_data_from_numpy(array, **how)
        given.append(one)
    return given


def refused(call: Callable[[], object], words: str) -> None:
    try:
        call()
    except InferenceServerException as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def described(client, headers: dict[str, str]) -> None:
    """What both protocols tell alike."""
    assert client.is_server_live(headers=headers) and client.is_server_ready(headers=headers)
    assert client.is_model_ready("vec_add", headers=headers)
    of_http = isinstance(client, http.InferenceServerClient)
    more = {} if of_http else {"as_json": True}
    metadata = client.get_model_metadata("vec_add", headers=headers, **more)
    assert [one["datatype"] for one in metadata["inputs"]] == ["FP32", "FP32"], metadata
    assert [int(n) for n in metadata["inputs"][0]["shape"]] == [-1], metadata
    config = client.get_model_config("vec_add", headers=headers, **more)
    config = config if of_http else config["config"]
    assert config["input"][0]["data_type"] == "TYPE_FP32", config
    index = client.get_model_repository_index(headers=headers, **more)
    index = index if of_http else index["models"]
    assert [one["name"] for one in index] == ["last", "vec_add"], index
    statistics = client.get_inference_statistics("vec_add", headers=headers, **more)["model_stats"][0]
    assert int(statistics["inference_stats"]["queue"]["count"]) > 0, statistics
    assert "statistics" in client.get_server_metadata(headers=headers, **more)["extensions"]
    client.unregister_system_shared_memory(headers=headers)
    client.unregister_cuda_shared_memory(headers=headers)
    refused(lambda: client.get_model_metadata("nothing", headers=headers), "no model `nothing`")
    refused(lambda: client.get_model_metadata("vec_add"), "no token")


def over_http(address: str) -> None:
    with http.InferenceServerClient(address) as client:
        for size in (1, 3, 1000, 1_000_000):
            a, b = np.random.rand(size).astype(np.float32), np.ones(size, np.float32)
            for compressed in (None, "gzip", "deflate"):
                outputs = [http.InferRequestedOutput("C", binary_data=True)]
                answer = client.infer(
                    "vec_add",
                    inputs(http, a, b),
                    outputs=outputs,
                    headers=dict(HEADERS),
                    request_id="7",
                    request_compression_algorithm=compressed,
                    response_compression_algorithm=compressed,
                )
                assert np.array_equal(answer.as_numpy("C"), a + b) and answer.get_response()["id"] == "7"
        a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
        # In JSON both ways, and without naming outputs.
        answer = client.infer("vec_add", inputs(http, a, b, binary_data=False), headers=dict(HEADERS),
                              outputs=[http.InferRequestedOutput("C", binary_data=False)])
        assert np.array_equal(answer.as_numpy("C"), a + b)
        assert np.array_equal(client.infer("vec_add", inputs(http, a, b), headers=dict(HEADERS)).as_numpy("C"), a + b)
        pending = [client.async_infer("vec_add", inputs(http, a, b + n), headers=dict(HEADERS)) for n in range(8)]
        assert all(np.array_equal(one.get_result().as_numpy("C"), a + b + n) for n, one in enumerate(pending))
        refused(lambda: client.infer("vec_add", inputs(http, a, np.ones(5, np.float32)), headers=dict(HEADERS)), "")
        refused(lambda: client.infer("vec_add", inputs(http, a, b)), "no token")
        described(client, dict(HEADERS))


def over_grpc(address: str) -> None:
    with grpc.InferenceServerClient(address) as client:
        for size in (1, 3, 1000, 1_000_000):
            a, b = np.random.rand(size).astype(np.float32), np.ones(size, np.float32)
            answer = client.infer("vec_add", inputs(grpc, a, b), headers=dict(HEADERS))
            assert np.array_equal(answer.as_numpy("C"), a + b)
        a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
        answers: queue.Queue = queue.Queue()
        tell = lambda result, error: answers.put((result, error))
        client.async_infer("vec_add", inputs(grpc, a, b), callback=tell, headers=dict(HEADERS))
        result, error = answers.get(timeout=60)
        assert error is None and np.array_equal(result.as_numpy("C"), a + b)
        client.start_stream(callback=tell, headers=dict(HEADERS))
        for n in range(3):
            client.async_stream_infer("vec_add", inputs(grpc, a, b + n), request_id=str(n))
        client.async_stream_infer("nothing", inputs(grpc, a, b))
        for n in range(3):
            result, error = answers.get(timeout=60)
            assert error is None and np.array_equal(result.as_numpy("C"), a + b + n)
        _, error = answers.get(timeout=60)
        assert "no model `nothing`" in str(error)
        client.stop_stream()
        refused(lambda: client.infer("vec_add", inputs(grpc, a, b)), "no token")
        described(client, dict(HEADERS))


async def with_asyncio(http_address: str, grpc_address: str) -> None:
    a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    async with http_aio.InferenceServerClient(http_address) as client:
        calls = [client.infer("vec_add", inputs(http, a, b + n), headers=dict(HEADERS)) for n in range(16)]
        for n, answer in enumerate(await asyncio.gather(*calls)):
            assert np.array_equal(answer.as_numpy("C"), a + b + n)
    async with grpc_aio.InferenceServerClient(grpc_address) as client:
        calls = [client.infer("vec_add", inputs(grpc, a, b + n), headers=dict(HEADERS)) for n in range(16)]
        for n, answer in enumerate(await asyncio.gather(*calls)):
            assert np.array_equal(answer.as_numpy("C"), a + b + n)


def in_shared_memory(module, address: str) -> None:
    """Inputs and output of one call in a region of shared memory."""
    a, b = np.arange(256, dtype=np.float32), np.ones(256, np.float32)
    key = f"/pappus_{os.getpid()}_{module.__name__.split('.')[1]}"
    region = shm.create_shared_memory_region("tensors", key, 3 * a.nbytes)
    try:
        shm.set_shared_memory_region(region, [a, b])
        with module.InferenceServerClient(address) as client:
            client.register_system_shared_memory("tensors", key, 3 * a.nbytes, headers=dict(HEADERS))
            given = []
            for at, name in enumerate(("A", "B")):
                one = module.InferInput(name, list(a.shape), "FP32")
                one.set_shared_memory("tensors", a.nbytes, offset=at * a.nbytes)
                given.append(one)
            output = module.InferRequestedOutput("C")
            output.set_shared_memory("tensors", a.nbytes, offset=2 * a.nbytes)
            client.infer("vec_add", given, outputs=[output], headers=dict(HEADERS))
            told = shm.get_contents_as_numpy(region, np.float32, [256], offset=2 * a.nbytes)
            assert np.array_equal(told, a + b), told
            client.unregister_system_shared_memory("tensors", headers=dict(HEADERS))
            refused(lambda: client.infer("vec_add", given, outputs=[output], headers=dict(HEADERS)), "no region")
    finally:
        shm.destroy_shared_memory_region(region)


def in_sequences(module, address: str) -> None:
    """Requests that share state, of two sequences by turns: one has a number, one a text."""
    def said(client, name: int | str, number: float, **how) -> float:
        given = module.InferInput("X", [4], "FP32")
        given.set_data_from_numpy(np.full(4, number, np.float32))
        answer = client.infer("last", [given], headers=dict(HEADERS), sequence_id=name, **how)
        return float(answer.as_numpy("before")[3])

    with module.InferenceServerClient(address) as client:
        for number in range(1, 6):
            how = {"sequence_start": number == 1, "sequence_end": number == 5}
            assert said(client, 7, number, **how) == number - 1
            assert said(client, "seven", 10 * number, **how) == 10 * (number - 1)
        refused(lambda: said(client, 7, 6), "sequence_start")


def main() -> None:
    with served() as addresses:
        over_http(addresses["HTTP"])
        over_grpc(addresses["gRPC"])
        in_shared_memory(http, addresses["HTTP"])
        in_shared_memory(grpc, addresses["gRPC"])
        in_sequences(http, addresses["HTTP"])
        in_sequences(grpc, addresses["gRPC"])
        asyncio.run(with_asyncio(addresses["HTTP"], addresses["gRPC"]))
    print("tritonclient over HTTP, gRPC, with asyncio, shared memory and sequences: as it should be")


if __name__ == "__main__":
    sys.exit(main())
