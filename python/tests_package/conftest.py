"""Packaging: what needs PyTorch is collected only where it is installed (scripts/test-ecosystem installs it)."""

from __future__ import annotations

import importlib.util

from fixture import check as check

if importlib.util.find_spec("torch") is None:
    collect_ignore = [
        "test_architectures.py",
        "test_bench_models.py",
        "test_boxes.py",
        "test_candidates.py",
        "test_complex_numbers.py",
        "test_compositions.py",
        "test_fourier.py",
        "test_models.py",
        "test_convolutions.py",
        "test_operators.py",
        "test_quantized.py",
        "test_kernels.py",
        "test_refusals.py",
        "test_state.py",
        "test_expressions.py",
        "test_examples.py",
        "test_examples_in_docstrings.py",
        "kernels.py",
    ]
