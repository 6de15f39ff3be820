"""Quantised weights: tensors that are several others, as those of torchao, become those others.

Numbers of up to four bits lie two to a byte, and kernels take them apart where they read them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._inductor import lowering
from torch.export.graph_signature import InputKind
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import inlining

_aten = torch.ops.aten
# The types of up to four bits that torchao keeps in a byte each.
_SMALL = (torch.int1, torch.int2, torch.int3, torch.int4)


def occur(program: Any) -> bool:
    """True if a weight of an exported program is made of several tensors."""
    return any(is_traceable_wrapper_subclass(value) for value in program.state_dict.values())


def as_plain(program: Any, functional: Any) -> Any:
    """The functional program, in which PyTorch took weights apart, with names that say what each part is."""
    names: dict[str, str] = {}
    small = set()
    for name, value in program.state_dict.items():
        if is_traceable_wrapper_subclass(value):
            owner, _, leaf = name.rpartition(".")
            inside = f"{owner}.parametrizations.{leaf}.original".removeprefix(".")
            names |= {f"{inside}{at}": f"{name}.{part}" for at, part in enumerate(_parts(value))}
            if getattr(value, "target_dtype", None) in _SMALL and value.shape[-1] % 2 == 0:
                small.add(f"{name}.qdata")
    graph, specs = functional.graph, functional.graph_signature.input_specs
    values = {names.get(name, name): value for name, value in functional.state_dict.items()}
    placeholders = graph.find_nodes(op="placeholder")
    given, parts = set(), set()
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            given.add(node)
        elif spec.target in names:
            parts.add(node)
            spec.target = names[spec.target]
        if spec.target in small:
            values[spec.target] = torch.nn.Parameter(packed(values[spec.target]), requires_grad=False)
            _read_packed(graph, node, placeholders[-1])
    for product in graph.find_nodes(op="call_function", target=_aten.linear.default):
        weight = product.args[1]
        behind = _behind(weight)
        if weight.op == "call_function" and not behind.isdisjoint(parts) and behind.isdisjoint(given):
            _turn(graph, product, weight)
    functional._state_dict = values
    functional.graph_module.recompile()
    return functional


def packed(values: torch.Tensor) -> torch.Tensor:
    """Numbers from -8 to 7, of a byte each, two to a byte: the first of a pair in the lower half."""
    return (values[..., ::2] & 15) | (values[..., 1::2] << 4)


def unpacked(values: torch.Tensor) -> torch.Tensor:
    """What :func:`packed` was given."""
    halves = torch.arange(2, dtype=torch.int8, device=values.device) * 4
    # Shifts of signed numbers keep the sign.
    return ((values.unsqueeze(-1) << (4 - halves)) >> 4).flatten(-2)


def _read_packed(graph: torch.fx.Graph, node: torch.fx.Node, last: torch.fx.Node) -> None:
    """Has a weight's readers take it apart first."""
    readers = list(node.users)
    fake = node.meta["val"]
    with fake.fake_mode:
        node.meta["val"] = packed(fake)
        with graph.inserting_before(last.next):
            apart = inlining.inlined(graph, unpacked, [node], node)
    for reader in readers:
        reader.replace_input_with(node, apart)


def _turn(graph: torch.fx.Graph, product: torch.fx.Node, weight: torch.fx.Node) -> None:
    """Has a weight computed as the product reads it, which then takes the computation along."""
    fake = weight.meta["val"]
    with fake.fake_mode, graph.inserting_before(product):
        turned = inlining.inlined(graph, lambda value: value.mT.contiguous().mT, [weight], product)
    product.replace_input_with(weight, turned)


def _behind(node: torch.fx.Node) -> set[torch.fx.Node]:
    """A node and all that it is computed from."""
    seen: set[torch.fx.Node] = set()
    left = [node]
    while left:
        each = left.pop()
        if each not in seen:
            seen.add(each)
            left += each.all_input_nodes
    return seen


def _parts(tensor: Any) -> Iterator[str]:
    """What a tensor's parts are called, in PyTorch's order."""
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if is_traceable_wrapper_subclass(part):
            yield from (f"{name}.{inner}" for inner in _parts(part))
        else:
            yield name


@contextlib.contextmanager
def portable() -> Iterator[dict[Any, Any]]:
    """Has processors know the product for which torchao asks a library for GPUs, and says what it is made of."""
    with torch.library._scoped_library("mslk", "FRAGMENT") as library:
        if not hasattr(torch.ops.mslk, "bf16i4bf16_rowwise"):
            library.define("bf16i4bf16_rowwise(Tensor X, Tensor W, Tensor w_scale_group, Tensor w_zero_group) -> Tensor")
        library.impl("bf16i4bf16_rowwise", _product_of_four_bits, "CompositeImplicitAutograd")
        yield {torch.ops.mslk.bf16i4bf16_rowwise.default: _product_of_four_bits}


def _product_of_four_bits(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """``x`` by numbers of four bits, each times its group's scale plus its group's zero, of which a group has a row each."""
    scale, zero = (each.mT.unsqueeze(-1) for each in (scale, zero))
    groups = unpacked(weight.view(torch.int8)).unflatten(-1, (scale.shape[1], -1))
    return torch.nn.functional.linear(x, (groups * scale + zero).flatten(-2).to(x.dtype))


@contextlib.contextmanager
def lowered() -> Iterator[None]:
    """Has Inductor lower a product with weights of eight bits as one of numbers of the other factor's type meanwhile."""
    with mock.patch.dict(lowering.lowerings, {_aten._weight_int8pack_mm.default: _product}):
        yield


def _product(x: Any, weight: Any, scale: Any) -> Any:
    """``aten._weight_int8pack_mm``, in Inductor's terms: PyTorch makes it of two operators, and Triton has no kernel of it."""
    call = lowering.lowerings
    # In this order the product takes the conversion along.
    turned = lowering.to_dtype(call[_aten.permute.default](weight, [1, 0]), x.get_dtype())
    return call[_aten.mul.Tensor](call[_aten.mm.default](x, turned), scale)
