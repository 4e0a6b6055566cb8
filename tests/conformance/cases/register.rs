//! Memory of the program that is page-locked where it lies.

use std::sync::{Arc, Weak};

use libtest_mimic::Failed;
use transship::{DType, Error, MemoryKind, Refused, Registered, Tensor, start_copy, start_copy_into};

use crate::backends::Need::{Pinned, SecondDevice};
use crate::bed::{Bed, eventually};
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(large_tensors_go_up_as_they_lie).needs(Pinned),
        case!(read_only_memory).needs(Pinned),
        case!(many_small_tensors_of_one_arena),
        case!(a_second_device_reads_it).needs(Pinned).needs(SecondDevice),
        case!(down_into_a_vector).needs(Pinned),
        case!(small_results_into_a_vector),
        case!(columns_into_a_vector).needs(Pinned),
        case!(a_vector_comes_back),
        case!(registered_twice).needs(Pinned),
        case!(owners_go_behind_dropped_copies),
        case!(it_outlives_its_device),
        case!(refused_memory_comes_back),
    ]
}

const MIB: usize = 1 << 20;
/// A page at the least, on any system.
const PAGE: usize = 64 << 10;

/// Lends bytes that share no page with others.
struct Pages(Arc<Vec<u8>>);

impl Pages {
    fn new(bytes: &[u8]) -> Self {
        let mut memory = vec![0; bytes.len() + 2 * PAGE];
        let lead = lead(&memory);
        memory[lead..lead + bytes.len()].copy_from_slice(bytes);
        Self(Arc::new(memory))
    }

    fn watch(&self) -> Weak<Vec<u8>> {
        Arc::downgrade(&self.0)
    }
}

fn lead(memory: &[u8]) -> usize {
    memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr()
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        &self.0[lead(&self.0)..self.0.len() - 2 * PAGE + lead(&self.0)]
    }
}

/// Registers what can be: where a device's API reaches no memory of the program, it stays what it is.
fn registered(bed: &Bed, owner: Pages) -> Result<Registered, Failed> {
    match bed.device.register(owner) {
        Ok(memory) => Ok(memory),
        Err(refused) => Ok(bed.host.register(unsupported(refused)?)?),
    }
}

fn registered_vec(bed: &Bed, vec: Vec<f32>, shape: &[usize]) -> Result<Tensor, Failed> {
    match bed.device.register_vec(vec, shape) {
        Ok(tensor) => Ok(tensor),
        Err(refused) => Ok(Tensor::from_vec(unsupported(refused)?, shape)?),
    }
}

fn unsupported<V>(refused: Refused<V>) -> Result<V, Failed> {
    match refused.into_parts() {
        (Error::Unsupported { .. }, value) => Ok(value),
        (error, _) => Err(error.into()),
    }
}

/// A vector whose last page is its own: other cases register vectors as well, and a page is registered once.
fn zeros(count: usize) -> Vec<f32> {
    let mut vec = Vec::with_capacity(count + PAGE / size_of::<f32>());
    vec.resize(count, 0.0);
    vec
}

fn whole(memory: &Registered) -> Result<Tensor, Failed> {
    Ok(memory.tensor(DType::U8, &[memory.nbytes()], 0)?)
}

fn large_tensors_go_up_as_they_lie(bed: &Bed) -> Result<(), Failed> {
    let sent = bed.bytes(3 * MIB);
    let memory = bed.device.register(Pages::new(&sent.to_bytes()?))?;
    assert_eq!(memory.memory_kind(), MemoryKind::Pinned);
    let tensor = memory.tensor(DType::F32, &[3, MIB / 4], 0)?;
    let row = tensor.narrow(0, 1, 1)?;
    let expected = [Contents::of(&tensor), Contents::of(&row)];
    let ((tensor, row), report) = bed.copy((tensor, row), &bed.device, bed.options())?;
    assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes), (0, 0), "{report}");
    assert!(!report.background, "{report}");
    assert_same(&expected, &[Contents::of(&bed.down(tensor)?), Contents::of(&bed.down(row)?)]);
    Ok(())
}

/// Constants of the program are mapped read-only.
///
/// Mutant: all memory is registered to be written.
fn read_only_memory(bed: &Bed) -> Result<(), Failed> {
    struct Constants;
    impl AsRef<[u8]> for Constants {
        fn as_ref(&self) -> &[u8] {
            static CONSTANTS: [u8; 4 * PAGE + MIB] = {
                let mut bytes = [0; 4 * PAGE + MIB];
                let mut index = 0;
                while index < bytes.len() {
                    bytes[index] = (index / 1000) as u8;
                    index += 1000;
                }
                bytes
            };
            let start = lead(&CONSTANTS);
            &CONSTANTS[start..start + MIB]
        }
    }
    // Each case registers them for a while: with the others' drivers, and with the same one in turn.
    let memory = match bed.device.register(Constants) {
        Ok(memory) => memory,
        // The runtime has no flag for it.
        Err(refused) if bed.device.id().driver() == "hip" => {
            assert!(matches!(refused.error(), Error::NotLockable { .. }), "{refused}");
            return Ok(());
        }
        Err(refused) => return Err(refused.into()),
    };
    let expected = Contents::of(&whole(&memory)?);
    let (there, report) = bed.copy(whole(&memory)?, &bed.device, bed.options())?;
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    assert_same(&[expected], &[Contents::of(&bed.down(there)?)]);
    Ok(())
}

fn many_small_tensors_of_one_arena(bed: &Bed) -> Result<(), Failed> {
    let sent = bed.bytes(528 * 288);
    let memory = registered(bed, Pages::new(&sent.to_bytes()?))?;
    let leaf = |index: usize| memory.tensor(DType::I64, &[36], index * 288);
    let sent = (0..528).map(leaf).collect::<Result<Vec<_>, _>>()?;
    for pack in [true, false] {
        bed.round_trip(sent.clone(), bed.options().packing(pack))?;
    }
    Ok(())
}

/// Mutant: memory is registered for one device.
fn a_second_device_reads_it(bed: &Bed) -> Result<(), Failed> {
    let sent = bed.bytes(MIB);
    let memory = bed.device.register(Pages::new(&sent.to_bytes()?))?;
    let (there, report) = bed.copy(whole(&memory)?, bed.second()?, bed.options())?;
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    assert_same(&[Contents::of(&sent)], &[Contents::of(&bed.down(there)?)]);
    let held = bed.device.register_vec(zeros(MIB), &[MIB])?;
    let (there, report) = bed.copy(held, bed.second()?, bed.options())?;
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    drop(there);
    Ok(())
}

fn down_into_a_vector(bed: &Bed) -> Result<(), Failed> {
    let sent = bed.tensor(DType::F32, &[2, MIB / 4]);
    let expected = Contents::of(&sent);
    let there = bed.up(sent)?;
    let held = bed.device.register_vec(zeros(MIB / 2), &[2, MIB / 4])?;
    assert_eq!(held.memory_kind()?, MemoryKind::Pinned);
    let (held, report) = start_copy_into(there, held, bed.options())?.wait_with_report()?;
    let is_staged = bed.device.limits().copy_granularity.bytes() > 1;
    assert_eq!(report.pinned_staging_bytes > 0, is_staged, "{report}");
    assert_same(&[expected], &[Contents::of(&held)]);
    Ok(())
}

fn small_results_into_a_vector(bed: &Bed) -> Result<(), Failed> {
    let sent: Vec<_> = (0..100).map(|_| bed.tensor(DType::F32, &[64])).collect();
    let expected: Vec<_> = sent.iter().map(Contents::of).collect();
    let there = bed.up(sent)?;
    let held = registered_vec(bed, zeros(6400), &[6400])?;
    let parts = (0..100).map(|index| held.narrow(0, index * 64, 64)).collect::<Result<Vec<_>, _>>()?;
    drop(held);
    let parts = start_copy_into(there, parts, bed.options())?.wait()?;
    assert_same(&expected, &parts.iter().map(Contents::of).collect::<Vec<_>>());
    Ok(())
}

/// By a kernel, where there is one.
fn columns_into_a_vector(bed: &Bed) -> Result<(), Failed> {
    if bed.device.limits().gather_strided.is_none() {
        return Ok(());
    }
    let sent = bed.tensor(DType::F32, &[1000, 64]);
    let expected = Contents::of(&sent.narrow(1, 5, 32)?.contiguous()?);
    let columns = bed.up(sent)?.narrow(1, 5, 32)?;
    let held = bed.device.register_vec(zeros(32_000), &[1000, 32])?;
    let (held, report) = start_copy_into(columns, held, bed.options())?.wait_with_report()?;
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    assert_same(&[expected], &[Contents::of(&held)]);
    Ok(())
}

fn a_vector_comes_back(bed: &Bed) -> Result<(), Failed> {
    let mut vec = zeros(300_000);
    vec.iter_mut().enumerate().for_each(|(index, value)| *value = index as f32);
    let (start, expected) = (vec.as_ptr(), vec.clone());
    let sent = registered_vec(bed, vec, &[300_000])?;
    let twin = sent.clone();
    let held = bed.hold();
    let handle = start_copy(sent.clone(), &bed.device, bed.options())?;
    let refused = twin.into_vec::<f32>().expect_err("another tensor shares the memory");
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    drop(refused);
    drop(held);
    let there = handle.wait()?;
    let back = sent.into_vec::<f32>()?;
    assert_eq!(back.as_ptr(), start);
    assert!(back == expected && bed.down(there)?.to_vec::<f32>()? == expected);
    Ok(())
}

fn registered_twice(bed: &Bed) -> Result<(), Failed> {
    let pages = Pages::new(&vec![1; 2 * MIB]);
    let again = || Pages(pages.0.clone());
    let memory = bed.device.register(again())?;
    let refused = bed.device.register(again()).err().ok_or("the pages are registered already")?;
    assert!(matches!(refused.error(), Error::NotLockable { .. }), "{refused}");
    drop(memory);
    eventually("they can be registered again", || bed.device.register(again()).is_ok())
}

fn owners_go_behind_dropped_copies(bed: &Bed) -> Result<(), Failed> {
    let pages = Pages::new(&vec![7; 2 * MIB]);
    let watch = pages.watch();
    let memory = registered(bed, pages)?;
    let held = bed.hold();
    drop(start_copy(whole(&memory)?, &bed.device, bed.options())?);
    drop(memory);
    drop(held);
    bed.still_works()?;
    eventually("the owner goes", || watch.upgrade().is_none())
}

fn it_outlives_its_device(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    let pages = Pages::new(&vec![7; MIB]);
    let watch = pages.watch();
    let memory = match device.register(pages) {
        Ok(memory) => memory,
        Err(refused) => bed.host.register(unsupported(refused)?)?,
    };
    drop(device);
    assert!(whole(&memory)?.to_bytes()?.iter().all(|byte| *byte == 7));
    bed.round_trip(whole(&memory)?, bed.options())?;
    drop(memory);
    eventually("the owner goes", || watch.upgrade().is_none())
}

fn refused_memory_comes_back(bed: &Bed) -> Result<(), Failed> {
    let refused = bed.device.register_vec(vec![3_u16; 5], &[4]).expect_err("too many elements");
    assert!(matches!(refused.error(), Error::ShapeMismatch { .. }), "{refused}");
    assert_eq!(refused.into_value(), [3; 5]);
    let nothing = bed.device.register_vec(Vec::<f32>::new(), &[0, 3])?;
    bed.round_trip(nothing, bed.options())?;
    if bed.device.limits().mapped_staging {
        let refused = bed.device.register(Pages::new(&[1, 2, 3])).expect_err("it reads its own buffers only");
        assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused}");
        assert_eq!(refused.into_value().as_ref(), [1, 2, 3]);
    }
    Ok(())
}
