"""Products of float32 on the tensor cores of NVIDIA GPUs, in three steps of TF32 each.

A number of float32 is the sum of two of TF32 (10 bits and 10 more). Of the four products of their parts that of the two rests is below
what float32 keeps; the others add up to nearly its precision (tests compare with PyTorch: 1e-6 relative).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from .targets import Target

# Each product as float32 has it, which tensor cores do not make.
IEEE = "ieee"
# Three products of TF32.
THREE_STEPS = "tf32x3"
FLOAT32 = (IEEE, THREE_STEPS)

# The oldest GPUs with TF32.
_SINCE = 80
# How templates of Inductor say that products of float32 are not rounded to TF32, and where they ask for it.
_NOT_ROUNDED = re.compile(r"ALLOW_TF32\s*:\s*tl\.constexpr\s*=\s*False")
_ASKED, _THREE = "allow_tf32=ALLOW_TF32", 'input_precision="tf32x3"'


def in_three_steps(function: Any, signature: Mapping[str, str], target: Target) -> Any:
    """A Triton kernel of Inductor's whose products are made so; any other kernel as it is."""
    text = function.src
    able = target.kind == "cuda" and target.capability >= _SINCE and "*fp32" in signature.values()
    if not (able and _NOT_ROUNDED.search(text) and _ASKED in text):
        return function
    changed = copy.copy(function)
    changed._unsafe_update_src(text.replace(_ASKED, _THREE))
    return changed
