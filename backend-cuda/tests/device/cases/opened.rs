//! Memory of the program on one device that kernels of another one reach: it was opened to that.

use cudarc::driver::sys;
use transship_core::backend::{MemoryKind, RawMemory};
use transship_core::{
    CopyOptions, CopyReport, DType, Device, Layout, SharedOwner, Tensor, start_copy, start_copy_into,
};

use super::memory::lent;
use crate::bed::{self, bytes, down};
use crate::driver::{Current, RawStream, allocate, check, free};
use crate::suite::Outcome;

const TENSORS: usize = 64;
const BYTES: usize = 3000;

/// What `cuMemAlloc` has given is open to whom its context is. Mutants: nothing of the program's is; the answer of one device serves for all.
pub(crate) fn plain_memory_of_the_program_is_read_by_kernels_of_a_peer() -> Outcome {
    let devices = [bed::warm_device(0), bed::warm_device(1)];
    for [from, to] in [[&devices[0], &devices[1]], [&devices[1], &devices[0]]] {
        if !to.backend().reaches(&**from.backend()) {
            println!("{} does not reach {}", to.id(), from.id());
            continue;
        }
        let freed = Default::default();
        let batch = (0..TENSORS).map(|number| lent(from, &content(number), &freed));
        let report = copy(batch.collect::<Result<_, _>>()?, to)?;
        assert!(report.gathered >= TENSORS as u64, "{report}");
        let contents: Vec<Vec<u8>> = (0..TENSORS).map(content).collect();
        let addresses = contents.iter().map(|content| allocate(from, content)).collect();
        let report = copy_list(from, addresses, to)?;
        assert_eq!((report.gathered, report.copies), (TENSORS as u64, 1), "{report}");

        // The memory that is filled is the program's as well: no kernel but that of its own device may write there.
        let matrix = lent(from, &content(1), &freed)?.reshape(&[60, 50])?;
        let columns = matrix.narrow(1, 7, 20)?;
        let address = allocate(to, &[0; 1200]);
        let memory = RawMemory::new(address, 1200, MemoryKind::Device);
        let owner = Box::new(Freed(to.clone(), address));
        // SAFETY: the memory is valid until the owner goes, and nobody else knows of it.
        let held = unsafe { Tensor::from_raw_mut(memory, owner, &[60, 20], DType::U8, to)? };
        let filled = start_copy_into(columns.clone(), held, CopyOptions::default())?.wait()?;
        assert_eq!(bytes(down(filled)), bytes(down(columns)));
    }
    Ok(())
}

/// Mutants: pools that nobody has opened are taken for open; a pool is taken for what it was when it was first asked about.
pub(crate) fn memory_of_a_pool_is_read_by_kernels_once_that_is_open() -> Outcome {
    let (from, to) = (bed::warm_device(0), bed::warm_device(1));
    let pool = Pool::create(&from);
    assert_eq!(copy(pool.tensors()?, &to)?.gathered, 0);
    if !to.backend().reaches(&**from.backend()) {
        println!("{} does not reach {}", to.id(), from.id());
        return Ok(());
    }
    pool.open_to(1);
    let report = copy(pool.tensors()?, &to)?;
    assert!(report.gathered >= TENSORS as u64, "{report}");
    Ok(())
}

/// One range goes through memory of several pools. Mutant: the driver is asked about the first of them alone.
pub(crate) fn memory_of_which_some_is_open_is_read_by_no_kernel() -> Outcome {
    let (from, to) = (bed::warm_device(0), bed::warm_device(1));
    let pool = Pool::create(&from);
    let contents: Vec<Vec<u8>> = (0..TENSORS).map(content).collect();
    let allocate_any = |(number, content): (usize, &Vec<u8>)| match number % 2 {
        0 => allocate(&from, content),
        _ => pool.allocate(content),
    };
    let report = copy_list(&from, contents.iter().enumerate().map(allocate_any).collect(), &to)?;
    assert_eq!(report.gathered, 0, "{report}");
    let addresses: Vec<u64> = contents.iter().enumerate().map(allocate_any).collect();
    let owner: Vec<_> = addresses.iter().map(|address| Freed(from.clone(), *address)).collect();
    let owner = SharedOwner::new(owner, &from);
    let layout = Layout::contiguous(DType::U8, &[BYTES])?;
    let pieces = addresses.iter().map(|&address| {
        let memory = RawMemory::new(address, BYTES, MemoryKind::Device);
        (address..address + BYTES as u64, memory, layout.clone())
    });
    // SAFETY: all are valid until the owner goes, of this device, and nobody else knows of them.
    let tensors = unsafe { owner.tensors_of_allocations(pieces)? };
    drop(owner);
    assert_eq!(copy(tensors, &to)?.gathered, 0);
    Ok(())
}

fn content(number: usize) -> Vec<u8> {
    (0..BYTES).map(|index| ((index + number * 7) % 251) as u8).collect()
}

/// Copies tensors of [`content`] to another device, and compares. Kernels read them if it was said that they do. Mutant: it is said of all.
fn copy(tensors: Vec<Tensor>, to: &Device) -> Result<CopyReport, Box<dyn std::error::Error>> {
    let is_read = tensors.first().map(|tensor| tensor.is_read_by_kernels_of(to)).transpose()?;
    let (there, report) = start_copy(tensors, to, CopyOptions::default())?.wait_with_report()?;
    for (number, tensor) in there.into_iter().enumerate() {
        assert_eq!(bytes(down(tensor)), [content(number)], "{number}");
    }
    assert_eq!(is_read, Some(report.gathered >= TENSORS as u64), "{report}");
    Ok(report)
}

/// The same for pieces of memory that are one tensor: down, within their device, and to another one.
fn copy_list(
    from: &Device,
    addresses: Vec<u64>,
    to: &Device,
) -> Result<CopyReport, Box<dyn std::error::Error>> {
    let owner: Vec<_> = addresses.iter().map(|address| Freed(from.clone(), *address)).collect();
    let owner = SharedOwner::new(owner, from);
    let pieces = || {
        addresses
            .iter()
            .zip(0..)
            .map(|(address, number)| (RawMemory::new(*address, BYTES, MemoryKind::Device), number * BYTES))
    };
    // SAFETY: all are valid until the owner goes, and nobody else knows of them.
    let list = unsafe { owner.gathered(pieces())? };
    drop(owner);
    let is_read = list.is_read_by_kernels_of(to)?;
    let expected: Vec<u8> = (0..TENSORS).flat_map(content).collect();
    let within = start_copy(list.clone(), from, CopyOptions::default())?.wait()?;
    let (there, report) = start_copy(list.clone(), to, CopyOptions::default())?.wait_with_report()?;
    for tensor in [within, there, list] {
        assert_eq!(bytes(down(tensor)), std::slice::from_ref(&expected));
    }
    assert_eq!(is_read, report.gathered > 0, "{report}");
    Ok(report)
}

/// Memory of `cuMemAlloc`, freed when it is dropped.
struct Freed(Device, sys::CUdeviceptr);

impl Drop for Freed {
    fn drop(&mut self) {
        let _current = Current::of(&self.0);
        // SAFETY: the case has allocated it, and nobody uses it any more.
        check("cuMemFree", unsafe { free(self.1) });
    }
}

/// A pool of the program's own.
struct Pool<'a> {
    device: &'a Device,
    handle: sys::CUmemoryPool,
}

impl<'a> Pool<'a> {
    fn create(device: &'a Device) -> Self {
        let mut handle = std::ptr::null_mut();
        // SAFETY: of the properties all that is not said is zero, as the driver asks.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = place(0);
        let _current = Current::of(device);
        // SAFETY: the properties are read within the call; the result is written to a local.
        check("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&mut handle, &properties) });
        Self { device, handle }
    }

    /// Lets another device read and write all of it.
    fn open_to(&self, ordinal: i32) {
        let flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: place(ordinal), flags };
        let _current = Current::of(self.device);
        // SAFETY: the pool is alive, and the description is read within the call.
        check("cuMemPoolSetAccess", unsafe { sys::cuMemPoolSetAccess(self.handle, &access, 1) });
    }

    fn tensors(&self) -> Result<Vec<Tensor>, transship_core::Error> {
        (0..TENSORS).map(|number| self.tensor(&content(number))).collect()
    }

    /// Memory of it, with these bytes in it. Whoever takes the address frees it.
    fn allocate(&self, content: &[u8]) -> sys::CUdeviceptr {
        let (mut address, stream) = (0, RawStream::of(self.device));
        let current = Current::of(self.device);
        // SAFETY: pool and stream are alive and of the device, which is current; the copy is from memory that outlives the wait.
        unsafe {
            let allocated =
                sys::cuMemAllocFromPoolAsync(&mut address, content.len(), self.handle, stream.handle);
            check("cuMemAllocFromPoolAsync", allocated);
            let copied =
                sys::cuMemcpyHtoDAsync_v2(address, content.as_ptr().cast(), content.len(), stream.handle);
            check("cuMemcpyHtoDAsync", copied);
            check("cuStreamSynchronize", sys::cuStreamSynchronize(stream.handle));
        }
        drop(current);
        address
    }

    fn tensor(&self, content: &[u8]) -> Result<Tensor, transship_core::Error> {
        let address = self.allocate(content);
        let memory = RawMemory::new(address, content.len(), MemoryKind::Device);
        let owner = Box::new(Freed(self.device.clone(), address));
        // SAFETY: the memory is valid until the owner goes, and nobody else knows of it.
        unsafe { Tensor::from_raw(memory, owner, &[content.len()], DType::U8, self.device) }
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        let _current = Current::of(self.device);
        // SAFETY: nobody uses the pool any more; the driver keeps what is not freed yet until it is.
        let destroyed = unsafe { sys::cuMemPoolDestroy(self.handle) };
        if !std::thread::panicking() {
            check("cuMemPoolDestroy", destroyed);
        }
    }
}

/// The field of the ordinal lies inside of a union in newer versions of the bindings, always at the same place.
fn place(ordinal: i32) -> sys::CUmemLocation {
    // SAFETY: two words, of which the first is the type and the second the ordinal.
    unsafe { std::mem::transmute([sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE as i32, ordinal]) }
}
