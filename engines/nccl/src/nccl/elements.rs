//! How elements are called in NCCL.

use std::ffi::c_int;

use transship::DType;

use crate::reduce_op::ReduceOp;

/// Elements of a type in those of NCCL.
pub(crate) struct NcclElements {
    /// `ncclDataType_t`.
    pub(crate) dtype: c_int,
    /// How many of those one element is.
    pub(crate) each: usize,
}

/// For moving them.
pub(crate) fn bytes_of(dtype: DType) -> NcclElements {
    NcclElements { dtype: 1, each: dtype.size() }
}

/// For combining them; `None` where NCCL cannot.
pub(crate) fn numbers_of(dtype: DType, op: ReduceOp) -> Option<NcclElements> {
    let (number, each) = match dtype {
        DType::I8 => (0, 1),
        DType::U8 => (1, 1),
        DType::I32 => (2, 1),
        DType::U32 => (3, 1),
        DType::I64 => (4, 1),
        DType::U64 => (5, 1),
        DType::F16 => (6, 1),
        DType::F32 => (7, 1),
        DType::F64 => (8, 1),
        DType::BF16 => (9, 1),
        DType::Complex64 if op == ReduceOp::Sum => (7, 2),
        DType::Complex128 if op == ReduceOp::Sum => (8, 2),
        _ => return None,
    };
    Some(NcclElements { dtype: number, each })
}

/// `ncclRedOp_t`.
pub(crate) fn number_of(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}
