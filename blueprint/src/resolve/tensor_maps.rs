//! Tensor maps of a blueprint, resolved: what of them needs no sizes is checked, equal ones become one.

use super::Resolver;
use crate::blueprint::{FieldValue, TensorMap};
use crate::error::Path;
use crate::format;
use crate::limits;
use crate::size::SizeId;
use crate::types::BoxFill;

impl Resolver<'_> {
    pub(super) fn tensor_map(&mut self, written: &format::TensorMap, place: &Path<'_>) -> Option<FieldValue> {
        let swizzle = written.swizzle.unwrap_or_default();
        let fill = written.fill.unwrap_or_default();
        if let Some((key, message)) = misfit(written) {
            return self.wrong(&place.key(key), message);
        }
        for (at, &side) in written.box_shape.iter().enumerate() {
            if side == 0 || side > limits::MAP_BOX {
                let max = limits::MAP_BOX;
                let place = &place.key("box");
                return self
                    .wrong(&place.index(at), format_args!("the value is {side}, expected 1 to {max}"));
            }
        }
        let row = written.box_shape.last().map_or(0, |side| u64::from(*side) * written.dtype.bytes());
        if !row.is_multiple_of(limits::MAP_ALIGN) {
            let align = limits::MAP_ALIGN;
            let message =
                format_args!("{row} bytes along the last dimension, expected a multiple of {align}");
            return self.wrong(&place.key("box"), message);
        }
        if let Some(span) = swizzle.span().filter(|span| row > *span) {
            let message = format_args!(
                "{row} bytes along the last dimension, expected at most the {span} of its swizzle"
            );
            return self.wrong(&place.key("box"), message);
        }
        if fill == BoxFill::Nan && !written.dtype.is_float() {
            let dtype = written.dtype.name();
            return self.wrong(&place.key("fill"), format_args!("{dtype} has no NaN, expected \"zero\""));
        }
        let buffer = self.buffer(&written.buffer, &place.key("buffer"));
        let offset = self.size_or(0, &written.offset, &place.key("offset"));
        let shape = self.sizes_of(&written.shape, &place.key("shape"));
        let strides = self.sizes_of(&written.strides, &place.key("strides"));
        let map = TensorMap {
            buffer: buffer?,
            offset: offset?,
            dtype: written.dtype,
            shape: shape?,
            strides: strides?,
            box_shape: written.box_shape.as_slice().into(),
            swizzle,
            fill,
        };
        let next = self.tensor_maps.len() as u32;
        let at = *self.tensor_map_ids.entry(map).or_insert_with_key(|map| {
            self.tensor_maps.push(map.clone());
            next
        });
        Some(FieldValue::TensorMap(at))
    }

    fn sizes_of(&mut self, sizes: &[format::Sizing], place: &Path<'_>) -> Option<Box<[SizeId]>> {
        let sizes = sizes.iter().enumerate().map(|(at, size)| self.size(size, &place.index(at)));
        sizes.collect::<Vec<_>>().into_iter().collect()
    }
}

/// Which key of a tensor map does not have as many entries as the others ask for.
fn misfit(written: &format::TensorMap) -> Option<(&'static str, String)> {
    let rank = written.shape.len();
    if rank == 0 || rank > limits::MAP_RANK {
        return Some(("shape", format!("{rank} dimensions, expected 1 to {}", limits::MAP_RANK)));
    }
    let counts = [("strides", written.strides.len(), rank - 1), ("box", written.box_shape.len(), rank)];
    let (key, given, wanted) = counts.into_iter().find(|(_, given, wanted)| given != wanted)?;
    Some((key, format!("{given} entries, expected {wanted}")))
}
