"""Which tile configuration a matrix product or convolution gets where nothing was measured.

An estimate of the time from shapes alone: how well the tiles fill the multiprocessors, how many values each thread
keeps, and whether the tiles' stages fit shared memory.
"""

from __future__ import annotations

import math
import re
from typing import Any

from .pretend import processors
from .targets import Target

# What a thread keeps of the result: with fewer values it loads more than it computes, with more its registers spill.
_BEST_VALUES = (16, 64)


def estimate(choice: Any, target: Target, shared_bytes: int) -> float:
    """Time in no unit; infinite where it cannot run."""
    options = options_of(choice)
    m, n, k, batches = _problem(choice)
    tile_m, tile_n, tile_k = (options.get(f"BLOCK_{axis}", 1) for axis in "MNK")
    warps, stages = options.get("num_warps", 4), options.get("num_stages", 1)
    item = choice.layout.dtype.itemsize
    if (tile_m + tile_n) * tile_k * item * max(stages, 1) > shared_bytes:
        return math.inf
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batches
    values = tile_m * tile_n / (32 * warps)
    low, high = _BEST_VALUES
    waste = max(low / values, 1.0) ** 0.5 * max(values / high, 1.0) ** 2
    # A multiprocessor runs blocks beside each other until it has 16 warps, about what hides latency.
    beside = max(1, 16 // warps)
    waves = math.ceil(tiles / (processors(target) * beside))
    steps = math.ceil(k / tile_k)
    # Waiting for memory at each step, hidden by the stages before it.
    latency = steps * 600 / max(stages, 1)
    compute = steps * tile_m * tile_n * tile_k / 128 * beside * waste
    return float(waves * (compute + latency))


def options_of(choice: Any) -> dict[str, int]:
    """Numbers of a template's configuration, by name."""
    numbers = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)\b", choice.description)}
    numbers.setdefault("num_warps", getattr(choice.bmreq, "num_warps", 4))
    numbers.setdefault("num_stages", getattr(choice.bmreq, "num_stages", 1))
    return numbers


def _problem(choice: Any) -> tuple[int, int, int, int]:
    """Rows, columns, inner length and number of the matrix products that the choice computes."""
    size = [_hint(s) for s in choice.layout.size]
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
