//! Tensor maps of a blueprint, resolved: what of them needs no sizes is checked, equal ones become one.

use super::Resolver;
use crate::blueprint::{FieldValue, TensorMap};
use crate::error::{Error, Path};
use crate::format;
use crate::limits;
use crate::size::SizeId;
use crate::types::BoxFill;

impl Resolver<'_> {
    pub(super) fn tensor_map(
        &mut self,
        written: &format::TensorMap,
        place: &Path<'_>,
    ) -> Result<FieldValue, Error> {
        let rank = written.shape.len();
        let check = |key: &str, given: usize, wanted: usize| match given == wanted {
            true => Ok(()),
            false => Err(place.key(key).error(format_args!("{given} entries, expected {wanted}"))),
        };
        if rank == 0 || rank > limits::MAP_RANK {
            let max = limits::MAP_RANK;
            return Err(place.key("shape").error(format_args!("{rank} dimensions, expected 1 to {max}")));
        }
        check("strides", written.strides.len(), rank - 1)?;
        check("box", written.r#box.len(), rank)?;
        for (at, &side) in written.r#box.iter().enumerate() {
            if side == 0 || side > limits::MAP_BOX {
                let max = limits::MAP_BOX;
                return Err(place
                    .key("box")
                    .index(at)
                    .error(format_args!("the value is {side}, expected 1 to {max}")));
            }
        }
        let row = u64::from(written.r#box[rank - 1]) * written.dtype.bytes();
        if !row.is_multiple_of(limits::MAP_ALIGN) {
            let align = limits::MAP_ALIGN;
            return Err(place.key("box").error(format_args!(
                "{row} bytes along the last dimension, expected a multiple of {align}"
            )));
        }
        if let Some(span) = written.swizzle.span().filter(|span| row > *span) {
            return Err(place.key("box").error(format_args!(
                "{row} bytes along the last dimension, expected at most the {span} of its swizzle"
            )));
        }
        if written.fill == BoxFill::Nan && !written.dtype.is_float() {
            let dtype = written.dtype.name();
            return Err(place.key("fill").error(format_args!("{dtype} has no NaN, expected \"zero\"")));
        }
        let map = TensorMap {
            buffer: self.buffer(&written.buffer, &place.key("buffer"))?,
            offset: self.size_or_zero(&written.offset, &place.key("offset"))?,
            dtype: written.dtype,
            shape: self.sizes_of(&written.shape, &place.key("shape"))?,
            strides: self.sizes_of(&written.strides, &place.key("strides"))?,
            box_shape: written.r#box.as_slice().into(),
            swizzle: written.swizzle,
            fill: written.fill,
        };
        let next = self.tensor_maps.len() as u32;
        let at = *self.tensor_map_ids.entry(map).or_insert_with_key(|map| {
            self.tensor_maps.push(map.clone());
            next
        });
        Ok(FieldValue::TensorMap(at))
    }

    fn sizes_of(&mut self, sizes: &[format::Sizing], place: &Path<'_>) -> Result<Box<[SizeId]>, Error> {
        sizes.iter().enumerate().map(|(at, size)| self.size(size, &place.index(at))).collect()
    }
}
