"""Two Triton kernels for convolutions of two dimensions, as templates of Inductor's: depthwise ones, and groups of any width.

``depthwise`` multiplies and adds value by value: what it takes is the time to read its input and to write its output. A
thread keeps sums of ``COLUMNS`` neighbours in a row, so that it reads what they share once. ``grouped`` is a product of
matrices whose left one is picked from the input place by place; narrow groups lie beside each other in one tile, with zeros
between them. Both dilate; both transpose by asking, for each value of the result, which values of the input reach it.

Templates are text: what stands in braces is filled in when a model is lowered; what Inductor fuses is written behind the sums.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate

# How both begin.
_SIZES = r"""
{{def_kernel("X", "W")}}
    IN_H = {{size("X", 2)}}
    IN_W = {{size("X", 3)}}
    BATCH = {{size(None, 0)}}
    OUT_C = {{size(None, 1)}}
    OUT_H = {{size(None, 2)}}
    OUT_W = {{size(None, 3)}}"""


def _depthwise_grid(n: Any, c: Any, h: Any, w: Any, meta: Any, *, cdiv: Any) -> Any:
    runs = n * h * cdiv(w, meta["COLUMNS"])
    return (cdiv(runs, meta["BLOCK_R"]), cdiv(c, meta["BLOCK_C"]), 1)


# A run is COLUMNS neighbours in a row. The channel is the innermost dimension of a tile where it is that of the arrays.
_DEPTHWISE = r"""
    RUNS_W = (OUT_W + COLUMNS - 1) // COLUMNS

    first = tl.program_id(0).to(INDEX_DTYPE) * BLOCK_R
    run = first + tl.arange(0, BLOCK_R)
    channel = tl.program_id(1).to(INDEX_DTYPE) * BLOCK_C + tl.arange(0, BLOCK_C)
{% if CHANNELS_INNERMOST %}
    run = run[:, None]
    channel = channel[None, :]
    total_0 = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
{% else %}
    run = run[None, :]
    channel = channel[:, None]
    total_0 = tl.zeros((BLOCK_C, BLOCK_R), dtype=tl.float32)
{% endif %}
{% for t in range(1, COLUMNS) %}
    total_{{t}} = total_0
{% endfor %}
    place_w = (run % RUNS_W) * COLUMNS
    rows = run // RUNS_W
    place_h = rows % OUT_H
    picture = rows // OUT_H
    known = channel < OUT_C
    there = (picture < BATCH) & known
    x_ptr = X + picture * {{stride("X", 0)}} + (channel // MULTIPLIER) * {{stride("X", 1)}}
    w_ptr = W + channel * {{stride("W", 0)}}

    for i in {{"tl.static_range" if KERNEL_H <= 7 else "range"}}(KERNEL_H):
{% if TRANSPOSED %}
        from_h = place_h + PADDING_H - i * DILATION_H
        row = from_h // STRIDE_H
        has_row = there & (from_h >= 0) & (from_h % STRIDE_H == 0) & (row < IN_H)
{% else %}
        row = place_h * STRIDE_H + i * DILATION_H - PADDING_H
        has_row = there & (row >= 0) & (row < IN_H)
{% endif %}
        row_ptr = x_ptr + row * {{stride("X", 2)}}
{% for j in range(KERNEL_W) %}
        w_{{j}} = tl.load(w_ptr + i * {{stride("W", 2)}} + {{j}} * {{stride("W", 3)}}, mask=known, other=0.0).to(tl.float32)
{% endfor %}
{% if TRANSPOSED %}
{% for j in range(KERNEL_W) %}
{% for t in range(COLUMNS) %}
        from_w = place_w + {{t + PADDING_W - j * DILATION_W}}
        column = from_w // STRIDE_W
        has = has_row & (from_w >= 0) & (from_w % STRIDE_W == 0) & (column < IN_W)
        x = tl.load(row_ptr + column * {{stride("X", 3)}}, mask=has, other=0.0).to(tl.float32)
        total_{{t}} += x * w_{{j}}
{% endfor %}
{% endfor %}
{% else %}
{% for at in range((COLUMNS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1) %}
{% set found = namespace(read=False) %}
{% for t in range(COLUMNS) %}
{% for j in range(KERNEL_W) %}
{% if t * STRIDE_W + j * DILATION_W == at %}
{% if not found.read %}
{% set found.read = True %}
        column = place_w * STRIDE_W + {{at - PADDING_W}}
        has = has_row & (column >= 0) & (column < IN_W)
        x = tl.load(row_ptr + column * {{stride("X", 3)}}, mask=has, other=0.0).to(tl.float32)
{% endif %}
        total_{{t}} += x * w_{{j}}
{% endif %}
{% endfor %}
{% endfor %}
{% endfor %}
{% endif %}

{% if COLUMNS == 4 %}
    joined = tl.join(tl.join(total_0, total_2), tl.join(total_1, total_3))
{% elif COLUMNS == 2 %}
    joined = tl.join(total_0, total_1)
{% endif %}
{% if CHANNELS_INNERMOST %}
{% if COLUMNS == 4 %}
    total = tl.reshape(tl.permute(joined, (0, 2, 3, 1)), (BLOCK_R * COLUMNS, BLOCK_C))
{% elif COLUMNS == 2 %}
    total = tl.reshape(tl.permute(joined, (0, 2, 1)), (BLOCK_R * COLUMNS, BLOCK_C))
{% else %}
    total = total_0
{% endif %}
    place = (first * COLUMNS + tl.arange(0, BLOCK_R * COLUMNS))[:, None]
{% else %}
{% if COLUMNS > 1 %}
    total = tl.reshape(joined, (BLOCK_C, BLOCK_R * COLUMNS))
{% else %}
    total = total_0
{% endif %}
    place = (first * COLUMNS + tl.arange(0, BLOCK_R * COLUMNS))[None, :]
{% endif %}
    padded = RUNS_W * COLUMNS
    idx_w = place % padded
    place_rows = place // padded
    idx_h = place_rows % OUT_H
    idx_n = place_rows // OUT_H
    idx_c = channel
    mask = (idx_n < BATCH) & (idx_w < OUT_W) & (idx_c < OUT_C)

{% if CHANNELS_INNERMOST %}
    {{store_output(("idx_n", "idx_c", "idx_h", "idx_w"), "total", "mask", val_shape=("BLOCK_R * COLUMNS", "BLOCK_C"))}}
{% else %}
    {{store_output(("idx_n", "idx_c", "idx_h", "idx_w"), "total", "mask", val_shape=("BLOCK_C", "BLOCK_R * COLUMNS"))}}
{% endif %}
"""

depthwise = TritonTemplate(
    name="pappus_depthwise_convolution", grid=SymbolicGridFn(_depthwise_grid), source=_SIZES + _DEPTHWISE
)


def _grouped_grid(n: Any, c: Any, h: Any, w: Any, meta: Any, *, cdiv: Any) -> Any:
    places = n * cdiv(h, meta["PHASES_H"]) * cdiv(w, meta["PHASES_W"])
    if meta["PACKED"] > 1:
        tiles = cdiv(meta["GROUPS"], meta["PACKED"])
    else:
        tiles = meta["GROUPS"] * cdiv(meta["GROUP_OUT"], meta["BLOCK_N"])
    return (cdiv(places, meta["BLOCK_M"]), tiles, meta["PHASES_H"] * meta["PHASES_W"])


# Of a transposed convolution, places whose distance is a multiple of the stride are reached by the same taps: a phase.
# Each phase has blocks of its own, which go over those taps alone. With a dilation there is one phase, and taps that do
# not reach a place count as zeros.
_GROUPED = r"""
    GRID_H = (OUT_H + PHASES_H - 1) // PHASES_H
    GRID_W = (OUT_W + PHASES_W - 1) // PHASES_W
    TAPS_H: tl.constexpr = (KERNEL_H + PHASES_H - 1) // PHASES_H
    TAPS_W: tl.constexpr = (KERNEL_W + PHASES_W - 1) // PHASES_W

    place = tl.program_id(0).to(INDEX_DTYPE) * BLOCK_M + tl.arange(0, BLOCK_M)
{% if PHASES_H * PHASES_W > 1 %}
    phase_h = tl.program_id(2) // PHASES_W
    phase_w = tl.program_id(2) % PHASES_W
{% else %}
    phase_h = 0
    phase_w = 0
{% endif %}
    place_w = (place % GRID_W) * PHASES_W + phase_w
    rows = place // GRID_W
    place_h = (rows % GRID_H) * PHASES_H + phase_h
    picture = rows // GRID_H

    tile = tl.program_id(1).to(INDEX_DTYPE)
    wide = tl.arange(0, BLOCK_N)
{% if PACKED > 1 %}
    # Groups beside each other: of the left matrix the channels of all of them, of the right one zeros beside its blocks.
    out_group = wide // GROUP_OUT
    out_channel = tile * (PACKED * GROUP_OUT) + wide
    out_known = (out_group < PACKED) & (out_channel < OUT_C)
    in_first = tile * (PACKED * GROUP_IN)
    INNER: tl.constexpr = PACKED * GROUP_IN
{% else %}
    tiles = (GROUP_OUT + BLOCK_N - 1) // BLOCK_N
    group = tile // tiles
    within = (tile % tiles) * BLOCK_N + wide
    out_channel = group * GROUP_OUT + within
    out_known = within < GROUP_OUT
    in_first = group * GROUP_IN
    INNER: tl.constexpr = GROUP_IN
{% endif %}
    x_ptr = X + picture * {{stride("X", 0)}} + in_first * {{stride("X", 1)}}
{% if TRANSPOSED %}
    w_ptr = W + in_first * {{stride("W", 0)}} + (out_channel % GROUP_OUT) * {{stride("W", 1)}}
{% else %}
    w_ptr = W + out_channel * {{stride("W", 0)}}
{% endif %}
    STEPS: tl.constexpr = (INNER + BLOCK_K - 1) // BLOCK_K
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(TAPS_H * TAPS_W * STEPS):
        inner = (step % STEPS) * BLOCK_K + tl.arange(0, BLOCK_K)
        tap = step // STEPS
{% if TRANSPOSED %}
        i = (phase_h + PADDING_H) % PHASES_H + (tap // TAPS_W) * PHASES_H
        j = (phase_w + PADDING_W) % PHASES_W + (tap % TAPS_W) * PHASES_W
        from_h = place_h + PADDING_H - i * DILATION_H
        from_w = place_w + PADDING_W - j * DILATION_W
        row = from_h // STRIDE_H
        column = from_w // STRIDE_W
        reached = (from_h >= 0) & (from_h % STRIDE_H == 0) & (from_w >= 0) & (from_w % STRIDE_W == 0)
        reached = reached & (row < IN_H) & (column < IN_W) & (i < KERNEL_H) & (j < KERNEL_W) & (picture < BATCH)
{% else %}
        i = tap // TAPS_W
        j = tap % TAPS_W
        row = place_h * STRIDE_H - PADDING_H + i * DILATION_H
        column = place_w * STRIDE_W - PADDING_W + j * DILATION_W
        reached = (row >= 0) & (row < IN_H) & (column >= 0) & (column < IN_W) & (picture < BATCH)
{% endif %}
        x_at = row * {{stride("X", 2)}} + column * {{stride("X", 3)}}
        in_known = inner < INNER
{% if PACKED > 1 %}
        # The last tile may have fewer groups.
        in_known = in_known & (in_first + inner < GROUPS * GROUP_IN)
{% endif %}
        x = tl.load(
            x_ptr[:, None] + x_at[:, None] + (inner * {{stride("X", 1)}})[None, :],
            mask=reached[:, None] & in_known[None, :],
            other=0.0,
        )
{% if TRANSPOSED %}
        w_inner = inner * {{stride("W", 0)}}
{% else %}
        w_inner = (inner % GROUP_IN) * {{stride("W", 1)}}
{% endif %}
        w_known = (inner < INNER)[:, None] & out_known[None, :]
{% if TRANSPOSED %}
        w_known = w_known & (i < KERNEL_H) & (j < KERNEL_W)
{% endif %}
{% if PACKED > 1 %}
        w_known = w_known & ((inner // GROUP_IN)[:, None] == out_group[None, :])
{% endif %}
        w = tl.load(
            w_ptr[None, :] + w_inner[:, None] + i * {{stride("W", 2)}} + j * {{stride("W", 3)}}, mask=w_known, other=0.0
        )
        total += tl.dot(x, w, allow_tf32=ALLOW_TF32)

    idx_n = picture[:, None]
    idx_c = out_channel[None, :]
    idx_h = place_h[:, None]
    idx_w = place_w[:, None]
    mask = (idx_n < BATCH) & (idx_h < OUT_H) & (idx_w < OUT_W) & out_known[None, :]

    {{store_output(("idx_n", "idx_c", "idx_h", "idx_w"), "total", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
"""

grouped = TritonTemplate(name="pappus_grouped_convolution", grid=SymbolicGridFn(_grouped_grid), source=_SIZES + _GROUPED)
