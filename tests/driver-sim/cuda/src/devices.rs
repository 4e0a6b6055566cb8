//! The driver itself and its devices.

use std::ffi::c_char;

use driver_sim_engine::DEVICE_NAME;

use crate::abi::{Out, exports};
use crate::codes;

const VERSION: i32 = 13_000;
/// Of the device attributes, those whose answer is not 0.
const PCI_BUS: u32 = 33;
const PCI_DEVICE: u32 = 34;
const ASYNC_ENGINES: u32 = 40;
const UNIFIED_ADDRESSING: u32 = 41;
const PCI_DOMAIN: u32 = 50;
const CAPABILITY_MAJOR: u32 = 75;
const HOST_POINTERS_OF_REGISTERED: u32 = 91;
const READ_ONLY_REGISTRATION: u32 = 113;
const MEMORY_POOLS: u32 = 115;
const POOL_HANDLES: u32 = 119;
const HOST_NODE: u32 = 134;

/// Bits of the number of a slot on a bus, and of that of a bus: devices fill one slot of each bus after the other.
const BUS_BITS: u32 = 8;
const SLOT_BITS: u32 = 5;

exports! {
    fn cuInit(_flags: u32) |sim| sim.initialise();

    fn cuDriverGetVersion(version: Out<i32>) |_sim| version.put(VERSION);

    fn cuDeviceGetCount(count: Out<i32>) |sim| count.put(sim.device_count()? as i32);

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) |sim| {
        sim.check_device(ordinal)?;
        device.put(ordinal)
    };

    fn cuDeviceGetName(name: Out<c_char>, length: i32, device: i32) |sim| {
        sim.check_device(device)?;
        let room = usize::try_from(length).unwrap_or(0).saturating_sub(1);
        let text = DEVICE_NAME.bytes().take(room).chain([0]);
        name.put_all(text.map(|byte| byte as c_char))
    };

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) |sim| {
        sim.check_device(device)?;
        let mut number = *b"transship-si\0\0\0\0";
        number[12..].copy_from_slice(&device.to_be_bytes());
        uuid.put(number)
    };

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |sim| bytes.put(sim.total_memory(device)? as usize);

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) |sim| {
        sim.check_device(device)?;
        value.put(match attribute {
            ASYNC_ENGINES => 2,
            UNIFIED_ADDRESSING | HOST_POINTERS_OF_REGISTERED | READ_ONLY_REGISTRATION => 1,
            CAPABILITY_MAJOR => 9,
            MEMORY_POOLS => i32::from(sim.has_pools()),
            POOL_HANDLES => i32::from(sim.has_shared_pools()),
            PCI_BUS => slot(device).bus,
            PCI_DEVICE => slot(device).number,
            PCI_DOMAIN => slot(device).domain,
            HOST_NODE => device % 2,
            _ => 0,
        })
    };

    fn cuDeviceGetPCIBusId(address: Out<c_char>, length: i32, device: i32) |sim| {
        sim.check_device(device)?;
        let Slot { domain, bus, number } = slot(device);
        let room = usize::try_from(length).unwrap_or(0).saturating_sub(1);
        let text = format!("{domain:04X}:{bus:02X}:{number:02X}.0");
        address.put_all(text.bytes().take(room).chain([0]).map(|byte| byte as c_char))
    };

    fn cuDeviceCanAccessPeer(answer: Out<i32>, device: i32, peer: i32) |sim| {
        answer.put(i32::from(sim.can_access_peer(device, peer)?))
    };
}

/// Where a device is plugged in.
struct Slot {
    domain: i32,
    bus: i32,
    number: i32,
}

fn slot(device: i32) -> Slot {
    let plugged = device + 1;
    Slot {
        domain: plugged >> (BUS_BITS + SLOT_BITS),
        bus: plugged & ((1 << BUS_BITS) - 1),
        number: plugged >> BUS_BITS & ((1 << SLOT_BITS) - 1),
    }
}

/// Not counted, and never made to fail: it asks nothing of a device.
#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: Out<*const c_char>) -> u32 {
    text(name, codes::texts(code).map(|(name, _)| name))
}

/// As [`cuGetErrorName`].
#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, words: Out<*const c_char>) -> u32 {
    text(words, codes::texts(code).map(|(_, words)| words))
}

fn text(out: Out<*const c_char>, text: Option<&'static str>) -> u32 {
    let pointer = text.map_or(std::ptr::null(), |text| text.as_ptr().cast());
    let known = if text.is_some() { Ok(()) } else { Err(driver_sim_engine::Failure::InvalidValue) };
    codes::number(out.put(pointer).and(known))
}
