//! Sizes that nobody has are errors, wherever they can be asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use late_backend::LateConfig;
use support::{bytes_of, on, with};
use transship_core::{Alignment, CopyOptions, DType, Device, Error, Result, Tensor, start_copy};

/// Where sums, roundings and signs go wrong.
fn sizes() -> impl Iterator<Item = usize> {
    let near = |edge: usize| [edge, edge - 1, edge - 4095, edge - 65_535, edge - 65_536];
    let edges = [usize::MAX, usize::MAX / 2 + 1, usize::MAX / 2, usize::MAX / 4 + 1, usize::MAX / 8];
    edges.into_iter().flat_map(near)
}

fn devices() -> impl Iterator<Item = LateConfig> {
    let late =
        || LateConfig { device_memory: 1 << 26, staging_memory: 1 << 26, ..LateConfig::new("late-sizes") };
    let granules = |bytes| Alignment::new(bytes).unwrap();
    [
        late(),
        LateConfig { device_memory: usize::MAX, staging_memory: usize::MAX, ..late() },
        LateConfig { copy_granularity: granules(4), mapped_staging: true, ..late() },
        LateConfig {
            copy_granularity: granules(65_536),
            largest_open: usize::MAX,
            mapped_staging: true,
            ..late()
        },
        LateConfig { gather: Some(32), ..late() },
    ]
    .into_iter()
}

#[track_caller]
fn is_refused<T>(result: Result<T>, what: &str, bytes: usize) {
    match result {
        Err(
            Error::TooLarge { .. }
            | Error::OutOfMemory { .. }
            | Error::SizeOverflow { .. }
            | Error::Unsupported { .. },
        ) => {}
        Err(error) => panic!("{what} of {bytes} bytes: {error}"),
        Ok(_) => panic!("{what} of {bytes} bytes"),
    }
}

/// Deliberate bug: `Device::prepare` page-locks blocks, and adds up their sizes, before it asks for the device's memory.
#[test]
fn sizes_that_nobody_has_are_errors_that_leave_nothing_behind() {
    for config in devices() {
        for budget in [None, Some(usize::MAX), Some(64 << 10)] {
            let (late, device) = with(config.clone());
            if let Some(budget) = budget {
                device.set_staging_budget(budget).unwrap();
                device.set_result_budget(budget).unwrap();
            }
            // Some blocks are there already: sums begin with them.
            device.prepare(1000).unwrap();
            let block =
                start_copy(on(&device, &[7; 100]), &Device::host(), CopyOptions::default()).unwrap().wait();
            for bytes in sizes() {
                let pinned = [device.staging_usage(), device.result_usage()].map(|pool| pool.high_water);
                is_refused(device.prepare(bytes), "prepare", bytes);
                let then = [device.staging_usage(), device.result_usage()].map(|pool| pool.high_water);
                assert_eq!(then, pinned, "page-locked for {bytes} bytes");
                is_refused(Device::host().prepare(bytes), "prepare on the host", bytes);
                for to in [&device, &Device::host()] {
                    is_refused(Tensor::empty(&[bytes], DType::U8, to), "empty", bytes);
                    is_refused(Tensor::zeros(&[bytes], DType::U8, to), "zeros", bytes);
                    is_refused(Tensor::empty_pinned(&[bytes], DType::U8, to), "empty_pinned", bytes);
                    is_refused(Tensor::empty(&[bytes, 2], DType::F64, to), "empty", bytes);
                }
            }
            assert_eq!(block.unwrap().to_bytes().unwrap(), [7; 100]);
            assert_eq!((device.staging_usage().in_use, device.result_usage().in_use), (0, 0));
            device.trim();
            assert_eq!((device.staging_usage().idle, device.result_usage().idle), (0, 0));
            assert_eq!(bytes_of(&on(&device, &[1, 2, 3])), [1, 2, 3], "and it goes on");
            assert!(late.violations().is_empty(), "{:?}", late.violations());
        }
    }
}

#[test]
fn views_and_options_of_any_size_are_errors_or_mean_no_limit() {
    let (_late, device) = with(LateConfig::new("late-sizes"));
    let tensor = on(&device, &[1, 2, 3, 4]);
    for bytes in sizes() {
        assert!(tensor.narrow(0, bytes, 1).is_err() && tensor.narrow(0, 1, bytes).is_err());
        assert!(tensor.reshape(&[bytes]).is_err() && tensor.reshape(&[bytes, bytes]).is_err());
        let options =
            CopyOptions::default().max_chunk_bytes(bytes).max_bytes_in_flight(bytes).max_packed_bytes(bytes);
        let copied = start_copy(vec![tensor.clone(), Tensor::from(vec![5_u8])], &Device::host(), options);
        let copied = copied.unwrap().wait().unwrap();
        assert_eq!(
            [copied[0].to_bytes().unwrap(), copied[1].to_bytes().unwrap()],
            [vec![1, 2, 3, 4], vec![5]]
        );
    }
}
