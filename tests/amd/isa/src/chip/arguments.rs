//! What a kernel finds when it starts: its arguments, the hidden ones among them, the dispatch packet, and its first
//! registers. Sections "Kernarg Segment", "Initial Kernel Execution State" of LLVM's guide; the packet is HSA's.

use std::cell::Cell;

use super::Dispatch;
use crate::decode::{Arch, Src};
use crate::wave::{ARGUMENTS, LANES, PRIVATE_APERTURE, Registers, SCRATCH, SHARED_APERTURE, Wave};

/// The packet comes first.
const PACKET_BYTES: usize = 64;

/// Packet and arguments in memory that kernels see.
pub(super) fn lay_out(dispatch: &Dispatch<'_>) -> Vec<Cell<u8>> {
    let kernel = dispatch.kernel;
    let mut bytes = vec![0; PACKET_BYTES + kernel.arguments_bytes];
    packet(dispatch, &mut bytes[..PACKET_BYTES]);
    let arguments = &mut bytes[PACKET_BYTES..];
    for argument in &kernel.arguments {
        let place = argument.offset..argument.offset.saturating_add(argument.bytes);
        let Some(into) = arguments.get_mut(place.clone()) else { continue };
        match hidden(dispatch, &argument.kind) {
            Some(value) => into.iter_mut().zip(value.to_le_bytes()).for_each(|(byte, new)| *byte = new),
            None => {
                if let Some(from) = dispatch.arguments.get(place) {
                    into.copy_from_slice(from);
                }
            }
        }
    }
    bytes.into_iter().map(Cell::new).collect()
}

/// The value of a hidden argument.
fn hidden(dispatch: &Dispatch<'_>, kind: &str) -> Option<u64> {
    let name = kind.strip_prefix("hidden_")?;
    let axis = match name.as_bytes().last() {
        Some(b'y') => 1,
        Some(b'z') => 2,
        _ => 0,
    };
    Some(match name {
        _ if name.starts_with("block_count_") => u64::from(dispatch.grid[axis]),
        _ if name.starts_with("group_size_") => u64::from(dispatch.block[axis]),
        // Grids are whole blocks; offsets, remainders, and what the host would serve are zero.
        "grid_dims" => dimensions(dispatch),
        "dynamic_lds_size" => u64::from(dispatch.lds_bytes),
        "private_base" => PRIVATE_APERTURE >> 32,
        "shared_base" => SHARED_APERTURE >> 32,
        _ => 0,
    })
}

fn dimensions(dispatch: &Dispatch<'_>) -> u64 {
    let used = |axis: usize| dispatch.grid[axis].saturating_mul(dispatch.block[axis]) > 1;
    if used(2) {
        3
    } else if used(1) {
        2
    } else {
        1
    }
}

/// `hsa_kernel_dispatch_packet_t`.
fn packet(dispatch: &Dispatch<'_>, into: &mut [u8]) {
    let mut put = |offset: usize, bytes: &[u8]| into[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(2, &(dimensions(dispatch) as u16).to_le_bytes());
    for axis in 0..3 {
        let block = dispatch.block[axis];
        put(4 + 2 * axis, &(block as u16).to_le_bytes());
        put(12 + 4 * axis, &dispatch.grid[axis].wrapping_mul(block).to_le_bytes());
    }
    put(24, &dispatch.kernel.scratch_bytes.to_le_bytes());
    put(28, &(dispatch.kernel.lds_bytes + dispatch.lds_bytes).to_le_bytes());
    put(40, &(ARGUMENTS + PACKET_BYTES as u64).to_le_bytes());
}

/// The first registers of a wave of group `id` whose first thread is `first`, with its scratch at `scratch`.
pub(super) fn initialise(
    wave: &mut Wave,
    registers: &mut Registers,
    dispatch: &Dispatch<'_>,
    id: [u32; 3],
    first: u32,
    scratch: u64,
) {
    let kernel = dispatch.kernel;
    let [rsrc1, rsrc2, _] = kernel.rsrc;
    let has = |bit: u32| kernel.properties >> bit & 1 == 1;
    let architected = dispatch.object.arch == Arch::Gfx942;
    // A buffer without a bound, swizzled by lane in words.
    let buffer = [1 << 63 | SCRATCH, (1u64 << 23 | 3 << 21 | 1 << 19) << 32 | 0xffff_ffff];
    let of_user: [(bool, &[u64]); 6] = [
        (has(0), &buffer),
        (has(1), &[ARGUMENTS]),
        (has(2), &[0]),
        (has(3), &[ARGUMENTS + PACKET_BYTES as u64]),
        (has(4), &[0]),
        (has(5), &[SCRATCH]),
    ];
    let mut next = 0;
    for value in of_user.iter().filter(|(has, _)| *has).flat_map(|(_, values)| *values) {
        wave.write_wide(&mut registers.scalar, next, *value);
        next += 2;
    }
    if has(6) {
        wave.write(&mut registers.scalar, next, kernel.scratch_bytes);
    }
    // The workgroup's identity follows the user's registers.
    let mut next = (rsrc2 >> 1 & 0x1f) as u16;
    for (axis, place) in id.into_iter().enumerate() {
        if rsrc2 >> (7 + axis) & 1 == 1 {
            wave.write(&mut registers.scalar, next, place);
            next += 1;
        }
    }
    if rsrc2 >> 10 & 1 == 1 {
        wave.write(&mut registers.scalar, next, 0);
        next += 1;
    }
    if architected {
        wave.flat_scratch = SCRATCH + scratch;
    } else if rsrc2 & 1 == 1 {
        wave.write(&mut registers.scalar, next, scratch as u32);
    }
    wave.mode = rsrc1 >> 12 & 0xff;
    let [x, y, _] = dispatch.block;
    let at = wave.vector(Src::vgpr(0).code);
    for lane in 0..LANES {
        let thread = first + lane as u32;
        registers.vector[at][lane] = (thread % x) | ((thread / x % y) << 10) | ((thread / x / y) << 20);
    }
}
