"""C = A B as an API of LitServe, which takes bytes as a file of a form. Its argument is the port."""

import sys

import litserve
import numpy as np
from fastapi import Request
from starlette.responses import Response


class Matmul(litserve.LitAPI):
    def setup(self, device: str) -> None:
        pass

    def decode_request(self, request: Request) -> np.ndarray:
        return np.frombuffer(request["tensors"].file.read(), np.float32).reshape(2, 128, 128)

    def predict(self, tensors: np.ndarray) -> np.ndarray:
        return tensors[0] @ tensors[1]

    def encode_response(self, output: np.ndarray) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    server = litserve.LitServer(Matmul(api_path="/matmul"), accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
