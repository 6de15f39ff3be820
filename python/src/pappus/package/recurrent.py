"""Recurrent layers: LSTM, GRU and the plain ones, a launch for each step of time.

What comes from the inputs is one matrix product for all steps. What comes from the state is computed by one kernel
(:mod:`.recurrent_kernel`) for a layer and direction. Were the steps written out, each would be a matrix product and what
follows it, and PyTorch would lower them one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
from torch.library import triton_op, wrap_triton

from . import inlining, sizes
from .plan import Copy, KernelSource, Launch, Pointer, Repeat, Step
from .recurrent_kernel import pappus_recurrent_step

_aten = torch.ops.aten
# What the operator of a layer is, by its name; how many gates it has.
_KINDS = {
    _aten.rnn_tanh.input: ("tanh", 1),
    _aten.rnn_relu.input: ("relu", 1),
    _aten.lstm.input: ("lstm", 4),
    _aten.gru.input: ("gru", 3),
}
# Under which keys PyTorch has them written out.
_WRITTEN_OUT = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
# So many rows are few: of more, where their number is known, each weight would be read too often.
_FEW = 64
# Rows that a block computes at a time where they are few.
_FEW_AT_ONCE = 8
# More launches than these are repeated, not written down: a configuration has 4 MiB at most.
_MOST_WRITTEN = 1024
# A number that stands for the step until there is a launch for each: Triton is told nothing of it.
_ANY_STEP = 3


class _Block(NamedTuple):
    """Units and rows that a block computes, how many values of the state it reads at a time, and its warps."""

    units: int
    rows: int
    depth: int
    warps: int


_MANY_ROWS = _Block(16, 16, 64, 4)


def _few_rows(hidden: int, rows: Any) -> _Block:
    """A block for a step of few rows: one warp, which reads what it needs at once, since waiting for it is most of a step."""
    at_once = min(triton.next_power_of_2(rows), _FEW_AT_ONCE) if isinstance(rows, int) else _FEW_AT_ONCE
    return _Block(1, at_once, min(max(triton.next_power_of_2(hidden), 16), 256), 1)


@triton_op("pappus::recurrent", mutates_args={})  # type: ignore[untyped-decorator]
def _recurrent(
    by_input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    first: torch.Tensor,
    memory: torch.Tensor,
    kind: str,
    backward: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states behind all steps, step by row by unit, and what an LSTM remembers at the end."""
    steps, rows, _ = by_input.shape
    hidden = weight.shape[1]
    out = by_input.new_empty(steps, rows, hidden)
    memory = memory.clone() if kind == "lstm" else out.new_empty(0)
    # A launch that is repeated learns from memory which step it is.
    counts = not isinstance(steps, int) or steps > _MOST_WRITTEN
    counter, counted = (torch.zeros(1, dtype=torch.int32, device=out.device) if counts else first for _ in range(2))
    many = isinstance(rows, int) and rows > _FEW
    block = _MANY_ROWS if many else _few_rows(hidden, rows)
    wrap_triton(pappus_recurrent_step)[(triton.cdiv(hidden, block.units), triton.cdiv(rows, block.rows), 1)](
        by_input, weight, bias, first, memory if kind == "lstm" else first, out, counter, counted, _ANY_STEP, steps, rows,
        KIND=kind, BACKWARD=backward, COUNTS=counts, MANY=many, HIDDEN=hidden, UNITS=block.units, ROWS=block.rows,
        DEPTH=block.depth, num_warps=block.warps,
    )  # fmt: skip
    return out, memory


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Has PyTorch see that a layer's results have as many steps as its input: it would take them one by one, and so many."""
    before = [(target, key, target.py_kernels.get(key)) for target in _KINDS for key in _WRITTEN_OUT]
    try:
        for target, key, _ in before:
            target.py_kernels[key] = _layers(*_KINDS[target])
            target._dispatch_cache.clear()
        yield
    finally:
        for target, key, kernel in before:
            if kernel is None:
                del target.py_kernels[key]
            else:
                target.py_kernels[key] = kernel
            target._dispatch_cache.clear()


def rewrite(program: Any) -> None:
    """Writes recurrent layers anew in an exported program, but those whose state is projected, and those of float64."""
    graph = program.graph_module.graph
    for target, (kind, gates) in _KINDS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            if node.args[0].meta["val"].dtype != torch.float64 and not _is_projected(node, gates):
                inlining.replace(graph, node, _layers(kind, gates))
    program.graph_module.recompile()


def _is_projected(node: Any, gates: int) -> bool:
    weight = node.args[2][1].meta["val"]
    return bool(weight.shape[0] != gates * weight.shape[1])


def _layers(kind: str, gates: int) -> Any:
    """The operator of layers of a kind."""

    def run(
        x: torch.Tensor, states: Any, parameters: Sequence[torch.Tensor], biases: bool, layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        first, memory = states if kind == "lstm" else (states, None)
        x = x.transpose(0, 1) if batch_first else x
        given = iter(parameters)
        lasts: list[torch.Tensor] = []
        memories: list[torch.Tensor] = []
        for _ in range(layers):
            found = []
            for backward in (False, True)[: 1 + bidirectional]:
                by_input, weight = next(given), next(given)
                bias = [next(given), next(given)] if biases else [x.new_zeros(by_input.shape[0])] * 2
                at = len(lasts)
                kept = first[at] if memory is None else memory[at].to(torch.float32)
                gate = torch.nn.functional.linear(x, by_input, bias[0])
                state = first[at].to(x.dtype).contiguous()
                out, kept = torch.ops.pappus.recurrent(
                    gate.contiguous(), weight.contiguous(), bias[1].contiguous(), state, kept.contiguous(), kind, backward
                )
                found.append(out)
                lasts.append(out[0] if backward else out[-1])
                memories.append(kept.to(x.dtype))
            x = torch.cat(found, -1) if bidirectional else found[0]
        out = x.transpose(0, 1) if batch_first else x
        return (out, torch.stack(lasts), torch.stack(memories)) if kind == "lstm" else (out, torch.stack(lasts))

    return run


def is_step(kernel: str) -> bool:
    """True if a kernel is the one of a layer's step."""
    return kernel.startswith(pappus_recurrent_step.__name__)


def all_steps(launch: Launch, source: KernelSource) -> list[Step]:
    """The launches of a layer, of which PyTorch wrote one down."""
    named = {source.function.arg_names[at]: value for (at,), value in source.constants.items()}
    steps = launch.arguments.get("steps", named.get("steps"))
    if named["COUNTS"]:
        counter, counted = launch.arguments["counter"], launch.arguments["counted"]
        assert isinstance(counter, Pointer)
        assert isinstance(counted, Pointer)
        times = sizes.absolute(steps) if isinstance(steps, int) else steps
        assert isinstance(times, dict)
        return [Repeat(times, (launch, Copy(counted, counter, sizes.absolute(4))))]
    assert isinstance(steps, int)
    return [replace(launch, arguments={**launch.arguments, "step": step}) for step in range(steps)]
