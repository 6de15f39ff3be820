"""A step of a recurrent layer, in Triton: each block computes some units of some rows.

A block reads the state before, and writes the state behind to its place among all states, step by row by unit, which is the
layer's output. With few rows, threads share the depth of each product among them; with many, they share its results.
Formulas are those of ``torch.nn.RNN``, ``GRU`` and ``LSTM``, whose gates lie one behind the other in weights, biases and in
what comes from the inputs.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch._inductor.runtime.triton_helpers import libdevice


@triton.jit
def _added(sums, states, weights, MANY: tl.constexpr):
    """Adds the product of states, row by depth, and weights, unit by depth, to sums, row by unit."""
    if MANY:
        sums = tl.dot(states, tl.trans(weights), sums, input_precision="ieee")
    else:
        sums += tl.sum(states.to(tl.float32)[:, None, :] * weights.to(tl.float32)[None, :, :], 2)
    return sums


@triton.jit
def pappus_recurrent_step(
    by_input,
    weight,
    bias,
    first,
    memory,
    out,
    counter,
    counted,
    step,
    steps,
    rows,
    KIND: tl.constexpr,
    BACKWARD: tl.constexpr,
    COUNTS: tl.constexpr,
    MANY: tl.constexpr,
    HIDDEN: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Computes a step; with ``COUNTS`` that which ``counter`` says, and ``counted`` becomes the next one's number."""
    GATES: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    if COUNTS:
        step = tl.load(counter)
        tl.store(counted, step + 1, mask=(tl.program_id(0) == 0) & (tl.program_id(1) == 0))
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    units = unit < HIDDEN
    both = (row < rows)[:, None] & units[None, :]
    at = step
    before = step - 1
    if BACKWARD:
        at = steps - 1 - step
        before = at + 1
    is_first = step == 0
    # Each step's states lie one behind the other.
    state = tl.where(is_first, first, out + tl.where(is_first, 0, before).to(tl.int64) * rows * HIDDEN)
    zero = tl.zeros((ROWS, UNITS), dtype=tl.float32)
    sum0, sum1, sum2, sum3 = zero, zero, zero, zero
    for start in range(0, HIDDEN, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        known = depth < HIDDEN
        part = tl.load(state + row[:, None] * HIDDEN + depth[None, :], mask=(row < rows)[:, None] & known[None, :], other=0.0)
        by_gate = weight + unit[:, None] * HIDDEN + depth[None, :]
        whole = units[:, None] & known[None, :]
        sum0 = _added(sum0, part, tl.load(by_gate, mask=whole, other=0.0), MANY)
        if GATES > 1:
            sum1 = _added(sum1, part, tl.load(by_gate + HIDDEN * HIDDEN, mask=whole, other=0.0), MANY)
            sum2 = _added(sum2, part, tl.load(by_gate + 2 * HIDDEN * HIDDEN, mask=whole, other=0.0), MANY)
        if GATES > 3:
            sum3 = _added(sum3, part, tl.load(by_gate + 3 * HIDDEN * HIDDEN, mask=whole, other=0.0), MANY)
    gate = by_input + (at.to(tl.int64) * rows + row[:, None]) * (GATES * HIDDEN) + unit[None, :]
    shift = bias + unit
    gate0 = tl.load(gate, mask=both, other=0.0).to(tl.float32)
    sum0 += tl.load(shift, mask=units, other=0.0).to(tl.float32)[None, :]
    own = row[:, None] * HIDDEN + unit[None, :]
    if GATES > 1:
        gate1 = tl.load(gate + HIDDEN, mask=both, other=0.0).to(tl.float32)
        gate2 = tl.load(gate + 2 * HIDDEN, mask=both, other=0.0).to(tl.float32)
        sum1 += tl.load(shift + HIDDEN, mask=units, other=0.0).to(tl.float32)[None, :]
        sum2 += tl.load(shift + 2 * HIDDEN, mask=units, other=0.0).to(tl.float32)[None, :]
    if KIND == "lstm":
        gate3 = tl.load(gate + 3 * HIDDEN, mask=both, other=0.0).to(tl.float32)
        sum3 += tl.load(shift + 3 * HIDDEN, mask=units, other=0.0).to(tl.float32)[None, :]
        kept = tl.load(memory + own, mask=both, other=0.0)
        kept = tl.sigmoid(gate1 + sum1) * kept + tl.sigmoid(gate0 + sum0) * libdevice.tanh(gate2 + sum2)
        tl.store(memory + own, kept, mask=both)
        new = tl.sigmoid(gate3 + sum3) * libdevice.tanh(kept)
    elif KIND == "gru":
        new = libdevice.tanh(gate2 + tl.sigmoid(gate0 + sum0) * sum2)
        update = tl.sigmoid(gate1 + sum1)
        old = tl.load(state + own, mask=both, other=0.0).to(tl.float32)
        new = new + update * (old - new)
    elif KIND == "relu":
        new = tl.maximum(gate0 + sum0, 0.0)
    else:
        new = libdevice.tanh(gate0 + sum0)
    tl.store(out + at.to(tl.int64) * rows * HIDDEN + own, new.to(out.dtype.element_ty), mask=both)
