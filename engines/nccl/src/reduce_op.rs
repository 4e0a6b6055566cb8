//! How elements of ranks become one.

use transship::DType;

/// How the elements of all ranks become one.
///
/// Integers wrap. Of numbers of which one is NaN, [`Min`](Self::Min) and [`Max`](Self::Max) give any one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// The smallest one.
    Min,
    /// The largest one.
    Max,
}

impl ReduceOp {
    /// Whether elements of this type can be combined on the host.
    pub(crate) fn takes(self, dtype: DType) -> bool {
        match dtype {
            DType::Complex64 | DType::Complex128 => self == Self::Sum,
            DType::Bool | DType::F8E4M3FN | DType::F8E5M2 | DType::F8E8M0FNU => false,
            _ => true,
        }
    }
}
