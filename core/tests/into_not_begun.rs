//! Copies into memory that the caller holds that fail at their start: what was not touched comes back as it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use late_backend::{Call, LateConfig};
use support::held::{bytes, options};
use support::{bytes_of, no_violations, on, two, with};
use transship_core::{
    BackgroundWork, CopyPolicy, DType, Device, Error, ErrorKind, Tensor, start_copy, start_copy_into,
};

/// More than there can be page-locked.
const BYTES: usize = 300_000;

/// catches: 215-not-begun-and-not-given-back
#[test]
fn nothing_was_submitted_and_both_come_back_as_they_were() {
    let (late, device) = with(LateConfig { staging_memory: 200_000, ..LateConfig::new("late") });
    let value = vec![on(&device, &[1; BYTES]), on(&device, &[2; 8])];
    let held = vec![Tensor::from(vec![3_u8; BYTES]), Tensor::from(vec![4_u8; 8])];
    let addresses: Vec<_> = held.iter().map(|tensor| tensor.address().unwrap()).collect();
    let failed = start_copy_into(value, held, options().background(BackgroundWork::Never)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::OutOfMemory, "{failed:#}");
    let (value, held) = failed.into_both();
    assert_eq!(bytes(&value.unwrap()), [vec![1; BYTES], vec![2; 8]]);
    let mut held = held.unwrap();
    assert!(held.iter().map(|tensor| tensor.address().unwrap()).eq(addresses), "other memory came back");
    assert_eq!(bytes(&held), [vec![3; BYTES], vec![4; 8]]);
    held[0].as_mut_slice::<u8>().unwrap().fill(5);
    no_violations(&late);
}

/// catches: 216-begun-and-given-back
#[test]
fn what_was_submitted_in_part_cannot_be_read() {
    let (late, device, other) = two(LateConfig::new("late"));
    device.prepare(64).unwrap();
    let value = vec![on(&other, &[1; 8]), Tensor::from(vec![2_u8; 8])];
    let held = vec![on(&device, &[3; 8]), on(&device, &[4; 8])];
    late.fail_next(Call::Submit, 1);
    let failed = start_copy_into(value, held, options()).unwrap_err();
    assert!(matches!(failed.error(), Error::Driver { .. }), "{failed:#}");
    let (value, held) = failed.into_both();
    assert_eq!(value.unwrap().iter().map(bytes_of).collect::<Vec<_>>(), [[1; 8], [2; 8]]);
    for tensor in held.unwrap() {
        assert!(matches!(tensor.is_ready(), Err(Error::CopyFailed(_))), "{tensor:?}");
    }
    no_violations(&late);
}

/// catches: 217-nothing-to-read-is-not-ready
#[test]
fn a_tensor_without_elements_can_be_read_whatever_became_of_its_memory() {
    let (late, device, other) = two(LateConfig::new("late"));
    device.prepare(64).unwrap();
    let all = Tensor::zeros(&[16], DType::U8, &Device::host()).unwrap();
    let all = start_copy(all, &device, options()).unwrap().wait().unwrap();
    let held = vec![all.narrow(0, 0, 8).unwrap(), all.narrow(0, 8, 8).unwrap(), all.narrow(0, 8, 0).unwrap()];
    drop(all);
    let value = vec![on(&other, &[1; 8]), Tensor::from(vec![2_u8; 8]), Tensor::from(Vec::<u8>::new())];
    late.fail_next(Call::Submit, 1);
    let held = start_copy_into(value, held, options()).unwrap_err().into_both().1.unwrap();
    assert!(held[0].is_ready().is_err());
    for policy in [CopyPolicy::IfNeeded, CopyPolicy::Always] {
        for to in [&device, &Device::host()] {
            let copied =
                start_copy(vec![held[2].clone()], to, options().policy(policy)).unwrap().wait().unwrap();
            assert_eq!(bytes(&copied), [[]]);
        }
    }
    let failed = start_copy(held, &Device::host(), options()).map(drop).unwrap_err();
    assert_eq!(failed.to_string(), "the copy to host needs a tensor that an earlier copy did not fill");
    no_violations(&late);
}

#[test]
fn on_the_host_too() {
    let (late, device) = with(LateConfig::new("late"));
    device.prepare(64).unwrap();
    let all = Tensor::zeros(&[16], DType::U8, &Device::host()).unwrap();
    let held = vec![all.narrow(0, 0, 8).unwrap(), all.narrow(0, 8, 0).unwrap()];
    drop(all);
    let value = vec![on(&device, &[1; 8]), Tensor::from(Vec::<u8>::new())];
    late.stall();
    let stopped = start_copy_into(value, held, options()).unwrap().cancel();
    let held = stopped.into.unwrap();
    assert!(matches!(held[0].to_bytes(), Err(Error::CopyFailed(_))), "{held:?}");
    assert_eq!(held[1].to_bytes().unwrap(), []);
    late.release();
    stopped.in_flight.wait().unwrap();
    no_violations(&late);
}
