//! Module `module` against its reference.

use pappus_kernels::bytes::{from_elements, to_elements};
use pappus_kernels::reference::module::check_then_write;

use crate::device::Device;

const ONE: [u32; 3] = [1, 1, 1];

#[test]
fn hello_world_does_nothing_and_returns() {
    Device::load("module").launch("hello_world", &[], ONE, ONE);
}

#[test]
fn check_then_write_changes_only_the_magic_number() {
    for buffer in [[12345i64, 12345], [1, 12345]] {
        let mut device = Device::load("module");
        let a = device.place(&from_elements(&buffer));
        device.launch("check_then_write", &[a.address], ONE, ONE);
        assert_eq!(to_elements::<i64>(&device.read(a)), check_then_write(&buffer));
    }
}
