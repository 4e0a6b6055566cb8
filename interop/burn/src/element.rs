//! The types of elements, as burn and transship name them.

use burn_cubecl::Cube;
use burn_tensor::kind::Basic;
use burn_tensor::{BackendPrimitive, Bool, BoolStore, Float, Int};
use transship::DType;

use crate::primitive::Primitive;

/// The kinds of burn's tensors: [`Float`], [`Int`] and [`Bool`].
pub trait Kind: Basic + BackendPrimitive<Cube, Primitive = Primitive> + sealed::Sealed {
    /// The kind, as it is written.
    #[doc(hidden)]
    const NAME: &'static str;
    /// A type of elements that every device has.
    #[doc(hidden)]
    const INSTEAD: DType;

    /// burn's type for elements of `dtype` in tensors of this kind.
    #[doc(hidden)]
    fn in_burn(dtype: DType) -> Option<burn_tensor::DType>;
}

impl Kind for Float {
    const NAME: &'static str = "Float";
    const INSTEAD: DType = DType::F32;

    fn in_burn(dtype: DType) -> Option<burn_tensor::DType> {
        use burn_tensor::DType as Burn;
        Some(match dtype {
            DType::F64 => Burn::F64,
            DType::F32 => Burn::F32,
            DType::F16 => Burn::F16,
            DType::BF16 => Burn::BF16,
            _ => return None,
        })
    }
}

impl Kind for Int {
    const NAME: &'static str = "Int";
    const INSTEAD: DType = DType::I32;

    fn in_burn(dtype: DType) -> Option<burn_tensor::DType> {
        use burn_tensor::DType as Burn;
        Some(match dtype {
            DType::I64 => Burn::I64,
            DType::I32 => Burn::I32,
            DType::I16 => Burn::I16,
            DType::I8 => Burn::I8,
            DType::U64 => Burn::U64,
            DType::U32 => Burn::U32,
            DType::U16 => Burn::U16,
            DType::U8 => Burn::U8,
            _ => return None,
        })
    }
}

/// burn stores a `bool` as a byte or, where the device has none, as four; each is 0 or 1.
impl Kind for Bool {
    const NAME: &'static str = "Bool";
    const INSTEAD: DType = DType::U32;

    fn in_burn(dtype: DType) -> Option<burn_tensor::DType> {
        Some(burn_tensor::DType::Bool(match dtype {
            DType::Bool | DType::U8 => BoolStore::U8,
            DType::U32 => BoolStore::U32,
            _ => return None,
        }))
    }
}

/// transship's type for burn's, a `bool` being what it is stored as; `None` for quantized ones.
pub(crate) fn of_burn(dtype: burn_tensor::DType) -> Option<DType> {
    use burn_tensor::DType as Burn;
    Some(match dtype {
        Burn::F64 => DType::F64,
        Burn::F32 | Burn::Flex32 => DType::F32,
        Burn::F16 => DType::F16,
        Burn::BF16 => DType::BF16,
        Burn::I64 => DType::I64,
        Burn::I32 => DType::I32,
        Burn::I16 => DType::I16,
        Burn::I8 => DType::I8,
        Burn::U64 => DType::U64,
        Burn::U32 | Burn::Bool(BoolStore::U32) => DType::U32,
        Burn::U16 => DType::U16,
        Burn::U8 | Burn::Bool(BoolStore::U8 | BoolStore::Native) => DType::U8,
        Burn::QFloat(_) => return None,
    })
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Float {}
    impl Sealed for super::Int {}
    impl Sealed for super::Bool {}
}
