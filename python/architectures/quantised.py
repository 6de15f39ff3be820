"""Networks of the list whose products torchao quantised: weights of 8 and 4 bits, and floats of 8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .architecture import Architecture, made
from .language import LANGUAGE


def _quantised(name: str, source: str, config: Callable[[], Any]) -> Architecture:
    """An architecture of :data:`LANGUAGE` under another name; its linear layers are quantised as ``config`` says."""

    def finish(model: Any) -> None:
        made("torchao.quantization", "quantize_", model, config())()

    plain = next(each for each in LANGUAGE if each.name == source)
    return replace(plain, name=f"torchao/{name}", finish=finish)


def _config(name: str, **settings: Any) -> Callable[[], Any]:
    return made("torchao.quantization", name, **settings)


def _four_bits() -> Any:
    groups = made("torchao.quantization", "PerGroup", 32)()
    return _config("IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity=groups)()


QUANTISED = (
    _quantised("llama_int8", "transformers/llama", _config("Int8WeightOnlyConfig")),
    _quantised("bert_int4", "transformers/bert", _four_bits),
    _quantised("clip_text_float8", "transformers/clip_text", _config("Float8WeightOnlyConfig")),
)
