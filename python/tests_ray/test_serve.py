"""The example of Ray Serve runs as it stands."""

from __future__ import annotations

import importlib.util
import json
import socket
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from ray import serve

from fixture import REPOSITORY


def example() -> Any:
    path = REPOSITORY / "python/examples/serve.py"
    spec = importlib.util.spec_from_file_location("serve_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_function_answers_over_http_and_inside_the_cluster(machines: Any) -> None:
    machines.add()
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        handle = serve.run(example().app)
        result = handle.infer.remote(A=np.float32([1, 2]), B=np.float32([3, 4])).result()
        np.testing.assert_array_equal(result, np.float32([4, 6]))

        def post(body: dict[str, Any]) -> Any:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        assert post({"A": [1, 2, 3], "B": [10, 20, 30]}) == {"C": [11, 22, 33]}
        with pytest.raises(urllib.error.HTTPError) as caught:
            post({"A": [1, 2, 3]})
        with caught.value as error:
            assert (error.code, json.load(error)["code"]) == (400, "INVALID_ARGUMENT")
    finally:
        serve.shutdown()
