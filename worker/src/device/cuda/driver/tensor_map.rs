//! Tensor maps: 128 bytes by which a kernel copies boxes of an array. The driver makes them; they name addresses only.

use cudarc::driver::sys::{
    self, CUtensorMapDataType_enum as DataType, CUtensorMapFloatOOBfill_enum as Fill,
    CUtensorMapInterleave_enum as Interleave, CUtensorMapL2promotion_enum as L2,
    CUtensorMapSwizzle_enum as Swizzled,
};
use pappus_blueprint::limits::MAP_RANK;
use pappus_blueprint::{BoxFill, DType, Swizzle, TensorMap};

use super::error::{CudaError, check};

/// A tensor map over an array at a device address.
pub(crate) fn encode(map: &TensorMap, address: u64) -> Result<[u64; 16], CudaError> {
    // The driver wants the innermost dimension first.
    let (mut shape, mut strides, mut box_shape) = ([1; MAP_RANK], [0; MAP_RANK], [1; MAP_RANK]);
    shape.iter_mut().zip(map.shape.iter().rev()).for_each(|(to, from)| *to = *from);
    strides.iter_mut().zip(map.strides.iter().rev()).for_each(|(to, from)| *to = *from);
    box_shape.iter_mut().zip(map.box_shape.iter().rev()).for_each(|(to, from)| *to = *from);
    let swizzle = match map.swizzle {
        Swizzle::None => Swizzled::CU_TENSOR_MAP_SWIZZLE_NONE,
        Swizzle::Bytes32 => Swizzled::CU_TENSOR_MAP_SWIZZLE_32B,
        Swizzle::Bytes64 => Swizzled::CU_TENSOR_MAP_SWIZZLE_64B,
        Swizzle::Bytes128 => Swizzled::CU_TENSOR_MAP_SWIZZLE_128B,
    };
    let fill = match map.fill {
        BoxFill::Zero => Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        BoxFill::Nan => Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
    };
    let element_strides = [1; MAP_RANK];
    // As aligned as the driver wants it.
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: the lists are as long as any rank; the map is written. The address is not used here.
    check(unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut encoded,
            data_type(map.dtype),
            map.shape.len().min(MAP_RANK) as u32,
            std::ptr::without_provenance_mut(address as usize),
            shape.as_ptr(),
            strides.as_ptr(),
            box_shape.as_ptr(),
            element_strides.as_ptr(),
            Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            L2::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            fill,
        )
    })?;
    Ok(encoded.opaque)
}

/// Copies do not look at elements: only what is read beyond an array, and reductions, depend on their type.
fn data_type(dtype: DType) -> DataType {
    match dtype {
        DType::U8 | DType::I8 | DType::F8E4M3FN | DType::F8E5M2 | DType::Bool => {
            DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8
        }
        DType::U16 | DType::I16 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        DType::U32 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        DType::I32 => DataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
        DType::U64 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT64,
        DType::I64 => DataType::CU_TENSOR_MAP_DATA_TYPE_INT64,
        DType::F16 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::Bf16 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::F32 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        DType::F64 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
    }
}
