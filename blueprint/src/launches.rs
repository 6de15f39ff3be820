//! Launches as far as a blueprint tells them without sizes: what a module's kernels are checked against.

use crate::blueprint::{Blueprint, FieldValue, Item, Step, place_of_step};
use crate::hints;
use crate::size::SizeId;
use crate::types::ParamKind;

/// A launch, before any size is known.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// An index into [`Blueprint::kernels`].
    pub kernel: usize,
    /// Threads of a block, where all of its dimensions are constants.
    pub block_threads: Option<u64>,
    blueprint: &'a Blueprint,
    step: usize,
    dims: [SizeId; 10],
    items: &'a [Item],
}

/// A parameter, before its value is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedParam {
    /// What it is.
    pub kind: ParamKind,
    /// Its bytes.
    pub bytes: u32,
    /// Its alignment.
    pub align: u32,
    /// True if the value is the number zero, which may stand for an address where nothing lies.
    pub is_zero: bool,
}

impl PassedParam {
    /// Checks that a kernel may have the parameter at this offset, behind one that ends at `end`; the error is the right
    /// offset.
    ///
    /// An assembler may align a tensor map by where a launch's parameters begin (at byte 0x210 of a bank of constants for
    /// sm_90, by CUDA 12.9's): it lies up to 64 bytes on then, at a multiple of 16, as where parameters begin. Whoever launches
    /// fills parameters in where the kernel has them.
    pub fn lies_at(&self, offset: u64, end: u64) -> Result<(), u64> {
        let expected = end.next_multiple_of(u64::from(self.align.max(1)));
        let aligned_elsewhere = self.kind == ParamKind::TensorMap
            && (end..end + u64::from(self.align)).contains(&offset)
            && offset.is_multiple_of(16);
        if offset == expected || aligned_elsewhere { Ok(()) } else { Err(expected) }
    }

    /// `an i32 of 4 bytes`.
    pub fn described(&self) -> String {
        let name = self.kind.name();
        let article = if name.starts_with(['i', 'f']) { "an" } else { "a" };
        format!("{article} {name} of {}", hints::bytes(self.bytes))
    }
}

impl std::fmt::Display for PassedParam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            ParamKind::Struct => write!(f, "struct of {} bytes", self.bytes),
            kind => f.write_str(kind.name()),
        }
    }
}

impl Launch<'_> {
    /// What the launch needs that only some devices have, in words.
    pub fn special(&self) -> Option<&'static str> {
        let maps = self.params().any(|param| param.kind == ParamKind::TensorMap);
        if maps {
            return Some("a tensor map");
        }
        let clusters = self.dims[7..].iter().any(|&dim| self.blueprint.sizes.constant(dim) != Some(1));
        clusters.then_some("clusters of blocks")
    }

    /// Its parameters, in order.
    pub fn params(&self) -> impl Iterator<Item = PassedParam> + '_ {
        self.items.iter().enumerate().filter_map(|(at, item)| match *item {
            Item::Param { kind, bytes, align } => {
                // What it holds follows it.
                let is_zero = kind != ParamKind::Struct
                    && matches!(self.items.get(at + 1), Some(Item::Field { value: FieldValue::Bits(0), .. }));
                Some(PassedParam { kind, bytes, align, is_zero })
            }
            Item::Field { .. } => None,
        })
    }

    /// Where it is written.
    pub fn place(&self) -> String {
        format!("{}.ExecKernel", place_of_step(&self.blueprint.steps, self.step))
    }
}

impl Blueprint {
    /// Every launch that is written, in order; one in a `Repeat` once.
    pub fn launches(&self) -> impl Iterator<Item = Launch<'_>> {
        self.steps.iter().enumerate().filter_map(|(step, written)| {
            let Step::Launch { kernel, dims, list } = *written else { return None };
            let range = self.lists[list as usize].clone();
            let block = dims[3..6].iter().map(|&dim| self.sizes.constant(dim));
            Some(Launch {
                kernel: kernel as usize,
                // Each was checked to be small.
                block_threads: block.product(),
                blueprint: self,
                step,
                dims,
                items: &self.items[range.start as usize..range.end as usize],
            })
        })
    }
}
