//! Large pinned blocks are pages of our own, which the driver page-locks in place; where it refuses, it allocates them.

use transship::{CopyHandle, CopyOptions, Device, DeviceId, Tensor, start_copy};

use crate::left::eventually;
use crate::stand_in::StandIn;

const BYTES: usize = 3 << 20;

/// catches: 186-registered-memory-freed-by-the-driver
pub(crate) fn run(stand_in: &StandIn) -> Result<(), String> {
    let before = stand_in.ask("pinned");
    let ordinal = stand_in.add_devices(1);
    let device = Device::open(DeviceId::new("cuda", ordinal).unwrap()).unwrap();
    let registered = || stand_in.ask("calls:cuMemHostRegister_v2");
    let allocated = || stand_in.ask("calls:cuMemHostAlloc");

    let was_registered = registered();
    round_trip(&device);
    if registered() == was_registered {
        return Err("no block was registered".to_owned());
    }
    device.trim();

    stand_in.tell("faults cuMemHostRegister_v2~1=unknown");
    let was_allocated = allocated();
    round_trip(&device);
    stand_in.tell("faults");
    if allocated() == was_allocated {
        return Err("no block was allocated in the place of one that could not be registered".to_owned());
    }

    drop(device);
    match eventually(|| stand_in.ask("pinned") <= before) {
        true => Ok(()),
        false => Err(format!("{} bytes are page-locked, {before} before", stand_in.ask("pinned"))),
    }
}

fn round_trip(device: &Device) {
    let copy = |value, to: &Device| start_copy(value, to, CopyOptions::default()).and_then(CopyHandle::wait);
    let bytes: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let back = copy(copy(vec![Tensor::from(bytes.clone())], device).unwrap(), &Device::host()).unwrap();
    assert_eq!(back[0].to_bytes().unwrap(), bytes);
}
