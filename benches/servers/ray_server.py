"""C = A B as a deployment of Ray Serve: bytes in, bytes out. Its argument is the port."""

import sys

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(max_ongoing_requests=64)
class Matmul:
    async def __call__(self, request: Request) -> Response:
        a, b = np.frombuffer(await request.body(), np.float32).reshape(2, 128, 128)
        return Response((a @ b).tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Matmul.bind(), route_prefix="/matmul", blocking=True)
