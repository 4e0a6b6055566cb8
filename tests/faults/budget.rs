//! Pinned memory stays within its budgets by the driver's own count, not only by ours.

use std::thread;

use transship::{CopyHandle, CopyOptions, Device, DeviceId, Tensor, start_copy};

use crate::stand_in::StandIn;

const STAGING: usize = 1 << 20;
const RESULTS: usize = 1 << 20;
const THREADS: u8 = 8;
const ROUNDS: u8 = 12;

pub(crate) fn run(stand_in: &StandIn) -> Result<(), String> {
    // The driver counts for the whole process.
    if stand_in.ask("most-pinned") > 0 {
        return Err("another case has pinned memory before this one".to_owned());
    }
    let ordinal = stand_in.add_devices(1);
    let device = Device::open(DeviceId::new("cuda", ordinal).unwrap()).unwrap();
    device.set_staging_budget(STAGING).unwrap();
    device.set_result_budget(RESULTS).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = &device;
            scope.spawn(move || (0..ROUNDS).for_each(|round| round_trip(device, thread, round)));
        }
    });
    let most = stand_in.ask("most-pinned") as usize;
    println!("budget: {most} bytes were pinned at most");
    match most {
        0 => Err("nothing was pinned at all".to_owned()),
        most if most > STAGING + RESULTS => Err(format!("{most} bytes were pinned")),
        _ => Ok(()),
    }
}

fn round_trip(device: &Device, thread: u8, round: u8) {
    let bytes = [10, 70_000, 400_000, 2_000_000][usize::from(thread + round) % 4];
    let source = vec![Tensor::from(vec![thread; bytes]), Tensor::from(vec![round; 100])];
    let copy = |value, to: &Device| start_copy(value, to, CopyOptions::default()).and_then(CopyHandle::wait);
    let back = copy(copy(source, device).unwrap(), &Device::host()).unwrap();
    assert_eq!(back[0].to_bytes().unwrap(), vec![thread; bytes]);
    assert_eq!(back[1].to_bytes().unwrap(), [round; 100]);
}
