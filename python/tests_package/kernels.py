"""Triton kernels as people write them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


@triton.autotune([triton.Config({"BLOCK": size}, num_warps=4) for size in (128, 512)], key=["columns"])
@triton.jit
def softmax(x_ptr, out_ptr, columns, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf")) * scale
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + at, e / tl.sum(e, 0), mask=inside)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        a = tl.load(
            a_ptr + m[:, None] * K + (k + start)[None, :], mask=(m[:, None] < M) & ((k + start)[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + (k + start)[:, None] * N + n[None, :], mask=((k + start)[:, None] < K) & (n[None, :] < N), other=0.0
        )
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def copy_rows(x_ptr, out_ptr, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    """Makes its descriptors on the device, for which it needs scratch memory."""
    x = tl.make_tensor_descriptor(x_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[BM, BN])
    out = tl.make_tensor_descriptor(out_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.store([m, n], x.load([m, n]) * 2)


@triton.jit
def add_in_stages(x_ptr, out_ptr, n, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    """As Triton's tutorial on softmax has it: a parameter that is an option of the launch, too."""
    for begin in tl.range(0, n, BLOCK, num_stages=num_stages):
        at = begin + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + num_stages, mask=at < n)


@triton.jit
def accumulate(x_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(sum_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def times(x_ptr, out_ptr, n, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * SCALE, mask=at < n)
