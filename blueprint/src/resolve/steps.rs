//! The control flow of a blueprint, resolved: a flat list of steps, and every distinct list of
//! parameters once.

use super::Resolver;
use crate::blueprint::{FieldValue, Item, Step};
use crate::error::Path;
use crate::format::{Action, Argument, Copy, Exec, Fill, Integer, Launch, NameOr, Repeat, Sizing, Struct};
use crate::hints::{listed, nearest};
use crate::launch;
use crate::limits;
use crate::read::List;
use crate::size::SizeId;
use crate::small_float::SmallFloat;
use crate::types::ParamKind;

impl<'a> Resolver<'a> {
    /// Resolves a list of actions. Returns how many steps it certainly expands to: repeats whose
    /// count is not yet known may well be zero.
    pub(super) fn actions(&mut self, actions: &'a List<Action>, list: &Path<'_>, depth: usize) -> u64 {
        let mut expanded = 0u64;
        for (at, action) in actions.iter() {
            let place = &list.index(at);
            if self.steps.len() == limits::JSON_STEPS {
                let max = limits::JSON_STEPS;
                self.notes.note(place, format_args!("one more action, expected at most {max}"));
                break;
            }
            let added = match action {
                Action::ExecKernel(exec) => {
                    self.launch(exec, &place.key("ExecKernel"));
                    1
                }
                Action::Copy(copy) => {
                    self.copy(copy, &place.key("Copy"));
                    1
                }
                Action::Fill(fill) => {
                    self.fill(fill, &place.key("Fill"));
                    1
                }
                Action::Repeat(repeat) => self.repeat(repeat, &place.key("Repeat"), depth + 1),
            };
            expanded = expanded.saturating_add(added);
            if expanded > limits::EXPANDED_STEPS {
                let max = limits::EXPANDED_STEPS;
                let message = "one invocation would execute more steps than allowed";
                self.notes.note(place, format_args!("{message}, expected at most {max}"));
                // Said once, where it becomes too many.
                return 0;
            }
        }
        expanded
    }

    fn repeat(&mut self, repeat: &'a Repeat, place: &Path<'_>, depth: usize) -> u64 {
        if depth > limits::REPEAT_DEPTH {
            let max = limits::REPEAT_DEPTH;
            self.notes.note(place, format_args!("one more level of `Repeat`, expected at most {max}"));
            return 0;
        }
        let count = repeat.count.as_ref().and_then(|count| self.size(count, &place.index(0)));
        let header = self.steps.len();
        let known = count.unwrap_or_else(|| self.constant(0));
        self.steps.push(Step::Repeat { count: known, body: 0 });
        let once = match &repeat.body {
            Some(body) => self.actions(body, &place.index(1), depth),
            None => 0,
        };
        let body = (self.steps.len() - header - 1) as u32;
        self.steps[header] = Step::Repeat { count: known, body };
        self.sizes.table().constant(known).unwrap_or(0).saturating_mul(once)
    }

    fn launch(&mut self, exec: &Exec, place: &Path<'_>) -> Option<()> {
        let kernel = exec.kernel.as_ref().and_then(|kernel| self.kernel_named(kernel, &place.index(0)));
        let list = exec.arguments.as_ref().and_then(|list| self.arguments(list, &place.index(1)));
        let dims = exec.launch.as_ref().and_then(|launch| self.dims(launch, &place.index(2)));
        self.steps.push(Step::Launch { kernel: kernel?, dims: dims?, list: list? });
        Some(())
    }

    fn kernel_named(&mut self, name: &str, place: &Path<'_>) -> Option<u32> {
        let found = self.kernel_ids.get(name).copied();
        if found.is_none() && !self.unsure.kernels {
            let known = self.kernels.iter().map(|kernel| kernel.name.as_str());
            let (near, known) = (nearest(name, known.clone()), listed(known));
            self.notes.note(
                place,
                format_args!("unknown kernel {name:?}{near}; expected one of `kernels`: {known}"),
            );
        }
        found
    }

    fn dims(&mut self, launch: &Launch, place: &Path<'_>) -> Option<[SizeId; 10]> {
        // What is needed and is not there could not be read.
        let whole = launch.grid_dim_x.is_some() && launch.block_dim_x.is_some();
        let sizings = [
            &launch.grid_dim_x,
            &launch.grid_dim_y,
            &launch.grid_dim_z,
            &launch.block_dim_x,
            &launch.block_dim_y,
            &launch.block_dim_z,
            &launch.shared_mem_bytes,
            &launch.cluster_dim_x,
            &launch.cluster_dim_y,
            &launch.cluster_dim_z,
        ];
        let dims = std::array::from_fn(|at| {
            let place = &place.key(launch::KEYS[at]);
            let size = self.size_or(launch::DEFAULTS[at], sizings[at], place)?;
            match self.sizes.table().constant(size).map(|value| launch::check(at, value)) {
                Some(Err(why)) => self.wrong(place, why),
                Some(Ok(value)) => Some((size, Some(value))),
                None => Some((size, None)),
            }
        });
        let [gx, gy, gz, bx, by, bz, _, cx, cy, cz] = dims.map(|dim| dim.and_then(|(_, value)| value));
        if let (Some(x), Some(y), Some(z)) = (bx, by, bz)
            && let Err(why) = launch::check_block([x, y, z])
        {
            return self.wrong(place, why);
        }
        if let (Some(x), Some(y), Some(z)) = (cx, cy, cz) {
            // A dimension of the grid that is not known yet may be a multiple.
            let grid = [gx.unwrap_or(0), gy.unwrap_or(0), gz.unwrap_or(0)];
            if let Err(why) = launch::check_cluster(grid, [x, y, z]) {
                return self.wrong(place, why);
            }
        }
        let mut ids = [self.constant(0); 10];
        for (id, dim) in ids.iter_mut().zip(dims) {
            *id = dim?.0;
        }
        whole.then_some(ids)
    }

    fn copy(&mut self, copy: &Copy, place: &Path<'_>) -> Option<()> {
        let from = self.buffer(&copy.from, &place.key("from"));
        let from_offset = self.size_or(0, &copy.from_offset, &place.key("from_offset"));
        let to = self.writable(&copy.to, &place.key("to"));
        let to_offset = self.size_or(0, &copy.to_offset, &place.key("to_offset"));
        let bytes = self.optional_size(&copy.bytes, &place.key("bytes"));
        let (from_offset, to_offset) = (from_offset?, to_offset?);
        self.steps.push(Step::Copy { from: from?, from_offset, to: to?, to_offset, bytes: bytes? });
        Some(())
    }

    fn fill(&mut self, fill: &Fill, place: &Path<'_>) -> Option<()> {
        let buffer = self.writable(&fill.buffer, &place.key("buffer"));
        let offset = self.size_or(0, &fill.offset, &place.key("offset"));
        let bytes = self.optional_size(&fill.bytes, &place.key("bytes"));
        self.steps.push(Step::Fill { buffer: buffer?, offset: offset?, bytes: bytes?, byte: fill.byte });
        Some(())
    }

    /// The resolved size, or `Some(None)` if none is given; `None` if it cannot be resolved.
    fn optional_size(&mut self, sizing: &Option<Sizing>, place: &Path<'_>) -> Option<Option<SizeId>> {
        match sizing {
            Some(sizing) => self.size(sizing, place).map(Some),
            None => Some(None),
        }
    }

    /// Resolves a list of arguments; equal lists become one.
    fn arguments(&mut self, arguments: &List<Argument, { limits::PARAMS }>, list: &Path<'_>) -> Option<u32> {
        self.scratch.clear();
        let mut bytes = Some(0);
        for (at, argument) in arguments.0.iter().enumerate() {
            let added = argument.as_ref().and_then(|argument| self.argument(argument, &list.index(at)));
            bytes = bytes.zip(added).map(|(bytes, added)| bytes + added.next_multiple_of(8));
        }
        let bytes = bytes?;
        if bytes > limits::PARAM_BYTES {
            let max = limits::PARAM_BYTES;
            return self.wrong(list, format_args!("{bytes} bytes of parameters, expected at most {max}"));
        }
        if let Some(&known) = self.list_ids.get(self.scratch.as_slice()) {
            return Some(known);
        }
        self.list_bytes += bytes;
        if self.list_bytes > limits::PARAM_TABLE_BYTES {
            let max = limits::PARAM_TABLE_BYTES;
            let message = "more bytes of distinct parameters";
            return self.wrong(list, format_args!("{message}, expected at most {max} in all"));
        }
        let id = self.lists.len() as u32;
        let start = self.items.len() as u32;
        self.items.extend_from_slice(&self.scratch);
        self.lists.push(start..self.items.len() as u32);
        self.list_ids.insert(self.scratch.as_slice().into(), id);
        Some(id)
    }

    /// Resolves one argument into `scratch`. Returns its bytes.
    fn argument(&mut self, argument: &Argument, place: &Path<'_>) -> Option<u64> {
        if let Argument::Struct(by_value) = argument {
            return self.structure(by_value, &place.key("Struct"));
        }
        if let Argument::TensorMap(map) = argument {
            let value = self.tensor_map(map, &place.key("TensorMap"))?;
            let (bytes, align) = (limits::MAP_BYTES as u32, limits::MAP_PARAM_ALIGN as u32);
            self.scratch.push(Item::Param { kind: ParamKind::TensorMap, bytes, align });
            self.scratch.push(Item::Field { offset: 0, value });
            return Some(limits::MAP_BYTES);
        }
        let (kind, value) = self.scalar(argument, place)?;
        let bytes = scalar_bytes(kind);
        self.scratch.push(Item::Param { kind, bytes: bytes as u32, align: bytes as u32 });
        self.scratch.push(Item::Field { offset: 0, value });
        Some(bytes)
    }

    fn structure(&mut self, by_value: &Struct, place: &Path<'_>) -> Option<u64> {
        let size = by_value.size;
        if size == 0 || size > limits::PARAM_BYTES {
            let max = limits::PARAM_BYTES;
            return self
                .wrong(&place.key("size"), format_args!("a struct of {size} bytes, expected 1 to {max}"));
        }
        let fields = &place.key("fields");
        let header = self.scratch.len();
        let mut natural_align = 1;
        // Where each field starts and ends, and which it is.
        let mut taken = Vec::with_capacity(by_value.fields.len());
        self.scratch.push(Item::Param { kind: ParamKind::Struct, bytes: size as u32, align: 1 });
        let mut whole = true;
        for (at, field) in by_value.fields.iter().enumerate() {
            let place = &fields.index(at);
            let Some((kind, value)) = self.scalar(&field.value, &place.key("value")) else {
                whole = false;
                continue;
            };
            let bytes = scalar_bytes(kind);
            let Some(end) = self.field_end(field.offset, bytes, size, &place.key("offset")) else {
                whole = false;
                continue;
            };
            natural_align = natural_align.max(bytes);
            taken.push((field.offset, end, at));
            self.scratch.push(Item::Field { offset: field.offset as u32, value });
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            if let [(_, end, first), (start, _, second)] = *pair
                && start < end
            {
                let (first, second) = (first.min(second), first.max(second));
                let message = format_args!("it overlaps field {first}, expected distinct bytes");
                return self.wrong(&fields.index(second), message);
            }
        }
        let align = by_value.align.unwrap_or(natural_align);
        if !align.is_power_of_two() || align > limits::STRUCT_ALIGN || align < natural_align {
            let max = limits::STRUCT_ALIGN;
            let message = format_args!(
                "an alignment of {align}, expected a power of two from {natural_align} to {max}"
            );
            return self.wrong(&place.key("align"), message);
        }
        if whole && !size.is_multiple_of(align) {
            let message = format_args!("{size} bytes, expected a multiple of the alignment {align}");
            return self.wrong(&place.key("size"), message);
        }
        self.scratch[header] =
            Item::Param { kind: ParamKind::Struct, bytes: size as u32, align: align as u32 };
        whole.then_some(size)
    }

    /// Where a field of a struct ends.
    fn field_end(&mut self, offset: u64, bytes: u64, size: u64, place: &Path<'_>) -> Option<u64> {
        let Some(end) = offset.checked_add(bytes).filter(|&end| end <= size) else {
            let message = format_args!("{bytes} bytes at {offset}, expected inside the {size} of the struct");
            return self.wrong(place, message);
        };
        if !offset.is_multiple_of(bytes) {
            let message = format_args!("{offset} is not aligned, expected a multiple of {bytes}");
            return self.wrong(place, message);
        }
        Some(end)
    }

    /// Resolves an argument that is one number or pointer.
    fn scalar(&mut self, argument: &Argument, place: &Path<'_>) -> Option<(ParamKind, FieldValue)> {
        Some(match argument {
            Argument::Ptr(NameOr::Name(name)) => {
                let buffer = self.buffer(name, &place.key("Ptr"))?;
                (ParamKind::Pointer, FieldValue::Pointer { buffer, offset: self.constant(0) })
            }
            Argument::Ptr(NameOr::Object(at)) => {
                let place = &place.key("Ptr");
                let buffer = self.buffer(&at.buffer, &place.key("buffer"));
                let offset = self.size(&at.offset, &place.key("offset"))?;
                (ParamKind::Pointer, FieldValue::Pointer { buffer: buffer?, offset })
            }
            Argument::Sizeof(name) => {
                let buffer = self.buffer(name, &place.key("Sizeof"))?;
                let size = self.sizeof(buffer);
                (ParamKind::U64, FieldValue::Size { size, max: u64::MAX, name: "Sizeof" })
            }
            Argument::Constant(value) => (ParamKind::I64, FieldValue::Bits(*value as u64)),
            Argument::I8(value) => (ParamKind::I8, self.signed(value, "I8", i8::MAX.into(), place)?),
            Argument::U8(value) => (ParamKind::U8, self.unsigned(value, "U8", u8::MAX.into(), place)?),
            Argument::I16(value) => (ParamKind::I16, self.signed(value, "I16", i16::MAX.into(), place)?),
            Argument::U16(value) => (ParamKind::U16, self.unsigned(value, "U16", u16::MAX.into(), place)?),
            Argument::I32(value) => (ParamKind::I32, self.signed(value, "I32", i32::MAX.into(), place)?),
            Argument::U32(value) => (ParamKind::U32, self.unsigned(value, "U32", u32::MAX.into(), place)?),
            Argument::I64(value) => (ParamKind::I64, self.signed(value, "I64", i64::MAX.into(), place)?),
            Argument::U64(value) => (ParamKind::U64, self.unsigned(value, "U64", u64::MAX.into(), place)?),
            Argument::F16(value) => (ParamKind::F16, self.half(*value, SmallFloat::F16, &place.key("F16"))?),
            Argument::BF16(value) => {
                (ParamKind::Bf16, self.half(*value, SmallFloat::BF16, &place.key("BF16"))?)
            }
            Argument::F32(value) => {
                let narrow = *value as f32;
                if !narrow.is_finite() {
                    let message = format_args!("{value:e} is too large, expected at most {:e}", f32::MAX);
                    return self.wrong(&place.key("F32"), message);
                }
                (ParamKind::F32, FieldValue::Bits(narrow.to_bits().into()))
            }
            Argument::F64(value) => (ParamKind::F64, FieldValue::Bits(value.to_bits())),
            Argument::Bool(value) => (ParamKind::Bool, FieldValue::Bits((*value).into())),
            Argument::Struct(_) => {
                return self.wrong(place, "a struct within a struct, expected its fields in the outer one");
            }
            Argument::TensorMap(_) => {
                return self
                    .wrong(place, "a tensor map within a struct, expected it as an argument of its own");
            }
        })
    }

    fn signed(
        &mut self,
        value: &Integer,
        name: &'static str,
        max: i128,
        place: &Path<'_>,
    ) -> Option<FieldValue> {
        self.integer(value, name, (-max - 1, max), place)
    }

    fn unsigned(
        &mut self,
        value: &Integer,
        name: &'static str,
        max: i128,
        place: &Path<'_>,
    ) -> Option<FieldValue> {
        self.integer(value, name, (0, max), place)
    }

    fn integer(
        &mut self,
        value: &Integer,
        name: &'static str,
        (min, max): (i128, i128),
        place: &Path<'_>,
    ) -> Option<FieldValue> {
        let place = &place.key(name);
        let literal = match value {
            Integer::Literal(value) => *value,
            Integer::Size(sizing) => {
                let size = self.size(sizing, place)?;
                match self.sizes.table().constant(size) {
                    Some(value) => value.into(),
                    // Every `max` fits.
                    None => {
                        return Some(FieldValue::Size { size, max: max as u64, name });
                    }
                }
            }
        };
        if literal < min || literal > max {
            return self.wrong(place, format_args!("the value is {literal}, expected {min} to {max}"));
        }
        // Two's complement, cut to the width of the parameter, which has as many values as there are from `min` to `max`.
        Some(FieldValue::Bits((literal & (max - min)) as u64))
    }

    fn half(&mut self, value: f64, format: SmallFloat, place: &Path<'_>) -> Option<FieldValue> {
        match format.nearest(value) {
            Some(bits) => Some(FieldValue::Bits(bits.into())),
            None => {
                self.wrong(place, format_args!("{value:e} is too large, expected at most {:e}", format.max()))
            }
        }
    }
}

fn scalar_bytes(kind: ParamKind) -> u64 {
    match kind {
        ParamKind::I8 | ParamKind::U8 | ParamKind::Bool => 1,
        ParamKind::I16 | ParamKind::U16 | ParamKind::F16 | ParamKind::Bf16 => 2,
        ParamKind::I32 | ParamKind::U32 | ParamKind::F32 => 4,
        ParamKind::Pointer | ParamKind::I64 | ParamKind::U64 | ParamKind::F64 => 8,
        // They are no scalars.
        ParamKind::Struct | ParamKind::TensorMap => 8,
    }
}
