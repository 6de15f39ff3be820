//! What HIP's library is told, and in which order: against a library that records.

use std::os::fd::{AsFd, AsRawFd};

use super::memory::{self, Physical, Pinned};
use super::module::{self, Kernel};
use super::stream::{Event, Stream};
use super::{fake, sys};
use crate::device::gpu::driver::{ALONE, Access, DriverError, Memory, Shape, Stream as _};

const PAGE: u64 = 2 << 20;

#[test]
fn a_module_with_nothing_but_the_compilers_mark_has_no_variables() {
    let of = |image| module::writable(&module::judge(image).unwrap()).len();
    assert_eq!(of(include_bytes!("../../../../../kernels/built/module.hsaco")), 0);
    // The control has the mark behind variables of its own.
    assert_eq!(of(include_bytes!("../../../../tests/probes/probes.gfx90a.hsaco")), 2);
}

#[test]
fn memory_is_mapped_as_a_whole_with_the_access_that_was_asked_for() {
    fake::install();
    let memory = Physical::create(0, 2 * PAGE).unwrap();
    memory::map(PAGE, &memory, Access::Read).unwrap();
    memory::unmap(PAGE, 2 * PAGE);
    drop(memory);
    let expected = [
        "create 4194304 1 1 1 0 0",
        "map 0x200000 4194304 0 7 0",
        "access 0x200000 4194304 0 1 1",
        "unmap 0x200000 4194304",
        "release 7",
    ];
    assert_eq!(fake::log(), expected);
}

#[test]
fn where_access_cannot_be_set_nothing_stays_mapped() {
    fake::install();
    let memory = Physical::create(0, PAGE).unwrap();
    fake::log();
    fake::fail("access", sys::hipErrorInvalidValue);
    assert!(memory::map(PAGE, &memory, Access::ReadWrite).is_err());
    let expected = ["map 0x200000 2097152 0 7 0", "access 0x200000 2097152 0 3 1", "unmap 0x200000 2097152"];
    assert_eq!(fake::log(), expected);
    fake::fail("map", sys::hipErrorOutOfMemory);
    let error = memory::map(PAGE, &memory, Access::ReadWrite).unwrap_err();
    assert!(error.is_out_of_memory() && !error.is_fatal());
    assert_eq!(fake::log().len(), 1, "nothing was mapped");
}

/// Before HIP 7.1 the address of the number was expected.
#[test]
fn descriptors_are_imported_by_their_numbers() {
    fake::install();
    let memory = Physical::create(0, PAGE).unwrap();
    let exported = memory.export().unwrap();
    fake::log();
    let imported = Physical::import(0, exported.as_fd(), PAGE).unwrap();
    assert_eq!(fake::log(), [format!("import {} 1", exported.as_raw_fd())]);
    assert_eq!(imported.bytes(), PAGE);
}

#[test]
fn addresses_are_never_given_back_and_serve_again() {
    fake::install();
    let first = memory::reserve(3 * PAGE).unwrap();
    assert_eq!(fake::log(), ["reserve 8388608 0 0 0"]);
    memory::free(first, 3 * PAGE);
    assert_eq!(memory::reserve(4 * PAGE).unwrap(), first, "as long");
    assert!(fake::log().is_empty(), "the library was told nothing");
    assert_ne!(memory::reserve(4 * PAGE).unwrap(), first, "it is in use");
}

#[test]
fn pinned_memory_is_where_kernels_will_look_for_it_or_not_pinned() {
    fake::install();
    let mut bytes = vec![0u8; 4096];
    // SAFETY: the library below touches nothing.
    let pin = |same: bool, at: *mut u8| unsafe { Pinned::register(at, 4096, same) };
    drop(pin(true, bytes.as_mut_ptr()).unwrap());
    assert_eq!(fake::log(), ["register 4096 0", "pointer 0", "unregister"]);
    fake::pinned_memory_is_elsewhere();
    assert!(pin(true, bytes.as_mut_ptr()).is_err());
    assert_eq!(fake::log(), ["register 4096 0", "pointer 0", "unregister"]);
    drop(pin(false, bytes.as_mut_ptr()).unwrap());
    assert_eq!(fake::log(), ["register 4096 0", "unregister"]);
}

#[test]
fn a_launch_passes_its_bytes_and_never_fewer_than_the_kernel_takes() {
    fake::install();
    let stream = Stream::create().unwrap();
    assert_eq!(fake::log(), ["with flags 0x1"]);
    let shape = Shape { grid: [3, 2, 1], block: [64, 1, 1], cluster: ALONE, shared_bytes: 16 };
    stream.launch(Kernel::of(4), &shape, &[1, 2, 3, 4]).unwrap();
    assert_eq!(fake::log(), ["launch 3 3 2 1 / 64 1 1 / 16 true [1, 2, 3] [1, 2, 3, 4]"]);
    assert!(stream.launch(Kernel::of(8), &shape, &[1, 2, 3, 4]).is_err());
    assert!(fake::log().is_empty(), "the library would have read on");
}

#[test]
fn events_make_what_kernels_wrote_visible_to_the_host() {
    fake::install();
    let _events = [Event::create(true).unwrap(), Event::create(false).unwrap()];
    assert_eq!(fake::log(), ["with flags 0x80000000", "with flags 0x80000002"]);
}

#[test]
fn a_wait_ends_with_the_work_or_with_its_failure() {
    fake::install();
    let stream = Stream::create().unwrap();
    fake::queries(&[sys::hipErrorNotReady; 5000]);
    stream.synchronize().unwrap();
    fake::queries(&[sys::hipErrorNotReady, sys::hipErrorIllegalAddress]);
    let error = stream.synchronize().unwrap_err();
    assert!(error.is_fatal() && error.kernel_cause().is_some());
    fake::queries(&[sys::hipErrorNotReady]);
    assert!(!stream.has_ended().unwrap() && stream.has_ended().unwrap());
}
