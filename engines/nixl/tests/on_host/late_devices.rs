//! Devices that do nothing for longer than a transfer may take.

use std::thread;
use std::time::{Duration, Instant};

use late_backend::{LateConfig, LateHandle};
use transship::{CopyOptions, DType, Device, Tensor, start_copy, start_copy_into};
use transship_nixl::Error;

use crate::support::LIMIT;
use crate::{SHORT, pair_of, tensors};

/// A device, simulated, that does nothing while it is stalled.
pub(crate) fn late(name: &'static str) -> (LateHandle, Device) {
    let late = late_backend::install(LateConfig::new(name)).unwrap();
    (late, Device::open(format!("{name}:0").parse().unwrap()).unwrap())
}

/// Until it is released, at the latest when a transfer that waits for it without end would be one.
pub(crate) fn stall(late: &LateHandle) {
    late.stall();
    let late = late.clone();
    thread::spawn(move || {
        thread::sleep(LIMIT / 2);
        late.release();
    });
}

fn assert_names(error: &Error, words: [&str; 2]) {
    assert!(matches!(error, Error::DeviceLate { .. }), "{error}");
    assert!(words.into_iter().all(|word| error.to_string().contains(word)), "{error}");
}

/// Deliberate bug: a transfer waits for a device without end.
#[test]
fn a_send_from_a_late_device_ends_by_its_deadline() {
    let pair = pair_of("late source", [1 << 20; 2]);
    let (late, device) = late("source");
    let tree = start_copy(tensors(1, 1000), &device, CopyOptions::default()).unwrap().wait().unwrap();
    stall(&late);
    let begun = Instant::now();
    let waited = pair.sender.start_send(&tree, &pair.to, SHORT).unwrap().wait().unwrap_err();
    assert_names(&waited, ["packing", "source:0"]);
    let awaited = pair.sender.start_send(&tree, &pair.to, SHORT).unwrap();
    assert_names(&futures::executor::block_on(awaited).unwrap_err(), ["packing", "source:0"]);
    assert!(begun.elapsed() < LIMIT / 2);
    late.release();
    let sent = pair.sender.start_send(&tree, &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive_into(tensors(0, 1000), &pair.from, LIMIT).unwrap();
    assert_eq!(received.wait().unwrap()[0].as_slice::<u8>().unwrap(), [1; 1000]);
    sent.wait().unwrap();
    assert!(late.violations().is_empty());
}

/// Deliberate bugs: a transfer waits for a device without end; held memory is lost with it; room that the device still reads is used again.
#[test]
fn a_receive_onto_a_late_device_ends_by_its_deadline() {
    let pair = pair_of("late target", [1 << 20; 2]);
    let (late, device) = late("target");
    let held = vec![Tensor::zeros(&[1000], DType::U8, &device).unwrap()];
    let address = held[0].address().unwrap();
    stall(&late);
    let begun = Instant::now();
    let sent = pair.sender.start_send(&tensors(1, 1000), &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive_into(held, &pair.from, SHORT).unwrap();
    let failed = received.wait().unwrap_err();
    assert_names(&failed.error, ["unpacking", "target:0"]);
    let refused = sent.wait().unwrap_err();
    assert!(refused.to_string().contains("target:0"), "{refused}");
    assert!(begun.elapsed() < LIMIT / 2);
    let mut freed = failed.value.unwrap();
    late.release();
    // Until the device has come by the copy that was given up, its memory is in use.
    let begun = Instant::now();
    let held = loop {
        match start_copy_into(tensors(0, 1000), freed, CopyOptions::default()) {
            Ok(copy) => break copy.wait().unwrap(),
            Err(failed) => freed = failed.into_both().1.unwrap(),
        }
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(1));
    };
    let sent = pair.sender.start_send(&tensors(2, 1000), &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive_into(held, &pair.from, LIMIT).unwrap().wait().unwrap();
    sent.wait().unwrap();
    assert_eq!(received[0].address().unwrap(), address);
    let down = start_copy(received, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(down[0].to_vec::<u8>().unwrap(), [2; 1000]);
    assert!(late.violations().is_empty());
}
