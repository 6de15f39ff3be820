"""A function behind HTTP, by Ray Serve: each replica calls the supervisor of the node that it runs on.

PAPPUS_SOCKET=/run/pappus/pappus.sock ray start --head --resources='{"pappus": 1}'
cd python/examples && serve run serve:app
curl -d '{"A": [1, 2, 3], "B": [10, 20, 30]}' http://127.0.0.1:8000/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import pappus.aio

VEC_ADD = Path(__file__).resolve().parents[2] / "kernels/configs/vec_add.json"


@serve.deployment(
    # Replicas go to nodes with a supervisor. What they need of the processor is little: kernels run in its workers.
    ray_actor_options={"num_cpus": 0.1, "resources": {"pappus": 0.01}},
    # Calls wait in the supervisor, which is fair among tenants, rather than here.
    max_ongoing_requests=256,
)
class FunctionReplica:
    """Serves one function: arrays as lists of numbers in JSON, or as NumPy arrays to callers inside the cluster."""

    async def __init__(self, name: str, path: str) -> None:
        self._client = await pappus.aio.connect()
        self._function = await self._client.add_function(name, path, replace=True)

    async def infer(self, **inputs: np.ndarray[Any, Any]) -> Any:
        """For handles: ``await handle.infer.remote(A=…)``."""
        return await self._function(**inputs)

    async def check_health(self) -> None:
        """Serve replaces replicas whose supervisor is gone."""
        await self._client.status()

    async def __call__(self, request: Request) -> JSONResponse:
        """Answers a request over HTTP; an error has the code that Pappus gives it."""
        try:
            outcome = await self._function(**await request.json())
        except pappus.Error as error:
            status = 503 if error.retryable else 400
            return JSONResponse({"code": error.code, "message": str(error)}, status)
        outputs = outcome if isinstance(outcome, dict) else {self._function.outputs[0].name: outcome}
        return JSONResponse({name: array.tolist() for name, array in outputs.items()})


app = FunctionReplica.bind("vec_add", str(VEC_ADD))
