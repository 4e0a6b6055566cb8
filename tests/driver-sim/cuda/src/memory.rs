//! Device memory, pools and page-locked memory.

use std::ffi::c_void;

use driver_sim_engine::{Failure, Place, PoolFigure};

use crate::abi::{In, Out, exports};

const PORTABLE: u32 = 1;
const READ_ONLY: u32 = 8;
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const READ_WRITE: u32 = 3;
/// In words of the struct of a pool's properties: how other processes import it, and the device.
const POOL_HANDLES: usize = 1;
const POOL_DEVICE: usize = 3;
const NO_HANDLES: i32 = 0;
const DESCRIPTORS: i32 = 1;

/// Of the attributes of pools.
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const MOST_RESERVED: u32 = 6;
const USED: u32 = 7;
const MOST_USED: u32 = 8;

exports! {
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) |sim| address.take(|| sim.allocate(bytes));

    fn cuMemFree_v2(address: u64) |sim| sim.free(address);

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |sim| {
        let (there, all) = sim.memory_info()?;
        free.put(there as usize)?;
        total.put(all as usize)
    };

    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, flags: u32) |sim| {
        address.take(|| sim.allocate_pinned(bytes, flags & PORTABLE != 0))
    };

    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) |sim| {
        address.take(|| sim.allocate_pinned(bytes, false))
    };

    fn cuMemFreeHost(address: u64) |sim| sim.free_pinned(address);

    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) |sim| {
        sim.register_pinned(address, bytes, flags & PORTABLE != 0, flags & READ_ONLY != 0)
    };

    fn cuMemHostUnregister(address: u64) |sim| sim.unregister_pinned(address);

    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: u64) |sim| {
        address.take(|| sim.allocate_ordered(bytes, None, stream))
    };

    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: u64, stream: u64) |sim| {
        address.take(|| sim.allocate_ordered(bytes, Some(pool), stream))
    };

    fn cuMemFreeAsync(address: u64, stream: u64) |sim| sim.free_ordered(address, stream);

    fn cuMemPoolCreate(pool: Out<u64>, properties: In<i32>) |sim| {
        let device = properties.at(POOL_DEVICE)?;
        match properties.at(POOL_HANDLES)? {
            NO_HANDLES => pool.take(|| sim.create_pool(device)),
            DESCRIPTORS => pool.take(|| sim.create_shared_pool(device)),
            _ => Err(Failure::InvalidValue),
        }
    };

    fn cuMemPoolExportToShareableHandle(handle: Out<i32>, pool: u64, kind: i32, _flags: u64) |sim| match kind {
        DESCRIPTORS => handle.take(|| sim.export_pool(pool)),
        _ => Err(Failure::InvalidValue),
    };

    fn cuMemPoolImportFromShareableHandle(pool: Out<u64>, handle: u64, kind: i32, _flags: u64) |sim| match kind {
        DESCRIPTORS => pool.take(|| sim.import_pool(handle as i32)),
        _ => Err(Failure::InvalidValue),
    };

    fn cuMemPoolExportPointer(name: Out<[u64; 8]>, address: u64) |sim| name.take(|| sim.export_pointer(address));

    fn cuMemPoolImportPointer(address: Out<u64>, pool: u64, name: In<[u64; 8]>) |sim| {
        let name = name.read()?;
        address.take(|| sim.import_pointer(pool, &name))
    };

    fn cuMemPoolDestroy(pool: u64) |sim| sim.destroy_pool(pool);

    fn cuMemPoolTrimTo(pool: u64, keep: usize) |sim| sim.trim_pool(pool, keep as u64);

    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) |sim| pool.take(|| sim.default_pool(device));

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u64>) |sim| {
        let figure = match attribute {
            RELEASE_THRESHOLD => PoolFigure::Threshold,
            RESERVED => PoolFigure::Reserved,
            MOST_RESERVED => PoolFigure::MostReserved,
            USED => PoolFigure::Used,
            MOST_USED => PoolFigure::MostUsed,
            _ => return Err(Failure::InvalidValue),
        };
        value.put(sim.pool_figure(pool, figure)?)
    };

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u64>) |sim| match attribute {
        RELEASE_THRESHOLD => sim.set_pool_threshold(pool, value.read()?),
        // They can be set to 0 only.
        MOST_RESERVED if value.read()? == 0 => sim.reset_pool_figure(pool, PoolFigure::MostReserved),
        MOST_USED if value.read()? == 0 => sim.reset_pool_figure(pool, PoolFigure::MostUsed),
        _ => Err(Failure::InvalidValue),
    };

    fn cuMemPoolSetAccess(pool: u64, access: In<[u32; 3]>, count: usize) |sim| {
        for index in 0..count {
            let [_, device, flags] = access.at(index)?;
            sim.set_pool_access(pool, device as i32, flags == READ_WRITE)?;
        }
        Ok(())
    };

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<[u32; 2]>) |sim| {
        let [_, device] = location.read()?;
        flags.put(if sim.pool_access(pool, device as i32)? { READ_WRITE } else { 0 })
    };

    fn cuPointerGetAttribute(value: Out<c_void>, attribute: u32, address: u64) |sim| {
        let place = sim.place(address)?.ok_or(Failure::InvalidValue)?;
        pointer_attribute(&value, attribute, address, &place)
    };

    // No error of memory that the driver does not know: values are those of none then, as far as they are known here.
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, values: In<u64>, address: u64) |sim| {
        let place = sim.place(address)?;
        for index in 0..count as usize {
            let (value, attribute) = (Out::of(values.at(index)?), attributes.at(index)?);
            match &place {
                Some(place) => pointer_attribute(&value, attribute, address, place)?,
                None => attribute_of_none(&value, attribute)?,
            }
        }
        Ok(())
    };

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) |sim| {
        let place = sim.place(address)?.filter(|place| place.device.is_some()).ok_or(Failure::InvalidValue)?;
        start.put(place.start)?;
        bytes.put(place.bytes)
    };
}

const MEMORY_TYPE: u32 = 2;
const IS_MANAGED: u32 = 8;
const ORDINAL: u32 = 9;

fn attribute_of_none(value: &Out<c_void>, attribute: u32) -> Result<(), Failure> {
    match attribute {
        MEMORY_TYPE => value.cast().put(0_u32),
        IS_MANAGED => value.cast().put(false),
        ORDINAL => value.cast().put(-2_i32),
        _ => Err(Failure::InvalidValue),
    }
}

fn pointer_attribute(
    value: &Out<c_void>,
    attribute: u32,
    address: u64,
    place: &Place,
) -> Result<(), Failure> {
    const CONTEXT: u32 = 1;
    const DEVICE_POINTER: u32 = 3;
    const HOST_POINTER: u32 = 4;
    const START: u32 = 11;
    const SIZE: u32 = 12;
    const POOL: u32 = 17;
    match attribute {
        CONTEXT => value.cast().put(place.context),
        MEMORY_TYPE => value.cast().put(if place.device.is_some() { DEVICE } else { HOST }),
        DEVICE_POINTER => value.cast().put(address),
        HOST_POINTER if place.device.is_none() => value.cast().put(address),
        IS_MANAGED => value.cast().put(false),
        ORDINAL => value.cast().put(place.device.map_or(0, |device| device as i32)),
        START => value.cast().put(place.start),
        SIZE => value.cast().put(place.bytes),
        POOL => value.cast().put(place.pool.unwrap_or(0)),
        _ => Err(Failure::InvalidValue),
    }
}
