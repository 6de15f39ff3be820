//! The control flow of a blueprint, resolved: a flat list of steps, and every distinct list of
//! parameters once.

use super::Resolver;
use crate::blueprint::{FieldValue, Item, Step};
use crate::error::{Error, Path};
use crate::format::{Action, Argument, Copy, Fill, Integer, Launch, NameOr, Sizing, Struct};
use crate::half::Half;
use crate::launch;
use crate::limits;
use crate::size::SizeId;
use crate::types::ParamKind;

impl<'a> Resolver<'a> {
    /// Resolves a list of actions. Returns how many steps it certainly expands to: repeats whose
    /// count is not yet known may well be zero.
    pub(super) fn actions(
        &mut self,
        actions: &'a [Action],
        list: &Path<'_>,
        depth: usize,
    ) -> Result<u64, Error> {
        let mut expanded = 0u64;
        for (at, action) in actions.iter().enumerate() {
            let place = &list.index(at);
            if self.steps.len() == limits::JSON_STEPS {
                return Err(
                    place.error(format_args!("one more action, expected at most {}", limits::JSON_STEPS))
                );
            }
            let added = match action {
                Action::ExecKernel(kernel, arguments, launch) => {
                    self.launch(kernel, arguments, launch, &place.key("ExecKernel"))?;
                    1
                }
                Action::Copy(copy) => {
                    self.copy(copy, &place.key("Copy"))?;
                    1
                }
                Action::Fill(fill) => {
                    self.fill(fill, &place.key("Fill"))?;
                    1
                }
                Action::Repeat(count, body) => self.repeat(count, body, &place.key("Repeat"), depth + 1)?,
            };
            expanded = expanded.saturating_add(added);
            if expanded > limits::EXPANDED_STEPS {
                return Err(too_many_steps(place));
            }
        }
        Ok(expanded)
    }

    fn repeat(
        &mut self,
        count: &Sizing,
        body: &'a [Action],
        place: &Path<'_>,
        depth: usize,
    ) -> Result<u64, Error> {
        if depth > limits::REPEAT_DEPTH {
            return Err(place.error(format_args!(
                "one more level of `Repeat`, expected at most {}",
                limits::REPEAT_DEPTH
            )));
        }
        let count = self.size(count, &place.index(0))?;
        let header = self.steps.len();
        self.steps.push(Step::Repeat { count, body: 0 });
        let once = self.actions(body, &place.index(1), depth)?;
        let body = (self.steps.len() - header - 1) as u32;
        self.steps[header] = Step::Repeat { count, body };
        Ok(self.sizes.table().constant(count).unwrap_or(0).saturating_mul(once))
    }

    fn launch(
        &mut self,
        kernel: &str,
        arguments: &[Argument],
        launch: &Launch,
        place: &Path<'_>,
    ) -> Result<(), Error> {
        let Some(&kernel) = self.kernel_ids.get(kernel) else {
            return Err(place
                .index(0)
                .error(format_args!("unknown kernel {kernel:?}, expected one of `kernels`")));
        };
        let list = self.arguments(arguments, &place.index(1))?;
        let dims = self.dims(launch, &place.index(2))?;
        self.steps.push(Step::Launch { kernel, dims, list });
        Ok(())
    }

    fn dims(&mut self, launch: &Launch, place: &Path<'_>) -> Result<[SizeId; 10], Error> {
        let sizings = [
            Some(&launch.grid_dim_x),
            Some(&launch.grid_dim_y),
            Some(&launch.grid_dim_z),
            Some(&launch.block_dim_x),
            Some(&launch.block_dim_y),
            Some(&launch.block_dim_z),
            Some(&launch.shared_mem_bytes),
            launch.cluster_dim_x.as_ref(),
            launch.cluster_dim_y.as_ref(),
            launch.cluster_dim_z.as_ref(),
        ];
        // What is left out is a cluster's.
        let mut dims = [self.one(); 10];
        let mut known = [None; 10];
        for (at, sizing) in sizings.into_iter().enumerate() {
            let place = &place.key(launch::KEYS[at]);
            if let Some(sizing) = sizing {
                dims[at] = self.size(sizing, place)?;
            }
            if let Some(value) = self.sizes.table().constant(dims[at]) {
                known[at] = Some(launch::check(at, value).map_err(|message| place.error(message))?);
            }
        }
        let [gx, gy, gz, bx, by, bz, _, cx, cy, cz] = known;
        if let (Some(x), Some(y), Some(z)) = (bx, by, bz) {
            launch::check_block([x, y, z]).map_err(|message| place.error(message))?;
        }
        if let (Some(x), Some(y), Some(z)) = (cx, cy, cz) {
            // A dimension of the grid that is not known yet may be a multiple.
            let grid = [gx.unwrap_or(0), gy.unwrap_or(0), gz.unwrap_or(0)];
            launch::check_cluster(grid, [x, y, z]).map_err(|message| place.error(message))?;
        }
        Ok(dims)
    }

    fn copy(&mut self, copy: &Copy, place: &Path<'_>) -> Result<(), Error> {
        let step = Step::Copy {
            from: self.buffer(&copy.from, &place.key("from"))?,
            from_offset: self.size_or_zero(&copy.from_offset, &place.key("from_offset"))?,
            to: self.writable(&copy.to, &place.key("to"))?,
            to_offset: self.size_or_zero(&copy.to_offset, &place.key("to_offset"))?,
            bytes: self.optional_size(&copy.bytes, &place.key("bytes"))?,
        };
        self.steps.push(step);
        Ok(())
    }

    fn fill(&mut self, fill: &Fill, place: &Path<'_>) -> Result<(), Error> {
        let step = Step::Fill {
            buffer: self.writable(&fill.buffer, &place.key("buffer"))?,
            offset: self.size_or_zero(&fill.offset, &place.key("offset"))?,
            bytes: self.optional_size(&fill.bytes, &place.key("bytes"))?,
            byte: fill.byte,
        };
        self.steps.push(step);
        Ok(())
    }

    fn optional_size(&mut self, sizing: &Option<Sizing>, place: &Path<'_>) -> Result<Option<SizeId>, Error> {
        sizing.as_ref().map(|sizing| self.size(sizing, place)).transpose()
    }

    /// Resolves a list of arguments; equal lists become one.
    fn arguments(&mut self, arguments: &[Argument], list: &Path<'_>) -> Result<u32, Error> {
        self.scratch.clear();
        let mut bytes = 0;
        for (at, argument) in arguments.iter().enumerate() {
            bytes += self.argument(argument, &list.index(at))?.next_multiple_of(8);
        }
        if bytes > limits::PARAM_BYTES {
            return Err(list.error(format_args!(
                "{bytes} bytes of parameters, expected at most {}",
                limits::PARAM_BYTES
            )));
        }
        if let Some(&known) = self.list_ids.get(self.scratch.as_slice()) {
            return Ok(known);
        }
        self.list_bytes += bytes;
        if self.list_bytes > limits::PARAM_TABLE_BYTES {
            return Err(list.error(format_args!(
                "more bytes of distinct parameters, expected at most {} in all",
                limits::PARAM_TABLE_BYTES
            )));
        }
        let id = self.lists.len() as u32;
        let start = self.items.len() as u32;
        self.items.extend_from_slice(&self.scratch);
        self.lists.push(start..self.items.len() as u32);
        self.list_ids.insert(self.scratch.as_slice().into(), id);
        Ok(id)
    }

    /// Resolves one argument into `scratch`. Returns its bytes.
    fn argument(&mut self, argument: &Argument, place: &Path<'_>) -> Result<u64, Error> {
        if let Argument::Struct(by_value) = argument {
            return self.structure(by_value, &place.key("Struct"));
        }
        if let Argument::TensorMap(map) = argument {
            let value = self.tensor_map(map, &place.key("TensorMap"))?;
            let (bytes, align) = (limits::MAP_BYTES as u32, limits::MAP_PARAM_ALIGN as u32);
            self.scratch.push(Item::Param { kind: ParamKind::TensorMap, bytes, align });
            self.scratch.push(Item::Field { offset: 0, value });
            return Ok(limits::MAP_BYTES);
        }
        let (kind, value) = self.scalar(argument, place)?;
        let bytes = scalar_bytes(kind);
        self.scratch.push(Item::Param { kind, bytes: bytes as u32, align: bytes as u32 });
        self.scratch.push(Item::Field { offset: 0, value });
        Ok(bytes)
    }

    fn structure(&mut self, by_value: &Struct, place: &Path<'_>) -> Result<u64, Error> {
        let size = by_value.size;
        if size == 0 || size > limits::PARAM_BYTES {
            return Err(place
                .key("size")
                .error(format_args!("a struct of {size} bytes, expected 1 to {}", limits::PARAM_BYTES)));
        }
        let fields = &place.key("fields");
        let header = self.scratch.len();
        let mut natural_align = 1;
        // Where each field starts and ends, and which it is.
        let mut taken = Vec::with_capacity(by_value.fields.len());
        self.scratch.push(Item::Param { kind: ParamKind::Struct, bytes: size as u32, align: 1 });
        for (at, field) in by_value.fields.iter().enumerate() {
            let place = &fields.index(at);
            let (kind, value) = self.scalar(&field.value, &place.key("value"))?;
            let bytes = scalar_bytes(kind);
            let end = field.offset.checked_add(bytes).filter(|&end| end <= size);
            let Some(end) = end else {
                return Err(place.key("offset").error(format_args!(
                    "{bytes} bytes at {}, expected inside the {size} of the struct",
                    field.offset
                )));
            };
            if !field.offset.is_multiple_of(bytes) {
                return Err(place
                    .key("offset")
                    .error(format_args!("{} is not aligned, expected a multiple of {bytes}", field.offset)));
            }
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
                return Err(fields
                    .index(second)
                    .error(format_args!("it overlaps field {first}, expected distinct bytes")));
            }
        }
        let align = by_value.align.unwrap_or(natural_align);
        if !align.is_power_of_two() || align > limits::STRUCT_ALIGN || align < natural_align {
            return Err(place.key("align").error(format_args!(
                "an alignment of {align}, expected a power of two from {natural_align} to {}",
                limits::STRUCT_ALIGN
            )));
        }
        if !size.is_multiple_of(align) {
            return Err(place
                .key("size")
                .error(format_args!("{size} bytes, expected a multiple of the alignment {align}")));
        }
        self.scratch[header] =
            Item::Param { kind: ParamKind::Struct, bytes: size as u32, align: align as u32 };
        Ok(size)
    }

    /// Resolves an argument that is one number or pointer.
    fn scalar(&mut self, argument: &Argument, place: &Path<'_>) -> Result<(ParamKind, FieldValue), Error> {
        Ok(match argument {
            Argument::Ptr(NameOr::Name(name)) => {
                let buffer = self.buffer(name, &place.key("Ptr"))?;
                (ParamKind::Pointer, FieldValue::Pointer { buffer, offset: self.zero() })
            }
            Argument::Ptr(NameOr::Object(at)) => {
                let place = &place.key("Ptr");
                let buffer = self.buffer(&at.buffer, &place.key("buffer"))?;
                let offset = self.size(&at.offset, &place.key("offset"))?;
                (ParamKind::Pointer, FieldValue::Pointer { buffer, offset })
            }
            Argument::Sizeof(name) => {
                let size = self.sizeof(self.buffer(name, &place.key("Sizeof"))?);
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
            Argument::F16(value) => (ParamKind::F16, half(*value, Half::F16, &place.key("F16"))?),
            Argument::BF16(value) => (ParamKind::Bf16, half(*value, Half::BF16, &place.key("BF16"))?),
            Argument::F32(value) => {
                let narrow = *value as f32;
                if !narrow.is_finite() {
                    return Err(place
                        .key("F32")
                        .error(format_args!("{value:e} is too large, expected at most {:e}", f32::MAX)));
                }
                (ParamKind::F32, FieldValue::Bits(narrow.to_bits().into()))
            }
            Argument::F64(value) => (ParamKind::F64, FieldValue::Bits(value.to_bits())),
            Argument::Bool(value) => (ParamKind::Bool, FieldValue::Bits((*value).into())),
            Argument::Struct(_) => {
                return Err(place.error("a struct within a struct, expected its fields in the outer one"));
            }
            Argument::TensorMap(_) => {
                return Err(
                    place.error("a tensor map within a struct, expected it as an argument of its own")
                );
            }
        })
    }

    fn signed(
        &mut self,
        value: &Integer,
        name: &'static str,
        max: i128,
        place: &Path<'_>,
    ) -> Result<FieldValue, Error> {
        self.integer(value, name, (-max - 1, max), place)
    }

    fn unsigned(
        &mut self,
        value: &Integer,
        name: &'static str,
        max: i128,
        place: &Path<'_>,
    ) -> Result<FieldValue, Error> {
        self.integer(value, name, (0, max), place)
    }

    fn integer(
        &mut self,
        value: &Integer,
        name: &'static str,
        (min, max): (i128, i128),
        place: &Path<'_>,
    ) -> Result<FieldValue, Error> {
        let place = &place.key(name);
        let literal = match value {
            Integer::Literal(value) => *value,
            Integer::Size(sizing) => {
                let size = self.size(sizing, place)?;
                match self.sizes.table().constant(size) {
                    Some(value) => value.into(),
                    // Every `max` fits.
                    None => {
                        return Ok(FieldValue::Size { size, max: max as u64, name });
                    }
                }
            }
        };
        if literal < min || literal > max {
            return Err(place.error(format_args!("the value is {literal}, expected {min} to {max}")));
        }
        // Two's complement, cut to the width of the parameter, which has as many values as there are from `min` to `max`.
        Ok(FieldValue::Bits((literal & (max - min)) as u64))
    }
}

fn half(value: f64, format: Half, place: &Path<'_>) -> Result<FieldValue, Error> {
    let bits = format.nearest(value).ok_or_else(|| {
        place.error(format_args!("{value:e} is too large, expected at most {:e}", format.max()))
    })?;
    Ok(FieldValue::Bits(bits.into()))
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

fn too_many_steps(place: &Path<'_>) -> Error {
    place.error(format_args!(
        "one invocation would execute more steps than allowed, expected at most {}",
        limits::EXPANDED_STEPS
    ))
}
