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

    let was_registered = registered();
    strided_down(&device);
    if registered() != was_registered {
        return Err("a block that a kernel writes was registered".to_owned());
    }
    device.trim();
    device.prepare(BYTES).unwrap();
    round_trip(&device);
    if registered() != was_registered {
        return Err("a block was registered, although one had been prepared".to_owned());
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
    let back = copy(copy(numbers(), device), &Device::host());
    assert_eq!(back.to_bytes().unwrap(), numbers().to_bytes().unwrap());
}

/// Half of the columns.
fn strided_down(device: &Device) {
    let columns =
        |tensor: Tensor| tensor.reshape(&[2 * BYTES / 256, 256]).unwrap().narrow(1, 0, 128).unwrap();
    let twice = || Tensor::from([numbers().to_bytes().unwrap(), numbers().to_bytes().unwrap()].concat());
    let back = copy(columns(copy(twice(), device)), &Device::host());
    assert_eq!(back.to_bytes().unwrap(), columns(twice()).to_bytes().unwrap());
}

fn numbers() -> Tensor {
    Tensor::from((0..BYTES).map(|index| (index % 251) as u8).collect::<Vec<_>>())
}

fn copy(tensor: Tensor, to: &Device) -> Tensor {
    start_copy(tensor, to, CopyOptions::default()).and_then(CopyHandle::wait).unwrap()
}
