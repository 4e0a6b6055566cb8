//! What a machine without NCCL says.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use transship::{Device, Tensor};
use transship_nccl::{Error, Group, Nccl, ReduceOp};

/// Deliberate bug: a name is not tried, or not said.
#[test]
fn a_library_that_is_not_there_is_an_error_with_all_names() {
    for (loaded, names) in [
        (Nccl::load(), &["libnccl.so.2", "libnccl.so"][..]),
        (Nccl::load_rccl(), &["librccl.so.1", "librccl.so"]),
    ] {
        match loaded {
            Ok(nccl) => assert!(nccl.version() >= 21_400),
            Err(Error::NotLoaded { tried }) => {
                assert!(tried.len() >= names.len());
                assert!(
                    names.iter().zip(&tried).all(|(name, tried)| tried.starts_with(&format!("{name}:"))),
                    "{tried:?}"
                );
            }
            Err(other) => unreachable!("{other}"),
        }
    }
    // SAFETY: there is no such file.
    let missing = unsafe { Nccl::open("/nowhere/libnccl.so.2") }.unwrap_err();
    assert!(missing.to_string().contains("/nowhere/libnccl.so.2"), "{missing}");
    // SAFETY: it is the library that every program has.
    let other = unsafe { Nccl::open("libc.so.6") }.unwrap_err();
    assert!(other.to_string().contains("libc.so.6: it has no ncclGetVersion"), "{other}");
}

/// Deliberate bug: a group without NCCL says nothing, or does nothing.
#[test]
fn a_group_of_the_host_copies_and_says_why() {
    let group = Group::new(&[Device::host(), Device::host()]).unwrap();
    assert!(matches!(group.nccl(), Err(Error::UnsuitedDevices { .. })));
    let sums = group.all_reduce(vec![Tensor::scalar(1_u8), Tensor::scalar(2_u8)], ReduceOp::Sum).unwrap();
    assert_eq!(sums[1].item::<u8>().unwrap(), 3);
}
