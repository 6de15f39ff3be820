"""C = A B as a model of pytriton: the same protocol as the gateway's. Its argument is the port; gRPC has the next one."""

import sys

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def matmul(requests):
    return [{"C": request["A"] @ request["B"]} for request in requests]


def matrix(name: str) -> Tensor:
    return Tensor(name=name, dtype=np.float32, shape=(128, 128))


if __name__ == "__main__":
    port = int(sys.argv[1])
    config = TritonConfig(http_address="127.0.0.1", http_port=port, grpc_address="127.0.0.1", grpc_port=port + 1,
                          allow_metrics=False)
    with Triton(config=config) as triton:
        triton.bind("sgemm", matmul, [matrix("A"), matrix("B")], [matrix("C")], config=ModelConfig(batching=False))
        triton.serve()
