"""Products of one row, and attention of one query, as sums: what a model computes that writes token by token.

They read each weight, and each key and value, once, and compute little with it. A tile of a matrix product would be empty but
for one row, and too few of them would read; sums have a block for each few columns, and take what comes before and behind
them into their kernel. Half precision is added up in float32.
"""

from __future__ import annotations

from typing import Any

import torch

from . import inlining

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def mm(a: torch.Tensor, b: torch.Tensor) -> Any:
    """``a @ b``, where ``a`` has one row."""
    return _product(a, b).to(a.dtype) if _is_one(a.shape[0]) and a.is_floating_point() else NotImplemented


def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``bias + a @ b``, where ``a`` has one row."""
    if not (_is_one(a.shape[0]) and a.is_floating_point() and beta == 1 and alpha == 1):
        return NotImplemented
    return (_product(a, b) + bias).to(a.dtype)


TABLE = {_aten.mm.default: mm, _aten.addmm.default: addmm}


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = _wide(a.dtype)
    return (a.to(wide).unsqueeze(2) * b.to(wide).unsqueeze(0)).sum(1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def rewrite_attention(program: Any) -> None:
    """Writes attention of one query anew in an exported program."""
    graph = program.graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        if _is_single(node):
            inlining.replace(graph, node, _attention)
    program.graph_module.recompile()


def _is_single(node: torch.fx.Node) -> bool:
    given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), node.args, strict=False)) | node.kwargs
    is_one = _is_one(given["query"].meta["val"].shape[-2])
    return is_one and not given.get("dropout_p") and not given.get("is_causal")


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As PyTorch defines it, where there is one query."""
    wide = _wide(query.dtype)
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.to(wide) * key.to(wide)).sum(-1) * factor
    if attn_mask is not None:
        mask = attn_mask.select(-2, 0)
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.to(wide)
    weights = _aten._safe_softmax(scores, -1)
    return (weights.unsqueeze(-1) * value.to(wide)).sum(-2, keepdim=True).to(query.dtype)
