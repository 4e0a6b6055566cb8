//! Element types: what DLPack calls them, and what PyTorch does.

use transship::DType;
use transship::dlpack::DLDataType;

/// An element type that PyTorch has.
#[derive(Debug, Clone, Copy)]
pub struct ElementType {
    /// The name of PyTorch's `dtype`, and of numpy's where it has one.
    pub name: &'static str,
    /// The number of PyTorch's `ScalarType`.
    pub scalar_type: i32,
    pub code: u8,
    pub bits: u8,
}

const fn element(name: &'static str, scalar_type: i32, code: u8, bits: u8) -> ElementType {
    ElementType { name, scalar_type, code, bits }
}

/// All that are copied here: bytes are bytes. `tests/test_dtypes.py` compares the numbers with those of the PyTorch that is there.
pub const ALL: [ElementType; 21] = [
    element("float32", 6, 2, 32),
    element("int64", 4, 0, 64),
    element("uint8", 0, 1, 8),
    element("int32", 3, 0, 32),
    element("float64", 7, 2, 64),
    element("bool", 11, 6, 8),
    element("float16", 5, 2, 16),
    element("bfloat16", 15, 4, 16),
    element("int16", 2, 0, 16),
    element("int8", 1, 0, 8),
    element("complex32", 8, 5, 32),
    element("complex64", 9, 5, 64),
    element("complex128", 10, 5, 128),
    element("float8_e5m2", 23, 12, 8),
    element("float8_e4m3fn", 24, 10, 8),
    element("float8_e5m2fnuz", 25, 13, 8),
    element("float8_e4m3fnuz", 26, 11, 8),
    element("uint16", 27, 1, 16),
    element("uint32", 28, 1, 32),
    element("uint64", 29, 1, 64),
    element("float8_e8m0fnu", 44, 14, 8),
];

/// Where this type is in [`ALL`].
#[inline]
pub fn number_of(data_type: DLDataType) -> Option<usize> {
    let DLDataType { code, bits, lanes } = data_type;
    let number = *NUMBERS.get(usize::from(code))?.get(usize::from(bits / 8))?;
    (lanes == 1 && bits % 8 == 0 && number != NONE).then_some(usize::from(number))
}

/// Where the type of this number of PyTorch's `ScalarType` is in [`ALL`].
#[inline]
pub fn number_of_scalar_type(scalar_type: i32) -> Option<usize> {
    let number = *SCALAR_TYPES.get(usize::try_from(scalar_type).ok()?)?;
    (number != NONE).then_some(usize::from(number))
}

/// No number of [`ALL`].
const NONE: u8 = u8::MAX;

/// By the code of a type, and the bytes of an element, where it is in [`ALL`]: that is asked for each leaf.
static NUMBERS: [[u8; 17]; 15] = {
    let mut numbers = [[NONE; 17]; 15];
    let mut number = 0;
    while number < ALL.len() {
        numbers[ALL[number].code as usize][ALL[number].bits as usize / 8] = number as u8;
        number += 1;
    }
    numbers
};

/// By the number of PyTorch's `ScalarType`, where a type is in [`ALL`].
static SCALAR_TYPES: [u8; 45] = {
    let mut numbers = [NONE; 45];
    let mut number = 0;
    while number < ALL.len() {
        numbers[ALL[number].scalar_type as usize] = number as u8;
        number += 1;
    }
    numbers
};

/// Where the type of this name is in [`ALL`].
pub fn number_of_name(name: &str) -> Option<usize> {
    ALL.iter().position(|known| known.name == name)
}

/// Where an element type of the library is in [`ALL`].
pub fn number_of_library(dtype: DType) -> Option<usize> {
    number_of_name(&dtype.to_string())
}

/// An element type of [`ALL`] as the library's; `None` for those that it does not know.
pub fn of_library(element: usize) -> Option<DType> {
    ALL.get(element)?.name.parse().ok()
}

/// Where `uint8` is in [`ALL`].
pub const BYTE: usize = 2;

impl ElementType {
    pub fn bytes(self) -> usize {
        usize::from(self.bits / 8)
    }

    /// Whether PyTorch tells DLPack of elements of fewer bits as if they were these.
    pub fn may_be_narrower(self) -> bool {
        self.bits == 8 && self.code <= 1
    }

    pub fn data_type(self) -> DLDataType {
        DLDataType { code: self.code, bits: self.bits, lanes: 1 }
    }
}
