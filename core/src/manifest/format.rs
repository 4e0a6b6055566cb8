//! The words of the format: see `docs/MANIFEST.md`.

use crate::dtype::DType;

/// What every manifest begins with: its name, and its version.
pub(crate) const HEAD: [u8; 5] = *b"TSMF\x01";

/// The hash of all that comes before it ends a manifest.
pub(crate) const HASH_BYTES: usize = size_of::<u64>();

/// All paths, written out, have at most so many times as many bytes as the manifest: who reads one from a stranger knows what that costs.
pub(crate) const LARGEST_EXPANSION: usize = 256;

/// Strides follow the shape, in the byte of the type.
pub(crate) const STRIDED: u8 = 0x80;

/// The hash of bytes: XXH3 with 64 bits and the seed 0.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// The number of an element type. It never changes; 0 is none.
pub(crate) fn code(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 1,
        DType::U8 => 2,
        DType::U16 => 3,
        DType::U32 => 4,
        DType::U64 => 5,
        DType::I8 => 6,
        DType::I16 => 7,
        DType::I32 => 8,
        DType::I64 => 9,
        DType::F16 => 10,
        DType::BF16 => 11,
        DType::F32 => 12,
        DType::F64 => 13,
        DType::F8E4M3FN => 14,
        DType::F8E5M2 => 15,
        DType::Complex64 => 16,
        DType::Complex128 => 17,
        DType::F8E8M0FNU => 18,
    }
}

/// The type of this number.
pub(crate) fn dtype(number: u8) -> Option<DType> {
    DType::ALL.iter().copied().find(|dtype| code(*dtype) == number)
}

/// How many bytes of `path` are the beginning of the one `before`: whole letters of both.
pub(crate) fn shared(before: &str, path: &str) -> usize {
    let letters = before.chars().zip(path.chars()).take_while(|(one, other)| one == other);
    letters.fold(0, |bytes: usize, (letter, _)| bytes.saturating_add(letter.len_utf8()))
}
