"""Steps of XLA's that small functions do not have: made by hand from its own messages, and read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from pappus import package
from pappus.package import PackageError, Unsupported, cubin, sizes, targets, xla_lowering, xla_messages, xla_plan
from pappus.package.plan import ArrayType, Copy, Fill, Plan, Pointer, Repeat

MESSAGES = xla_messages.Messages(xla_messages.find_library())

# An input of 64 bytes, a temporary buffer of 256, an output of 16.
MEMORY = """
program_shape { result { element_type: F32 dimensions: 4 } }
buffer_allocations {
  values { index: 0 size: 64 is_entry_computation_parameter: true }
  values { index: 1 size: 256 }
  values { index: 2 size: 16 maybe_live_out: true }
  values { index: 3 size: 4 is_thread_local: true }
}
output_info_map { shape_index {} output_info { allocation_index: 2 } }
"""
PART = "offset: {} size: {} buffer_allocation_index: {}"


def copy(source: str, to: str, number: int) -> str:
    places = f"source_buffer {{ slice {{ {source} }} }} destination_buffer {{ slice {{ {to} }} }}"
    return f"device_to_device_copy_thunk {{ copy_thunk {{ {places} mem_size: {number} }} }}"


def read(*thunks: str, module: str = "") -> Plan:
    text = MEMORY + module + "".join(f"thunks {{ thunk_info {{ profile_annotation: 'op.1' }} {thunk} }}\n" for thunk in thunks)
    executable: Any = text_format.Parse(text, MESSAGES._class("xla.gpu.GpuExecutableProto")())
    types = {name: ArrayType("f32", (sizes.absolute(count),)) for name, count in (("x", 16), ("y", 4))}
    plan, _ = xla_plan.read(executable, [xla_plan.Parameter("x")], types, ["y"])
    return plan


def at(buffer: str, offset: int) -> Pointer:
    return Pointer(buffer, sizes.absolute(offset))


def test_copies_and_fills() -> None:
    plan = read(
        copy(PART.format(16, 16, 0), PART.format(128, 16, 1), 16),
        "memzero_thunk { dest_buffer { slice { offset: 4 size: 8 buffer_allocation_index: 1 } } }",
        "memset32bit_value_thunk { dest_buffer { size: 16 buffer_allocation_index: 2 } value: 0x07070707 }",
        copy(PART.format(0, 16, 0), PART.format(0, 16, 0), 16),
        copy(PART.format(0, 16, 0), PART.format(0, 16, 1), 0),
    )
    # What copies nothing, or onto itself, is no step.
    assert plan.steps == [
        Copy(at("x", 16), at("arena", 128), sizes.absolute(16)),
        Fill(at("arena", 4), sizes.absolute(8)),
        Fill(at("y", 0), sizes.absolute(16), 7),
    ]
    assert plan.buffers == {"arena": sizes.absolute(256), "y": sizes.absolute(16)}


def test_what_runs_beside_runs_where_it_starts() -> None:
    one, two, three = (copy(PART.format(place, 4, 0), PART.format(place, 4, 1), 4) for place in (0, 4, 8))
    plan = read(
        f"async_start_thunk {{ thunks {{ thunks {{ {one} }} }} }}",
        two,
        "async_done_thunk {}",
        f"sequential_thunk {{ thunks {{ {three} }} }}",
    )
    assert [step.to for step in plan.steps if isinstance(step, Copy)] == [at("arena", 0), at("arena", 4), at("arena", 8)]


def slicing(config: str) -> str:
    inner = copy(PART.format(0, 16, 0), PART.format(0, 16, 1), 16)
    return f"""dynamic_slice_fusion_thunk {{
      parameters {{ parameter_number: 0 {config} }} results {{ result_number: 0 }}
      parameter_buffers {{ size: 64 buffer_allocation_index: 0 }}
      result_buffers {{ offset: 32 size: 16 buffer_allocation_index: 1 }}
      slice_allocations {{ index: 0 size: 16 }} slice_allocations {{ index: 1 size: 16 }}
      embedded_thunks {{ thunks {{ {inner} }} }}
    }}"""


def loop(turns: int, body: str) -> str:
    return f"while_thunk {{ trip_count: {turns} body_thunk_sequence {{ thunks {{ {body} }} }} }}"


def test_loops_in_loops_that_take_slices() -> None:
    inner = "slice_config { loop_index: 0 byte_offset: 16 byte_stride: 4 }"
    plan = read(loop(2, loop(3, slicing(inner))))
    assert [step.source for step in plan.steps if isinstance(step, Copy)] == [at("x", 16 + 4 * turn) for turn in (0, 1, 2)] * 2
    outer = "slice_config { loop_index: 1 byte_stride: 16 }"
    plan = read(loop(2, loop(3, slicing(outer))))
    assert [step.source for step in plan.steps if isinstance(step, Copy)] == [at("x", 16 * turn) for turn in (0, 0, 0, 1, 1, 1)]
    plan = read(loop(5, copy(PART.format(0, 16, 0), PART.format(0, 16, 2), 16)))
    assert plan.steps == [Repeat(sizes.absolute(5), (Copy(at("x", 0), at("y", 0), sizes.absolute(16)),))]
    assert read(loop(0, copy(PART.format(0, 16, 0), PART.format(0, 16, 2), 16))).steps == []


@pytest.mark.parametrize(
    ("thunk", "why"),
    [
        ("memset32bit_value_thunk { dest_buffer { size: 4 buffer_allocation_index: 1 } value: 1 }", "one value for all bytes"),
        ("gemm_thunk {}", "library of its own"),
        ("outfeed_thunk {}", "nothing on the host"),
        ("while_thunk { body_thunk_sequence {} }", "no known number of turns"),
        ("kernel_thunk { kernel_name: 'k' args_shape {} } ", "no 64-bit ELF"),
        (
            loop(
                200_000,
                slicing("slice_config { loop_index: 0 }") + "} thunks { memzero_thunk { dest_buffer { slice { size: 4 } } }",
            ),
            "at most 262144",
        ),
        (slicing("slice_offsets { offset { value: 1 } }"), "computed from data"),
        (slicing("slice_config { table {} }"), "in a table"),
        (slicing("slice_config { byte_offset: 56 }"), "bytes 56 to 72 of 64"),
    ],
)
def test_what_is_refused(thunk: str, why: str) -> None:
    with pytest.raises(PackageError, match=why):
        read(thunk)


def test_memory_that_is_not_there() -> None:
    with pytest.raises(PackageError, match="bytes 56 to 72 of 'x', which has 64"):
        read(copy(PART.format(56, 16, 0), PART.format(0, 16, 1), 16))
    with pytest.raises(PackageError, match="allocation 3, which it did not describe"):
        read(copy(PART.format(0, 4, 3), PART.format(0, 4, 1), 4))


def test_a_refusal_names_what_xla_knows_of_it() -> None:
    module = """hlo_module_with_config { hlo_module { computations { instructions {
      name: 'op.1' opcode: 'custom-call' metadata { op_name: 'jit(f)/qr' source_file: 'm.py' source_line: 3 } } } } }"""
    with pytest.raises(Unsupported) as refused:
        read("custom_call_thunk { target_name: 'some_library' }", module=module)
    assert (refused.value.what, refused.value.where) == ("qr (some_library)", "m.py:3: ")


def test_a_launch_that_says_more_than_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_plan, "_KERNEL_FIELDS", xla_plan._KERNEL_FIELDS - {"written"})
    with pytest.raises(Unsupported, match=r"its launch says \['written'\], which is not known here"):
        package.jax(lambda x: x + 1, (np.zeros(4, np.float32),))


def test_other_releases_are_tried_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_lowering, "SUPPORTED", ("0.1",))
    with pytest.warns(UserWarning, match=r"was tried with JAX 0\.1, this is"):
        package.jax(lambda x: x + 1, (np.zeros(4, np.float32),))


def test_a_kernel_takes_what_xla_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = xla_lowering.trace(lambda x: x + 1, (np.zeros(4, np.float32),))
    (target,) = targets.parse("sm_90")
    executable = xla_lowering.compile_for(traced, target, target, MESSAGES)
    (thunk,) = executable.thunks
    del thunk.custom_kernel_thunk.custom_kernel.kernel_spec.kernel_args_packing_spec.kernel_arguments[1]
    with pytest.raises(Unsupported, match=r"takes parameters of \[8, 8\] bytes, XLA passes 1 addresses"):
        xla_plan.read(executable, traced.parameters, traced.types, traced.outputs)


def test_a_kernel_takes_its_parameters_where_pappus_passes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the assembler places parameters that must be aligned further than addresses."""
    monkeypatch.setattr(cubin, "parameters", lambda code, kernel: [(48, 8), (56, 8)])
    with pytest.raises(Unsupported, match="has parameter 0 at byte 48, Pappus passes it at byte 0") as refused:
        package.jax(lambda x: x + 1, (np.zeros(4, np.float32),))
    assert refused.value.what == "add"


def test_tensor_maps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "config { block_m: 64 block_n: 32 block_k: 32 num_stages: 1 num_warps: 4 num_ctas: 1 is_tma_allowed: true }"
    monkeypatch.setattr(xla_lowering, "_tiles", lambda: own)
    x = np.zeros((512, 512), np.float16)
    with pytest.raises(Unsupported, match="its kernel takes tensor maps") as refused:
        package.jax(lambda x: x @ x.T, (x,))
    assert refused.value.what == "dot_general"
