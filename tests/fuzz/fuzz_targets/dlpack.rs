//! Structs of DLPack with any numbers: nothing panics, what is refused stays untouched, what is taken reads the elements that it should,
//! and each is let go of once.
#![no_main]

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use transship_core::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, Managed,
};
use transship_core::{DType, Device, Error, Tensor};

/// The memory of a tensor, each byte of which has its own number.
const BYTES: usize = 1 << 10;
/// Above it elements are not read one by one.
const MOST_READ: usize = 1 << 10;

#[derive(Debug, Arbitrary)]
struct Case {
    versioned: bool,
    major: Small,
    minor: u32,
    flags: u64,
    device_type: Small,
    device_id: Small,
    dtype: Elements,
    shape: Option<Vec<Size>>,
    strides: Option<Vec<Size>>,
    fewer: bool,
    offset: Offset,
    null: bool,
    to_write: bool,
    goes_out: bool,
}

/// Mostly one that there is.
#[derive(Debug, Clone, Copy)]
struct Small(i32);

/// Mostly those of a type that there is.
#[derive(Debug, Clone, Copy)]
struct Elements(DLDataType);

/// A small number, or one at an edge.
#[derive(Debug, Clone, Copy)]
struct Size(i64);

#[derive(Debug, Clone, Copy)]
struct Offset(u64);

/// What a struct is the only owner of.
struct Theirs {
    memory: Vec<u64>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: *mut usize,
}

fuzz_target!(|case: Case| {
    let mut deleted = 0;
    let theirs = Box::into_raw(Box::new(theirs(&case, &raw mut deleted)));
    // SAFETY: just made.
    let tensor = described(&case, unsafe { &mut *theirs });
    if case.versioned {
        let version = DLPackVersion { major: case.major.0 as u32, minor: case.minor };
        let managed = DLManagedTensorVersioned {
            version,
            manager_ctx: theirs.cast(),
            deleter: Some(delete_versioned),
            flags: case.flags,
            dl_tensor: tensor,
        };
        run(&case, Box::new(managed), &tensor, &raw mut deleted);
    } else {
        let (manager_ctx, deleter) = (theirs.cast::<c_void>(), Some(delete as _));
        run(
            &case,
            Box::new(DLManagedTensor { dl_tensor: tensor, manager_ctx, deleter }),
            &tensor,
            &raw mut deleted,
        );
    }
});

fn theirs(case: &Case, deleted: *mut usize) -> Theirs {
    let numbers = |list: &Option<Vec<Size>>| list.iter().flatten().map(|size| size.0).collect::<Vec<_>>();
    let shape = numbers(&case.shape);
    let mut strides = numbers(&case.strides);
    strides.resize(shape.len(), 1);
    let memory =
        (0..BYTES / 8).map(|word| u64::from_ne_bytes(std::array::from_fn(|byte| (word * 8 + byte) as u8)));
    Theirs { memory: memory.collect(), shape, strides, deleted }
}

fn described(case: &Case, theirs: &mut Theirs) -> DLTensor {
    let list = |is_there: bool, list: &mut Vec<i64>| if is_there { list.as_mut_ptr() } else { null_mut() };
    let fewer = if case.fewer { -1 } else { 0 };
    let mut tensor = DLTensor {
        data: if case.null { null_mut() } else { theirs.memory.as_mut_ptr().cast() },
        device: DLDevice { device_type: case.device_type.0, device_id: case.device_id.0 },
        ndim: theirs.shape.len() as i32 + fewer,
        dtype: case.dtype.0,
        shape: list(case.shape.is_some(), &mut theirs.shape),
        strides: list(case.strides.is_some(), &mut theirs.strides),
        byte_offset: case.offset.0,
    };
    // The promise of whoever makes a struct: what it takes for elements is memory.
    // What is larger than any memory is not promised.
    if reach(&tensor).is_some_and(|end| end > BYTES as u128 && end < (1 << 63) + 4096) {
        tensor.byte_offset = 0;
        tensor.ndim = 0;
    }
    tensor
}

/// Where the elements end behind `data`, by arithmetic that cannot overflow; `None` where they are none, or one of them is in front of it.
fn reach(tensor: &DLTensor) -> Option<u128> {
    let (shape, strides) = (numbers(tensor.shape, tensor.ndim)?, numbers(tensor.strides, tensor.ndim));
    if shape.iter().any(|size| *size <= 0) {
        return None;
    }
    let strides = strides.unwrap_or_else(|| row_major(&shape));
    let mut last = 0_u128;
    for (size, stride) in shape.iter().zip(&strides) {
        let steps = (*size as u128) - 1;
        let stride = if steps == 0 { 0 } else { u128::try_from(*stride).ok()? };
        last = last.checked_add(steps.checked_mul(stride)?)?;
    }
    let size = u128::from(tensor.dtype.bits).div_ceil(8);
    Some(last.saturating_add(1).saturating_mul(size).saturating_add(tensor.byte_offset.into()))
}

fn numbers(start: *const i64, ndim: i32) -> Option<Vec<i128>> {
    let count = usize::try_from(ndim).ok()?;
    if count == 0 {
        return Some(Vec::new());
    }
    // SAFETY: there are so many unless it is null.
    (!start.is_null()).then(|| {
        unsafe { std::slice::from_raw_parts(start, count) }.iter().map(|number| (*number).into()).collect()
    })
}

fn row_major(shape: &[i128]) -> Vec<i128> {
    let mut strides = vec![1_i128; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim]);
    }
    strides
}

fn run<M: Managed>(case: &Case, managed: Box<M>, said: &DLTensor, deleted: *mut usize)
where
    Box<M>: Deletes,
{
    let managed = NonNull::from(Box::leak(managed));
    // SAFETY: all that it points to is there, and its elements are memory of its own (`described`).
    let taken = unsafe {
        if case.to_write {
            Tensor::from_dlpack_mut(managed, None)
        } else {
            Tensor::from_dlpack(managed, None)
        }
    };
    // SAFETY: a local of the caller.
    let count = || unsafe { *deleted };
    assert_eq!(count(), 0);
    match taken {
        Ok(tensor) => {
            check(&tensor, said);
            match case.goes_out {
                true => again(tensor, case.to_write),
                false => drop(tensor),
            }
        }
        Err(error) => {
            assert!(!matches!(error, Error::Panicked { .. }));
            // SAFETY: it was refused, so it is still ours.
            unsafe { <Box<M> as Deletes>::delete(managed.as_ptr().cast()) };
        }
    }
    assert_eq!(count(), 1);
}

/// What was taken is what was said.
fn check(tensor: &Tensor, said: &DLTensor) {
    let shape = numbers(said.shape, said.ndim).unwrap();
    assert_eq!(tensor.shape().iter().map(|size| *size as i128).collect::<Vec<_>>(), shape);
    assert_eq!(tensor.device_id().unwrap(), Device::host().id());
    if tensor.numel() == 0 {
        assert_eq!(tensor.to_bytes().unwrap(), []);
        return;
    }
    assert!(reach(said).unwrap() <= BYTES as u128, "{tensor:?} is not within its memory");
    if tensor.numel() > MOST_READ {
        return;
    }
    let strides = numbers(said.strides, said.ndim).unwrap_or_else(|| row_major(&shape));
    let size = tensor.dtype().size();
    let mut places = vec![i128::from(said.byte_offset)];
    for (count, stride) in shape.iter().zip(&strides) {
        let along = |place: i128| (0..*count).map(move |index| place + index * stride * size as i128);
        places = places.into_iter().flat_map(along).collect();
    }
    let expected = places.iter().flat_map(|place| (0..size).map(move |byte| (*place as usize + byte) as u8));
    assert_eq!(tensor.to_bytes().unwrap(), expected.collect::<Vec<_>>());
}

/// Out and in once more.
fn again(tensor: Tensor, writable: bool) {
    let (layout, bytes) =
        (tensor.layout().clone(), (tensor.numel() <= MOST_READ).then(|| tensor.to_bytes().unwrap()));
    let out = tensor.into_dlpack(None).unwrap();
    // SAFETY: our own struct.
    let flags = unsafe { (*out.as_ptr()).flags };
    assert_eq!(flags, u64::from(!writable));
    // SAFETY: our own struct, whose memory nobody writes.
    let back = unsafe { Tensor::from_dlpack(out, None) }.unwrap();
    assert_eq!(*back.layout(), layout);
    assert!(bytes.is_none_or(|bytes| back.to_bytes().unwrap() == bytes));
}

trait Deletes {
    /// # Safety
    ///
    /// As the deleter of the struct.
    unsafe fn delete(managed: *mut c_void);
}

impl Deletes for Box<DLManagedTensor> {
    unsafe fn delete(managed: *mut c_void) {
        // SAFETY: passed on.
        unsafe { delete(managed.cast()) }
    }
}

impl Deletes for Box<DLManagedTensorVersioned> {
    unsafe fn delete(managed: *mut c_void) {
        // SAFETY: passed on.
        unsafe { delete_versioned(managed.cast()) }
    }
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensor) {
    // SAFETY: made by the target, and called once, or AddressSanitizer says so.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    unsafe { count(managed.manager_ctx) }
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: as above.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    unsafe { count(managed.manager_ctx) }
}

unsafe fn count(theirs: *mut c_void) {
    // SAFETY: as above.
    let theirs = unsafe { Box::from_raw(theirs.cast::<Theirs>()) };
    // SAFETY: it lives longer than the tensor.
    unsafe { *theirs.deleted += 1 }
}

impl<'a> Arbitrary<'a> for Small {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self(match bytes.int_in_range(0..=15)? {
            0 => bytes.arbitrary()?,
            1 => i32::from(bytes.arbitrary::<i8>()?),
            2 => 3,
            _ => 1,
        }))
    }
}

impl<'a> Arbitrary<'a> for Elements {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let (code, bits, lanes) = match bytes.int_in_range(0..=7)? {
            0 => (bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
            1 => (bytes.int_in_range(0..=20)?, 8, 1),
            _ => {
                let known = [
                    (0, 8),
                    (0, 32),
                    (1, 16),
                    (1, 64),
                    (2, 16),
                    (2, 32),
                    (4, 16),
                    (5, 64),
                    (5, 128),
                    (10, 8),
                    (12, 8),
                    (14, 8),
                ];
                let (code, bits) = *bytes.choose(&known)?;
                (code, bits, 1)
            }
        };
        Ok(Self(DLDataType { code, bits, lanes }))
    }
}

impl<'a> Arbitrary<'a> for Size {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let near = i64::from(bytes.arbitrary::<u8>()?);
        Ok(Self(match bytes.int_in_range(0..=15)? {
            0 => i64::MAX - near,
            1 => i64::MIN + near,
            2 => i64::MAX / 8 + 1 - near,
            3 => -(near % 4),
            4 => near,
            5 => bytes.arbitrary()?,
            _ => near % 6,
        }))
    }
}

impl<'a> Arbitrary<'a> for Offset {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let near = u64::from(bytes.arbitrary::<u8>()?);
        Ok(Self(match bytes.int_in_range(0..=7)? {
            0 => u64::MAX - near,
            1 => near,
            2 => near * 8,
            _ => 0,
        }))
    }
}

const _: () = assert!(DType::ALL.len() == 18, "a type is new: `Elements` should have it");
