//! What a function says, with the names that its parts have in the linked function.

use std::collections::HashMap;

use smol_str::{SmolStr, format_smolstr};

use super::dimensions::{Declared, Fit, Text};
use crate::format::{
    Action, Argument, Copy, Exec, Field, Fill, Integer, Launch, NameOr, PointerAt, Repeat, Sizing, Struct,
    TensorMap, Type, Word,
};
use crate::read::List;

/// The bytes of an input that takes no memory of its own.
#[derive(Clone)]
pub(super) enum Bytes {
    Number(u64),
    /// All of a buffer.
    Of(String),
    /// A part of a buffer, which has so many.
    Part(String, u64),
}

impl Bytes {
    pub(super) fn sizing(&self) -> Sizing {
        match self {
            Self::Number(value) => Sizing::Absolute(*value),
            Self::Of(buffer) => Sizing::Sizeof(buffer.into()),
            Self::Part(buffer, parts) => {
                Sizing::FloorDiv(Box::new((Sizing::Sizeof(buffer.into()), Sizing::Absolute(*parts))))
            }
        }
    }
}

/// What the words of an input are.
pub(super) enum Words<'a> {
    /// Those of an input of the composition.
    Of(&'a str),
    /// Those of a constant.
    Known(&'a super::constants::Array),
}

/// The names of one run of a function.
pub(super) struct Renaming<'a> {
    pub(super) fit: &'a Fit,
    /// Sizes that have names of their own.
    pub(super) sizes: HashMap<&'a str, String>,
    pub(super) buffers: HashMap<&'a str, String>,
    /// Of inputs without a buffer.
    pub(super) bytes: HashMap<&'a str, Bytes>,
    pub(super) words: HashMap<&'a str, Words<'a>>,
    pub(super) kernels: &'a HashMap<&'a str, String>,
    pub(super) free: HashMap<&'a str, Text>,
}

/// The name of a dimension among the linked function's sizes.
pub(super) fn name_of(declared: Declared) -> SmolStr {
    let Declared { step, buffer, dim } = declared;
    format_smolstr!("step {step}, buffer {}, dimension {dim}", buffer.0)
}

/// A dimension, as a size.
pub(super) fn dimension(fit: &Fit, text: Text) -> Sizing {
    match text {
        Text::Number(value) => Sizing::Absolute(value),
        Text::Declared(declared) => Sizing::Size(name_of(declared)),
        Text::Free(free) => match fit.resolved(free) {
            Text::Free(free) => Sizing::Free(fit.free[free].name.as_str().into()),
            Text::Number(value) => Sizing::Absolute(value),
            Text::Declared(declared) => Sizing::Size(name_of(declared)),
        },
    }
}

impl Renaming<'_> {
    /// The linked name of a buffer. One without a linked buffer is in sizes only.
    pub(super) fn buffer(&self, name: &str) -> SmolStr {
        self.buffers.get(name).map_or_else(|| name.into(), |name| name.into())
    }

    pub(super) fn sizing(&self, sizing: &Sizing) -> Sizing {
        let pair = |pair: &(Sizing, Sizing)| Box::new((self.sizing(&pair.0), self.sizing(&pair.1)));
        let list = |list: &[Sizing]| list.iter().map(|sizing| self.sizing(sizing)).collect();
        match sizing {
            Sizing::Sizeof(name) => match self.bytes.get(name.as_str()) {
                Some(bytes) => bytes.sizing(),
                None => Sizing::Sizeof(self.buffer(name)),
            },
            Sizing::Size(name) => {
                Sizing::Size(self.sizes.get(name.as_str()).map_or_else(|| name.clone(), |name| name.into()))
            }
            // The shapes were compared: every free dimension is known.
            Sizing::Free(name) => match self.free.get(name.as_str()) {
                Some(text) => dimension(self.fit, *text),
                None => Sizing::Free(name.clone()),
            },
            Sizing::Absolute(value) => Sizing::Absolute(*value),
            Sizing::FromInput(word) => self.word(word),
            Sizing::Sum(all) => Sizing::Sum(list(all)),
            Sizing::Product(all) => Sizing::Product(list(all)),
            Sizing::Min(all) => Sizing::Min(list(all)),
            Sizing::Max(all) => Sizing::Max(list(all)),
            Sizing::Sub(both) => Sizing::Sub(pair(both)),
            Sizing::CeilDiv(both) => Sizing::CeilDiv(pair(both)),
            Sizing::FloorDiv(both) => Sizing::FloorDiv(pair(both)),
            Sizing::Mod(both) => Sizing::Mod(pair(both)),
        }
    }

    fn word(&self, word: &Word) -> Sizing {
        let bufname = match self.words.get(word.bufname.as_str()) {
            Some(Words::Of(input)) => SmolStr::new(input),
            Some(Words::Known(array)) => return Sizing::Absolute(array.word(word.idx).unwrap_or_default()),
            None => word.bufname.clone(),
        };
        Sizing::FromInput(Word { bufname, idx: word.idx })
    }

    pub(super) fn declared(&self, declared: &Type) -> Type {
        let shape = declared.shape.as_ref().map(|shape| self.list(shape, Self::sizing));
        Type { dtype: declared.dtype, shape }
    }

    fn list<T, const MOST: usize>(
        &self,
        list: &List<T, MOST>,
        each: impl Fn(&Self, &T) -> T,
    ) -> List<T, MOST> {
        List(list.0.iter().map(|entry| entry.as_ref().map(|entry| each(self, entry))).collect())
    }

    fn maybe(&self, sizing: &Option<Sizing>) -> Option<Sizing> {
        sizing.as_ref().map(|sizing| self.sizing(sizing))
    }

    pub(super) fn action(&self, action: &Action) -> Action {
        match action {
            Action::ExecKernel(exec) => Action::ExecKernel(Exec {
                kernel: exec.kernel.as_ref().map(|kernel| {
                    self.kernels.get(kernel.as_str()).map_or_else(|| kernel.clone(), |name| name.into())
                }),
                arguments: exec.arguments.as_ref().map(|list| self.list(list, Self::argument)),
                launch: exec.launch.as_ref().map(|launch| Box::new(self.launch(launch))),
            }),
            // As deep as a blueprint's repeats may be.
            Action::Repeat(repeat) => Action::Repeat(Repeat {
                count: self.maybe(&repeat.count),
                body: repeat.body.as_ref().map(|body| self.list(body, Self::action)),
            }),
            Action::Copy(copy) => Action::Copy(Copy {
                from: self.buffer(&copy.from),
                from_offset: self.maybe(&copy.from_offset),
                to: self.buffer(&copy.to),
                to_offset: self.maybe(&copy.to_offset),
                bytes: self.maybe(&copy.bytes),
            }),
            Action::Fill(fill) => Action::Fill(Fill {
                buffer: self.buffer(&fill.buffer),
                offset: self.maybe(&fill.offset),
                bytes: self.maybe(&fill.bytes),
                byte: fill.byte,
            }),
        }
    }

    fn launch(&self, launch: &Launch) -> Launch {
        Launch {
            grid_dim_x: self.maybe(&launch.grid_dim_x),
            grid_dim_y: self.maybe(&launch.grid_dim_y),
            grid_dim_z: self.maybe(&launch.grid_dim_z),
            block_dim_x: self.maybe(&launch.block_dim_x),
            block_dim_y: self.maybe(&launch.block_dim_y),
            block_dim_z: self.maybe(&launch.block_dim_z),
            shared_mem_bytes: self.maybe(&launch.shared_mem_bytes),
            cluster_dim_x: self.maybe(&launch.cluster_dim_x),
            cluster_dim_y: self.maybe(&launch.cluster_dim_y),
            cluster_dim_z: self.maybe(&launch.cluster_dim_z),
        }
    }

    fn argument(&self, argument: &Argument) -> Argument {
        let integer = |value: &Integer| match value {
            Integer::Literal(value) => Integer::Literal(*value),
            Integer::Size(size) => Integer::Size(self.sizing(size)),
        };
        match argument {
            Argument::Ptr(NameOr::Name(name)) => Argument::Ptr(NameOr::Name(self.buffer(name))),
            Argument::Ptr(NameOr::Object(at)) => Argument::Ptr(NameOr::Object(PointerAt {
                buffer: self.buffer(&at.buffer),
                offset: self.sizing(&at.offset),
            })),
            Argument::Sizeof(name) => match self.bytes.get(name.as_str()) {
                Some(bytes) => Argument::U64(Integer::Size(bytes.sizing())),
                None => Argument::Sizeof(self.buffer(name)),
            },
            Argument::Constant(value) => Argument::Constant(*value),
            Argument::I8(value) => Argument::I8(integer(value)),
            Argument::U8(value) => Argument::U8(integer(value)),
            Argument::I16(value) => Argument::I16(integer(value)),
            Argument::U16(value) => Argument::U16(integer(value)),
            Argument::I32(value) => Argument::I32(integer(value)),
            Argument::U32(value) => Argument::U32(integer(value)),
            Argument::I64(value) => Argument::I64(integer(value)),
            Argument::U64(value) => Argument::U64(integer(value)),
            Argument::F16(value) => Argument::F16(*value),
            Argument::BF16(value) => Argument::BF16(*value),
            Argument::F32(value) => Argument::F32(*value),
            Argument::F64(value) => Argument::F64(*value),
            Argument::Bool(value) => Argument::Bool(*value),
            Argument::Struct(written) => Argument::Struct(Box::new(Struct {
                size: written.size,
                align: written.align,
                fields: (written.fields.iter())
                    // A struct has no structs in it.
                    .map(|field| Field { offset: field.offset, value: self.argument(&field.value) })
                    .collect(),
            })),
            Argument::TensorMap(map) => Argument::TensorMap(Box::new(TensorMap {
                buffer: self.buffer(&map.buffer),
                offset: self.maybe(&map.offset),
                dtype: map.dtype,
                shape: map.shape.iter().map(|size| self.sizing(size)).collect(),
                strides: map.strides.iter().map(|size| self.sizing(size)).collect(),
                box_shape: map.box_shape.clone(),
                swizzle: map.swizzle,
                fill: map.fill,
            })),
        }
    }
}
