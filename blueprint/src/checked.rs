//! The blueprint of a checked call: the same function, of which every buffer can be looked at behind the call, and which
//! leaves unused bytes behind every buffer, so that what runs over its end meets no other one.

use crate::blueprint::{Blueprint, Buffer, BufferId, Role};
use crate::error::Error;
use crate::limits;
use crate::size::Node;
use crate::types::DType;

/// The buffer that takes what the kernels of a checked call print.
pub const PRINTED: &str = "pappus.printed";
/// Its bytes: more is left out.
pub const PRINTED_BYTES: u64 = 16 << 10;
/// Unused bytes behind every buffer.
pub const GUARD_BYTES: u64 = 4096;

impl Blueprint {
    /// As checked calls of the function run it: every input and buffer is an output as well, behind the function's own;
    /// the last one is [`PRINTED`]. No two share memory.
    pub fn checked(mut self) -> Result<Self, Error> {
        let place = "blueprint.buffers";
        if self.buffer_named(PRINTED).is_some() {
            return Err(Error::new(
                place,
                format_args!("`{PRINTED}` is what a checked call prints, expected another name"),
            ));
        }
        let size = self.sizes.add(Node::Const(PRINTED_BYTES));
        self.buffers.push(Buffer {
            name: PRINTED.to_owned(),
            role: Role::Buffer,
            output: false,
            reached: true,
            named: false,
            used: true,
            dtype: Some(DType::U8),
            size,
            shape: None,
        });
        let state = self.outputs.split_off(self.returned().len());
        for (at, buffer) in self.buffers.iter_mut().enumerate() {
            if buffer.role != Role::Weight && !std::mem::replace(&mut buffer.output, true) {
                buffer.reached = true;
                self.outputs.push(BufferId(at as u32));
            }
        }
        self.outputs.extend(state);
        if self.outputs.len() > limits::OUTPUTS {
            let (buffers, most) = (self.outputs.len() - 1, limits::OUTPUTS - 1);
            let why = format_args!("{buffers} inputs and buffers, a checked call takes at most {most}");
            return Err(Error::new(place, why));
        }
        self.guard_bytes = GUARD_BYTES;
        Ok(self)
    }

    /// True if it is of checked calls.
    pub fn is_checked(&self) -> bool {
        self.guard_bytes > 0
    }
}
