"""Which tile configuration a matrix product or convolution gets where nothing was measured.

An estimate of the time from shapes alone: what a multiprocessor multiplies and loads for a tile, how long it waits for
memory, how many tiles it has beside each other and one after the other. Its numbers are those with which, of 154 operations
that were measured on an H200, the fastest configuration comes out first or close behind. Depthwise convolutions are no
products: what they read counts.
"""

from __future__ import annotations

import math
import re
from typing import Any

from .pretend import processors
from .targets import Target

# What a thread keeps of the result: with fewer values it loads more than it computes, with more its registers spill.
_BEST_VALUES = (16, 64)
# Products that a multiprocessor adds up in a clock, of smaller factors and of float32, each of which is three of TF32.
_PRODUCTS_OF_HALVES, _PRODUCTS_OF_FLOAT32 = 1024, 128
# Bytes that it loads in a clock, clocks until a load is there, and those that a tile takes to begin and to end.
_LOADED, _LATENCY, _BEGIN = 64, 900, 2000
# Warps of the tiles that it has beside each other.
_WARPS = 24


def estimate(choice: Any, target: Target, shared_bytes: int) -> float:
    """Time in no unit; infinite where it cannot run."""
    options = options_of(choice)
    if "depthwise_convolution" in choice.name:
        return _depthwise(choice, options, target)
    tile_m, tile_n, tile_k = (options.get(f"BLOCK_{axis}", 1) for axis in "MNK")
    warps, stages = options.get("num_warps", 4), max(options.get("num_stages", 1), 1)
    item = choice.layout.dtype.itemsize
    loaded = (tile_m + tile_n) * tile_k * item
    if loaded * stages > shared_bytes:
        return math.inf
    tiles, steps = _tiles(choice, options)
    values = tile_m * tile_n / (32 * warps)
    low, high = _BEST_VALUES
    waste = max(low / values, 1.0) ** 0.5 * max(values / high, 1.0) ** 2
    if item < 4 and (tile_m < 64 or warps % 4):
        # The tensor cores' widest instructions take 64 rows from four warps.
        waste *= 2
    at_once = _PRODUCTS_OF_HALVES if item < 4 else _PRODUCTS_OF_FLOAT32
    step = max(tile_m * tile_n * tile_k / at_once * waste, loaded / _LOADED)
    beside = max(1, min(_WARPS // warps, shared_bytes // (loaded * stages)))
    waves = math.ceil(tiles / (processors(target) * beside))
    there = min(beside, math.ceil(tiles / processors(target)))
    return float(waves * (_BEGIN + steps * max(step * there, _LATENCY / stages)))


def _depthwise(choice: Any, options: dict[str, int], target: Target) -> float:
    """Of a kernel that multiplies value by value: what all blocks of a multiprocessor do, and how long each waits."""
    batch, channels, height, width = (_hint(s) for s in choice.layout.size)
    runs, wide, columns, warps = (options[name] for name in ("BLOCK_R", "BLOCK_C", "COLUMNS", "num_warps"))
    rows, taps, stride, dilation = (options[name] for name in ("KERNEL_H", "KERNEL_W", "STRIDE_W", "DILATION_W"))
    item = choice.layout.dtype.itemsize
    blocks = math.ceil(batch * height * math.ceil(width / columns) / runs) * math.ceil(channels / wide)
    # What a run reads of a row of its input, each once.
    reads = len({t * stride + j * dilation for t in range(columns) for j in range(taps)})
    kept = runs * wide * columns / (32 * warps)
    # A load brings a thread up to 16 bytes where values lie beside each other.
    together = min(16 // item, max(1, runs * wide // (32 * warps))) if "CHANNELS_INNERMOST=True" in choice.description else 1
    multiply = rows * taps * columns * runs * wide / 128
    load = rows * reads * runs * wide * max(item / 64, 1 / (16 * together))
    # Whether a value is inside is asked for each load; the weights are read by every warp.
    ask = rows * reads * runs * wide / together * 6 / 128 + rows * taps * warps * wide / 32
    work = (multiply + load + ask) * max(kept / 32, 1.0) ** 2
    beside = max(1, min(32, 40 // warps))
    waves = math.ceil(blocks / (processors(target) * beside))
    wait = 1500 + (rows * 500 if rows > 7 else rows * 100)
    return float(waves * wait + blocks / processors(target) * work)


def options_of(choice: Any) -> dict[str, int]:
    """Numbers of a template's configuration, by name."""
    numbers = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)\b", choice.description)}
    numbers.setdefault("num_warps", getattr(choice.bmreq, "num_warps", 4))
    numbers.setdefault("num_stages", getattr(choice.bmreq, "num_stages", 1))
    return numbers


def _tiles(choice: Any, options: dict[str, int]) -> tuple[int, int]:
    """How many tiles the result has, and in how many steps the product of each is summed."""
    tile_m, tile_n, tile_k = (options.get(f"BLOCK_{axis}", 1) for axis in "MNK")
    size = [_hint(s) for s in choice.layout.size]
    if "grouped_convolution" in choice.name:
        packed, phases = options["PACKED"], options["PHASES_H"] * options["PHASES_W"]
        columns = math.ceil(options["GROUP_OUT"] / tile_n)
        across = math.ceil(options["GROUPS"] / packed) if packed > 1 else options["GROUPS"] * columns
        places = math.ceil(size[0] * math.prod(size[2:]) / phases)
        taps = math.ceil(options["KERNEL_H"] / options["PHASES_H"]) * math.ceil(options["KERNEL_W"] / options["PHASES_W"])
        return math.ceil(places / tile_m) * phases * across, taps * math.ceil(packed * options["GROUP_IN"] / tile_k)
    m, n, k, batches = _problem(choice, size)
    return math.ceil(m / tile_m) * math.ceil(n / tile_n) * batches, math.ceil(k / tile_k)


def _problem(choice: Any, size: list[int]) -> tuple[int, int, int, int]:
    """Rows, columns, inner length and number of the matrix products that the choice computes."""
    first = [_hint(s) for s in choice.input_nodes[0].get_size()]
    if "conv" in choice.name:
        weight = [_hint(s) for s in choice.input_nodes[1].get_size()]
        return math.prod(size) // max(size[1], 1), size[1], math.prod(weight[1:]), 1
    return size[-2], size[-1], first[-1], math.prod(size[:-2])


def _hint(size: Any) -> int:
    from torch._inductor.virtualized import V

    try:
        return int(size)
    except TypeError:
        return int(V.graph.sizevars.optimization_hint(size, fallback=64))
