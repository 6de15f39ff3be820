//! The conformance suite: the same cases for every device.
//!
//! - `cpu`, `cuda`, `hip`: the devices; `cuda_shared`: one that strangers share, and what only that does.
//! - `blueprints`: blueprints over the probe kernels, which every device brings as a module.
//! - `regions`: bytes in, bytes out, and nothing beside them.
//! - `elastic`: memory of lanes comes and goes.
//! - `faults`: every failure has its name, and the next call runs.
//! - `handover`: a worker that is scrubbed for another domain is like a fresh one.
//! - `leaks`: no call finds anything of an earlier one; with clearing off, the same probes do.
//! - `leaks_between_calls`, `leaks_on_chip`: the same on GPUs, place by place.
//! - `gpu_lanes`: several calls in flight, on devices where a worker is a process with lanes.

#![allow(
    dead_code,
    unreachable_pub,
    unused_macros,
    unused_imports,
    reason = "every test binary uses its own part"
)]

pub mod blueprints;
pub mod cpu;
pub mod cuda;
pub mod cuda_shared;
pub mod elastic;
pub mod faults;
pub mod gpu_lanes;
pub mod handover;
pub mod hip;
pub mod leaks;
pub mod leaks_between_calls;
pub mod leaks_on_chip;
pub mod regions;

use pappus_protocol::from_worker::{Done, Hello};
use pappus_protocol::{ArenaId, Fault, LaneId};
use pappus_shmem::Mapping;
use pappus_worker::device::{
    Call, Device, FunctionImage, Functions, Hygiene, Lanes, Loading, Memory, Weights,
};

use crate::harness::Worker;

/// A device under test, and its variants of the modules. Where devices rightly differ, it says how.
pub trait UnderTest: 'static {
    /// What a lane is lent, unless a test says otherwise.
    const LANE_BYTES: u64;
    /// The least memory of a lane that is of any use.
    const SMALL_LANE_BYTES: u64;
    /// A kernel's fault takes the whole worker with it; a suspect's is answered before.
    const FAULTS_END_THE_WORKER: bool = false;
    /// Deadlines end kernels that run: elsewhere, only the worker's end does.
    const ENDS_RUNNING_KERNELS: bool = true;
    /// What a fault says that was an access to memory that is not the call's.
    const STRAY: &'static str;
    /// Part of the fault's text for something that is no machine code.
    const NO_CODE: &'static str;
    /// Grids of which every block must run once.
    const GRIDS: &'static [[u64; 3]];

    /// A worker whose lanes are lent so much.
    fn worker() -> Worker;
    /// A worker that forgets to clear: the control of every test for leaks.
    fn uncleared_worker() -> Worker;
    /// A loadable module of the probe kernels (see `probes.wat` for what they do).
    fn probes() -> &'static [u8];
    /// A loadable module of the kernel library.
    fn library(name: &str) -> Vec<u8>;
    /// Kernels that fail, their parameters, and a word of the fault.
    fn traps() -> Vec<(&'static str, String, &'static str)>;
    /// Launches that touch memory beside the call's, and their kernels.
    fn strays() -> Vec<(&'static str, String)>;
}

/// A GPU under test, where a worker is a process that has several calls in flight.
pub trait GpuUnderTest: UnderTest {
    /// A worker with so many lanes.
    fn worker_with(lanes: u32) -> Worker;
}

/// A device whose `clear` does nothing.
pub struct Uncleared<D>(D);

impl<D: Device> Device for Uncleared<D> {
    fn hello(&self) -> Hello {
        self.0.hello()
    }
}

impl<D: Device> Functions for Uncleared<D> {
    type Function = D::Function;

    fn load(&mut self, image: FunctionImage<'_>) -> Result<D::Function, Fault> {
        self.0.load(image)
    }
    fn load_weights(&mut self, function: &mut D::Function, weights: Weights) {
        self.0.load_weights(function, weights);
    }
    fn poll_weights(&mut self, function: &mut D::Function) -> Loading {
        self.0.poll_weights(function)
    }
    fn unload_weights(&mut self, function: &mut D::Function, keep: bool) -> Result<(), Fault> {
        self.0.unload_weights(function, keep)
    }
    fn unload(&mut self, function: D::Function) -> Result<(), Fault> {
        self.0.unload(function)
    }
}

impl<D: Device> Memory for Uncleared<D> {
    fn lane_bytes(&self, lane: LaneId) -> u64 {
        self.0.lane_bytes(lane)
    }
    fn grow(&mut self, lane: LaneId, bytes: u64) -> Result<(), Fault> {
        self.0.grow(lane, bytes)
    }
    fn give_back(&mut self, lane: LaneId) -> Result<(), Fault> {
        self.0.give_back(lane)
    }
    fn map_arena(&mut self, arena: ArenaId, mapping: &Mapping) -> Result<(), Fault> {
        self.0.map_arena(arena, mapping)
    }
    fn unmap_arena(&mut self, arena: ArenaId) {
        self.0.unmap_arena(arena);
    }
}

impl<D: Device> Lanes for Uncleared<D> {
    fn lanes(&self) -> usize {
        self.0.lanes()
    }
    fn start(&mut self, lane: LaneId, function: &mut D::Function, call: &Call<'_>) {
        self.0.start(lane, function, call);
    }
    fn poll(&mut self, lane: LaneId) -> Option<Result<Done, Fault>> {
        self.0.poll(lane)
    }
    fn clear(&mut self, _: LaneId, _: &mut D::Function) -> Result<(), Fault> {
        Ok(())
    }
    fn lost(&self) -> Option<&Fault> {
        self.0.lost()
    }
}

impl<D: Device> Hygiene for Uncleared<D> {
    fn settle(&mut self) -> Result<(), Fault> {
        self.0.settle()
    }
    fn forget(&mut self) -> Result<(), Fault> {
        self.0.forget()
    }
    fn scrub(&mut self) -> Result<(), Fault> {
        self.0.scrub()
    }
    fn finds_others(&self) -> bool {
        self.0.finds_others()
    }
}

/// Makes the suite tests of one device: what all devices share, and then what is asked of this one.
macro_rules! conformance {
    ($name:ident, $device:ty, $attributes:tt, $($module:ident: $($test:ident),+);*) => {
        mod $name {
            use super::*;
            suite::conformance!(@tests $attributes $device,
                regions: library_kernels_compute, inputs_of_many_items_arrive_in_one_piece,
                    calls_that_run_together_get_their_own_parts,
                    an_input_that_no_step_names_is_not_brought,
                    an_output_that_nobody_wants_is_copied_nowhere, descriptors_are_read_at_their_offset, a_short_descriptor_is_refused,
                    staging_is_cleared_and_the_rest_of_the_arena_untouched,
                    regions_that_do_not_exist_are_refused, weights_are_read,
                    arenas_come_and_go, bulk_copies_and_fills_are_exact, every_block_runs_once,
                    repeats_and_copies_follow_the_plan, modules_share_the_pool_and_nothing_else,
                    buffers_that_share_memory_start_as_zeroes;
                faults: a_trap_names_kernel_and_cause, stray_accesses_trap, weights_are_read_only,
                    a_deadline_is_kept, what_exceeds_the_loan_is_refused,
                    failed_outputs_are_zeroed, a_function_that_does_not_load_says_why,
                    unknown_functions_and_wrong_counts_are_refused, a_lane_can_be_lent_more_and_less;
                leaks: the_pool, the_pool_beyond_the_plan, module_globals;
                elastic: memory_is_empty_when_it_comes_again, lanes_grow_and_give_back,
                    calls_that_come_again_survive_the_loss_of_their_memory,
                    weights_come_and_go_and_leave_nothing;
                handover: memory_is_empty_for_the_next_domain, nothing_is_installed_for_the_next_domain,
                    staging_is_empty_for_the_next_domain, a_scrubbed_worker_serves_on
                $(; $module: $($test),+)*
            );
        }
    };
    (@tests $attributes:tt $device:ty, $($module:ident: $($test:ident),+);+) => {
        $($(
            suite::conformance!(@test $attributes $device, $module, $test);
        )+)+
    };
    (@test [$($attribute:tt)*] $device:ty, $module:ident, $test:ident) => {
        #[test]
        $($attribute)*
        fn $test() {
            crate::suite::$module::$test::<$device>();
        }
    };
}
pub(crate) use conformance;

/// The same for a GPU, with what is asked of those only.
macro_rules! gpu_conformance {
    ($name:ident, $device:ty, $attributes:tt) => {
        suite::conformance!($name, $device, $attributes,
            gpu_lanes: calls_on_all_lanes_at_once_get_their_own_results,
                answers_come_as_calls_end,
                each_lane_has_its_own_module_globals,
                a_call_repeated_gives_the_same_with_and_without_a_graph,
                a_call_may_need_far_more_than_those_beside_it,
                a_lane_grows_and_gives_back_beside_running_calls,
                work_is_submitted_in_turns_only,
                a_turn_ends_with_its_quantum_and_its_running_calls,
                a_fault_beside_other_calls_blames_none_of_them,
                weights_travel_as_device_memory,
                    the_state_of_a_session_outlives_the_worker_that_made_it,
                    a_state_of_several_buffers_comes_and_goes_with_each_of_them,
                    a_state_that_is_closed_behind_a_call_may_be_opened_before_that_is_over);
    };
}
pub(crate) use gpu_conformance;

/// The tests of one GPU for leaks.
macro_rules! gpu_leaks {
    ($name:ident, $device:ty, $attributes:tt) => {
        mod $name {
            use super::*;
            suite::conformance!(@tests $attributes $device,
                leaks_between_calls: the_pool_with_its_tails, the_pool_beyond_a_calls_plan, module_variables,
                    the_constant_bank, staging_and_output_tails, weights_of_one_function_are_not_found_by_another;
                leaks_on_chip: nothing_is_left_between_calls_that_are_scrubbed,
                    nothing_is_left_for_the_next_domain_of_a_scrubbed_worker, nothing_is_left_by_a_worker_that_ended,
                    nothing_is_left_after_a_fault, nothing_is_left_after_a_call_that_never_ends,
                    nothing_is_left_after_a_kill_in_the_middle_of_a_call
            );
        }
    };
}
pub(crate) use gpu_leaks;

/// What a device is asked where strangers share a worker: nothing of turns, of other domains, and of two modules with variables.
macro_rules! shared_conformance {
    ($name:ident, $device:ty, $attributes:tt) => {
        mod $name {
            use super::*;
            suite::conformance!(@tests $attributes $device,
                regions: library_kernels_compute, inputs_of_many_items_arrive_in_one_piece,
                    an_output_that_nobody_wants_is_copied_nowhere, descriptors_are_read_at_their_offset,
                    staging_is_cleared_and_the_rest_of_the_arena_untouched,
                    regions_that_do_not_exist_are_refused, weights_are_read,
                    arenas_come_and_go, bulk_copies_and_fills_are_exact, every_block_runs_once,
                    repeats_and_copies_follow_the_plan, buffers_that_share_memory_start_as_zeroes;
                faults: a_trap_names_kernel_and_cause, stray_accesses_trap, weights_are_read_only,
                    what_exceeds_the_loan_is_refused, failed_outputs_are_zeroed,
                    a_lane_can_be_lent_more_and_less;
                elastic: memory_is_empty_when_it_comes_again, lanes_grow_and_give_back,
                    calls_that_come_again_survive_the_loss_of_their_memory,
                    weights_come_and_go_and_leave_nothing;
                gpu_lanes: calls_on_all_lanes_at_once_get_their_own_results,
                    answers_come_as_calls_end,
                    each_lane_has_its_own_module_globals,
                    a_call_repeated_gives_the_same_with_and_without_a_graph,
                    a_call_may_need_far_more_than_those_beside_it,
                    a_lane_grows_and_gives_back_beside_running_calls,
                    a_fault_beside_other_calls_blames_none_of_them,
                    weights_travel_as_device_memory,
                    the_state_of_a_session_outlives_the_worker_that_made_it,
                    a_state_of_several_buffers_comes_and_goes_with_each_of_them,
                    a_state_that_is_closed_behind_a_call_may_be_opened_before_that_is_over;
                cuda_shared: an_endless_kernel_ends_by_its_deadline_and_nobody_else_notices,
                    plain_code_is_refused, unfenced_code_serves_one_tenant
            );
        }
    };
}
pub(crate) use shared_conformance;

/// Tests for leaks between strangers' calls of one worker.
macro_rules! shared_leaks {
    ($name:ident, $device:ty, $attributes:tt) => {
        mod $name {
            use super::*;
            suite::conformance!(@tests $attributes $device,
                leaks_between_calls: the_pool_with_its_tails, the_pool_beyond_a_calls_plan, module_variables,
                    staging_and_output_tails, weights_of_one_function_are_not_found_by_another;
                cuda_shared: nothing_of_a_call_is_in_reach_of_a_smaller_one,
                    weights_are_in_reach_of_their_own_function_only, nothing_is_left_on_the_chip
            );
        }
    };
}
pub(crate) use shared_leaks;
