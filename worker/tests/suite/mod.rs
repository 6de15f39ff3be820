//! What every device must do, device by device the same.
//!
//! - `blueprints`: blueprints over the probe kernels, which every device brings as a module.
//! - `regions`: bytes in, bytes out, and nothing beside them.
//! - `faults`: every failure has its name, and the next call runs.
//! - `leaks`: no call finds anything of an earlier one; with clearing off, the same probes do.

#![allow(unreachable_pub, reason = "the suite of one binary")]

pub mod blueprints;
pub mod faults;
pub mod leaks;
pub mod regions;

use std::os::fd::OwnedFd;

use pappus_protocol::Fault;
use pappus_protocol::from_worker::{Done, Hello};
use pappus_shmem::Mapping;
use pappus_worker::device::{Call, Device, FunctionImage};

use crate::harness::Worker;

/// A device under test, and its variants of the modules.
pub trait UnderTest: 'static {
    type Device: Device;

    fn device() -> Self::Device;
    /// A loadable module of the probe kernels (see `probes.wat` for what they do).
    fn probes() -> &'static [u8];
    /// A loadable module of the kernel library.
    fn library(name: &str) -> Vec<u8>;

    fn worker() -> Worker {
        Worker::start(Self::device)
    }

    /// A worker that forgets to clear: the control of every test for leaks.
    fn uncleared_worker() -> Worker {
        Worker::start(|| Uncleared(Self::device()))
    }
}

/// A device whose `clear` does nothing.
pub struct Uncleared<D>(D);

impl<D: Device> Device for Uncleared<D> {
    type Function = D::Function;

    fn hello(&self) -> Hello {
        self.0.hello()
    }
    fn lanes(&self) -> usize {
        self.0.lanes()
    }
    fn lease(&mut self, bytes: u64) -> Result<u64, Fault> {
        self.0.lease(bytes)
    }
    fn lane_bytes(&self) -> u64 {
        self.0.lane_bytes()
    }
    fn load(&mut self, image: FunctionImage<'_>) -> Result<D::Function, Fault> {
        self.0.load(image)
    }
    fn export_weights(&mut self, function: &mut D::Function) -> Option<(OwnedFd, u64)> {
        self.0.export_weights(function)
    }
    fn map_arena(&mut self, arena: u64, mapping: &Mapping) -> Result<(), Fault> {
        self.0.map_arena(arena, mapping)
    }
    fn unmap_arena(&mut self, arena: u64) {
        self.0.unmap_arena(arena);
    }
    fn start(&mut self, lane: usize, function: &mut D::Function, call: &Call<'_>) {
        self.0.start(lane, function, call);
    }
    fn poll(&mut self, lane: usize) -> Option<Result<Done, Fault>> {
        self.0.poll(lane)
    }
    fn clear(&mut self, _: usize, _: &mut D::Function) -> Result<(), Fault> {
        Ok(())
    }
    fn settle(&mut self) -> Result<(), Fault> {
        self.0.settle()
    }
    fn scrub(&mut self) -> Result<(), Fault> {
        self.0.scrub()
    }
    fn lost(&self) -> Option<&Fault> {
        self.0.lost()
    }
}

/// Makes the whole suite tests of one device.
macro_rules! conformance {
    ($name:ident, $device:ty) => {
        mod $name {
            use super::*;
            use crate::suite::{faults, leaks, regions};
            suite::conformance!(@tests $device,
                regions: library_kernels_compute, inputs_of_many_items_arrive_in_one_piece,
                    an_output_that_nobody_wants_is_copied_nowhere, descriptors_are_read_at_their_offset, a_short_descriptor_is_refused,
                    staging_is_cleared_and_the_rest_of_the_arena_untouched,
                    regions_that_do_not_exist_are_refused, weights_are_read,
                    arenas_come_and_go, bulk_copies_and_fills_are_exact, every_block_runs_once,
                    repeats_and_copies_follow_the_plan, modules_share_the_pool_and_nothing_else;
                faults: a_trap_names_kernel_and_cause, stray_accesses_trap, weights_are_read_only,
                    the_deadline_ends_a_call_between_blocks, what_exceeds_the_lease_is_refused,
                    failed_outputs_are_zeroed, a_function_that_does_not_load_says_why,
                    unknown_functions_and_wrong_counts_are_refused, a_lease_can_change;
                leaks: the_pool, the_pool_beyond_the_plan, module_globals, local_memory,
                    the_stack_pointer, shared_memory, parameters, after_faults
            );
        }
    };
    (@tests $device:ty, $($module:ident: $($test:ident),+);+) => {
        $($(
            #[test]
            fn $test() {
                $module::$test::<$device>();
            }
        )+)+
    };
}
pub(crate) use conformance;
