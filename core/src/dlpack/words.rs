//! Element types and devices in DLPack's numbers, and back.

use crate::backend::MemoryKind;
use crate::device_id::DeviceId;
use crate::dlpack::abi::{DLDataType, DLDevice, device_type, type_code};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The driver of each kind of device.
const DRIVERS: [(i32, &str); 2] = [(device_type::CUDA, "cuda"), (device_type::ROCM, "hip")];

/// Where memory is.
pub(crate) enum Place {
    Host(MemoryKind),
    On(DeviceId),
}

pub(crate) fn data_type_of(dtype: DType) -> DLDataType {
    use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
    let code = match dtype {
        DType::Bool => type_code::BOOL,
        U8 | U16 | U32 | U64 => type_code::UINT,
        I8 | I16 | I32 | I64 => type_code::INT,
        DType::F16 | DType::F32 | DType::F64 => type_code::FLOAT,
        DType::BF16 => type_code::BFLOAT,
        DType::F8E4M3FN => type_code::FLOAT8_E4M3FN,
        DType::F8E5M2 => type_code::FLOAT8_E5M2,
        DType::F8E8M0FNU => type_code::FLOAT8_E8M0FNU,
        DType::Complex64 | DType::Complex128 => type_code::COMPLEX,
    };
    // 128 at most.
    DLDataType { code, bits: (dtype.size() * 8) as u8, lanes: 1 }
}

pub(crate) fn dtype_of(data_type: DLDataType) -> Result<DType> {
    let known = DType::ALL.iter().copied().find(|dtype| data_type_of(*dtype) == data_type);
    known.ok_or_else(|| {
        let DLDataType { code, bits, lanes } = data_type;
        let reason = match lanes {
            1 => "transship has no such elements; convert them first",
            _ => "elements have one lane each; say it as one dimension more",
        };
        let value = format!("code {code} of {bits} bits and {lanes} lanes");
        Error::InvalidDlpack { field: "dtype", value, reason }
    })
}

/// The kind of device and its number, if DLPack has it.
pub(crate) fn device_of(id: DeviceId) -> Result<DLDevice> {
    if id.is_host() {
        return Ok(DLDevice { device_type: device_type::CPU, device_id: 0 });
    }
    let known = DRIVERS.iter().find(|(_, driver)| *driver == id.driver());
    let named = known.zip(i32::try_from(id.ordinal()).ok());
    let what = "hand its memory out as DLPack; copy the tensor to the host first";
    let (&(device_type, _), device_id) = named.ok_or(Error::Unsupported { device: id, what })?;
    Ok(DLDevice { device_type, device_id })
}

pub(crate) fn place_of(DLDevice { device_type, device_id }: DLDevice) -> Result<Place> {
    match device_type {
        device_type::CPU => return Ok(Place::Host(MemoryKind::Pageable)),
        device_type::CUDA_HOST | device_type::ROCM_HOST => return Ok(Place::Host(MemoryKind::Pinned)),
        _ => {}
    }
    let invalid =
        |field, value: i32, reason| Error::InvalidDlpack { field, value: value.to_string(), reason };
    let &(_, driver) = DRIVERS.iter().find(|(known, _)| *known == device_type).ok_or_else(|| {
        let reason = "memory of the host (1; pinned: 3, 11), of CUDA (2) and of ROCm (10) can be taken; copy the tensor there first";
        invalid("device_type", device_type, reason)
    })?;
    let ordinal = usize::try_from(device_id)
        .map_err(|_| invalid("device_id", device_id, "devices are counted from 0"))?;
    Ok(Place::On(DeviceId::new(driver, ordinal)?))
}
