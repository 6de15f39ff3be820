//! The whole system from outside on a machine with a GPU; `scripts/gpu-check system` runs every case in a process of
//! its own. `PAPPUS_TEST_DEVICE` names the GPU, `PAPPUS_BIN_DIR` where the programs are. The same cases run without one
//! on a library that looks like HIP's (`tests/amd`).
//!
//! - [`library`]: the kernel library computes there what plain Rust does.
//! - [`attacks`]: writing past a deadline, into code, and ends at a bad moment.
//! - [`faults`]: faults, hangs and kills beside neighbours.
//! - [`leaks`]: two users of one GPU.
//! - [`account`]: memory, as `status` and as the driver tell it; energy and use in the metrics.
//! - [`several`]: several GPUs.
//! - [`gpu`]: the GPU under test. [`functions`]: what they are made of; the rest is shared with the other integration tests.
#![forbid(unsafe_code)]
// The exception for tests covers functions marked as such; everything here is one, helpers included.
#![allow(clippy::unwrap_used)]

#[path = "../integration/fixture.rs"]
#[allow(dead_code, reason = "used in part")]
mod fixture;
#[path = "../amd/folder.rs"]
mod folder;
#[path = "../integration/kit.rs"]
#[allow(dead_code, reason = "used in part")]
mod kit;
#[path = "../integration/programs.rs"]
#[allow(dead_code, reason = "used in part")]
mod programs;

mod account;
mod attacks;
mod faults;
mod functions;
mod gpu;
mod leaks;
mod library;
mod several;

/// Tests of a GPU: cases of modules above, all with the same attributes.
macro_rules! on {
    ($name:ident, $attributes:tt, $gpu:expr, $($module:ident: $($case:ident),+;)+) => {
        mod $name {
            $(mod $module {
                $(on!(@case $attributes $gpu, $module, $case);)+
            })+
        }
    };
    (@case [$($attribute:tt)*] $gpu:expr, $module:ident, $case:ident) => {
        #[test]
        $($attribute)*
        fn $case() {
            crate::$module::$case(&$gpu);
        }
    };
}

/// What every GPU is asked.
macro_rules! all {
    ($name:ident, $attributes:tt, $gpu:expr) => {
        on!($name, $attributes, $gpu,
            attacks: a_kernel_that_writes_past_its_deadline_reaches_no_other_call,
                rewritten_code_stays_private_to_its_worker,
                a_grid_that_is_never_resident_together_is_ended_by_its_deadline,
                a_worker_killed_in_the_middle_of_clearing_leaves_nothing,
                a_stopped_worker_is_replaced_at_the_deadline_of_its_call;
            faults: the_guilty_kernel_is_named_and_neighbours_get_their_results,
                what_never_ends_is_ended_by_its_deadline, a_killed_worker_loses_no_call,
                an_arena_closed_under_a_call_changes_no_other_call,
                a_function_beyond_half_the_memory_has_the_device_to_itself;
            leaks: users_who_take_turns_in_one_worker_slot_find_nothing,
                users_of_one_scrubbed_process_find_nothing, users_with_workers_of_their_own_find_nothing,
                users_find_nothing_after_a_fault_and_after_a_deadline,
                calls_of_one_user_find_nothing_where_calls_are_scrubbed;
            library: kernels_of_linalg_match_their_references, kernels_of_mlops_match_their_references,
                kernels_of_vision_and_module_match_their_references;
            several: calls_spread_over_all_gpus;
        );
    };
}

all!(cuda, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check system"]], crate::gpu::Gpu::of_the_machine("cuda"));
all!(hip, [#[ignore = "needs an AMD GPU: scripts/gpu-check --device hip:0 system"]], crate::gpu::Gpu::of_the_machine("hip"));
all!(gfx90a, [], crate::gpu::Gpu::looking_like("gfx90a"));
// Kernels that print are refused for AMD's.
on!(cuda_only, [#[ignore = "needs an NVIDIA GPU: scripts/gpu-check system"]], crate::gpu::Gpu::of_the_machine("cuda"),
    account: the_account_agrees_with_the_driver, what_the_gpu_measures_is_in_the_metrics;
    faults: floods_of_printing_give_nothing;
);
// How much memory is in use is told by the kernel, which knows nothing of what looks like a GPU.
on!(hip_only, [#[ignore = "needs an AMD GPU: scripts/gpu-check --device hip:0 system"]], crate::gpu::Gpu::of_the_machine("hip"),
    account: the_account_agrees_with_the_driver;
);
on!(gfx942, [], crate::gpu::Gpu::looking_like("gfx942"),
    library: kernels_of_linalg_match_their_references, kernels_of_mlops_match_their_references,
        kernels_of_vision_and_module_match_their_references;
);
