//! What a device demands is looked at when it is opened: what no copy can keep is refused there, and every copy keeps the rest.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use late_backend::{LateConfig, LateHandle};
use support::bytes_of;
use transship_core::{
    Alignment, BackgroundWork, CopyOptions, CopyPolicy, DType, Device, Error, Tensor, start_copy,
};

const SMALLEST_BLOCK: usize = 64 << 10;

fn power(exponent: u32) -> Alignment {
    Alignment::new(1 << exponent).unwrap()
}

fn config() -> LateConfig {
    LateConfig::new("late-limits")
}

/// Devices that are as they say at the edges of what they may say.
fn edges() -> Vec<LateConfig> {
    let granule = power(16);
    vec![
        LateConfig { copy_granularity: granule, ..config() },
        LateConfig { copy_granularity: granule, largest_buffer: SMALLEST_BLOCK, ..config() },
        LateConfig { copy_granularity: granule, mapped_staging: true, ..config() },
        LateConfig { copy_granularity: granule, largest_open: usize::MAX, mapped_staging: true, ..config() },
        LateConfig { copy_granularity: granule, gather: Some(8192), ..config() },
        LateConfig { copy_granularity: granule, bindable_alignment: power(usize::BITS - 1), ..config() },
        LateConfig { bindable_alignment: power(usize::BITS - 1), ..config() },
        LateConfig { buffer_alignment: power(4), ..config() },
        LateConfig { buffer_alignment: power(usize::BITS - 1), ..config() },
        LateConfig { largest_buffer: 1, ..config() },
        LateConfig { largest_buffer: 70_000, ..config() },
        LateConfig { largest_buffer: usize::MAX, device_memory: usize::MAX, ..config() },
        LateConfig { host_writable: true, ..config() },
        LateConfig { host_writable: true, copy_granularity: granule, ..config() },
        LateConfig { host_writable: true, mapped_staging: true, largest_open: usize::MAX, ..config() },
        LateConfig { largest_open: 1, ..config() },
        LateConfig { largest_open: usize::MAX, ..config() },
        LateConfig { gather: Some(0), ..config() },
        LateConfig { gather: Some(8192), ..config() },
        LateConfig { gather_strided: Some(0), ..config() },
        LateConfig { gather: Some(8192), gather_strided: Some(8192), ..config() },
        LateConfig { largest_strided: 1, ..config() },
        LateConfig {
            largest_strided: usize::MAX,
            copy_granularity: granule,
            mapped_staging: true,
            ..config()
        },
    ]
}

/// Small tensors of several types, and one that is larger than a block, as far as `largest` has room for them.
fn batch(largest: usize) -> Vec<Tensor> {
    let bytes = |len: usize| (0..len).map(|index| (index * 7 + len) as u8).collect::<Vec<_>>();
    let mut tensors: Vec<Tensor> = (1..=20).map(|len| Tensor::from(bytes(len))).collect();
    tensors.push(Tensor::from_vec(vec![0.5_f64; 3], &[3]).unwrap());
    tensors.push(Tensor::empty(&[0], DType::U8, &Device::host()).unwrap());
    tensors.extend([65_536, 65_537, 200_000].map(|len| Tensor::from(bytes(len))));
    tensors.retain(|tensor| tensor.nbytes() <= largest);
    tensors
}

/// Parts that begin and end in the middle of granules.
fn parts(tensors: &[Tensor]) -> Vec<Tensor> {
    let part = |tensor: &Tensor, from: usize, len| tensor.narrow(0, from, len).unwrap();
    let long = tensors.iter().filter(|tensor| tensor.dtype() == DType::U8 && tensor.nbytes() > 2);
    long.flat_map(|tensor| {
        let last = tensor.nbytes() - 1;
        [part(tensor, 1, last - 1), part(tensor, last, 1), part(tensor, last.min(65_535), 1)]
    })
    .collect()
}

fn copy(tensors: &[Tensor], to: &Device, options: &CopyOptions) -> Vec<Tensor> {
    start_copy(tensors.to_vec(), to, options.clone()).unwrap().wait().unwrap()
}

fn bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(bytes_of).collect()
}

#[test]
fn copies_keep_what_devices_at_the_edges_demand() {
    for edge in edges() {
        let shown = format!("{edge:?}");
        let late = LateHandle::new(LateConfig { devices: 2, ..edge.clone() }).unwrap();
        let plain = LateHandle::new(LateConfig::new("late-plain")).unwrap();
        let [device, peer] = [0, 1].map(|ordinal| Device::from_backend(late.backend(ordinal)).unwrap());
        let plain_device = Device::from_backend(plain.backend(0)).unwrap();
        let host = batch(edge.largest_buffer);
        for background in [BackgroundWork::Auto, BackgroundWork::Always] {
            let options = CopyOptions::default().policy(CopyPolicy::Always).background(background);
            let bindable = options.clone().bindable(true);
            let up = copy(&host, &device, &options);
            assert_eq!(bytes(&up), bytes(&host), "{shown}");
            assert_eq!(bytes(&copy(&host, &device, &bindable)), bytes(&host), "bindable, {shown}");
            let wanted = bytes(&parts(&host));
            let parts = parts(&up);
            // Where there is no room for all that a part is moved with, it is an error and no copy.
            if edge.largest_buffer < 200_000 {
                continue;
            }
            for to in [&device, &peer, &plain_device, &Device::host()] {
                assert_eq!(bytes(&copy(&parts, to, &options)), wanted, "to {to:?}, {shown}");
            }
        }
        assert!(late.violations().is_empty(), "{:?}, {shown}", late.violations());
        assert!(plain.violations().is_empty(), "{:?}, {shown}", plain.violations());
    }
}

/// Deliberate bug: `limits::check` accepts any granularity. Copies at offsets just below 2^64 come of it.
#[test]
fn limits_that_no_copy_can_keep_are_refused_with_what_they_may_be() {
    let refused = [
        (
            LateConfig { copy_granularity: power(17), ..config() },
            "copy_granularity",
            "131072",
            "at most 65536",
        ),
        (
            LateConfig { copy_granularity: power(63), ..config() },
            "copy_granularity",
            "9223372036854775808",
            "65536",
        ),
        (LateConfig { buffer_alignment: power(3), ..config() }, "buffer_alignment", "8", "at least 16"),
        (LateConfig { buffer_alignment: Alignment::ONE, ..config() }, "buffer_alignment", "1", "at least 16"),
        (
            LateConfig { largest_buffer: 0, ..config() },
            "largest_buffer",
            "0",
            "at least the copy_granularity",
        ),
        (
            LateConfig { largest_buffer: 65_535, copy_granularity: power(16), ..config() },
            "largest_buffer",
            "65535",
            "at least the copy_granularity",
        ),
        (LateConfig { gather: Some(8193), ..config() }, "gather", "8193", "at most 8192"),
        (
            LateConfig { gather: Some(usize::MAX), ..config() },
            "gather",
            "18446744073709551615",
            "at most 8192",
        ),
        (
            LateConfig { gather: Some(8), mapped_staging: true, ..config() },
            "gather",
            "8",
            "None where mapped_staging is set",
        ),
        (LateConfig { gather_strided: Some(8193), ..config() }, "gather_strided", "8193", "at most 8192"),
        (
            LateConfig { gather_strided: Some(8), mapped_staging: true, ..config() },
            "gather_strided",
            "8",
            "None where mapped_staging is set",
        ),
        (
            LateConfig { gather_strided: Some(8), copy_granularity: power(2), ..config() },
            "gather_strided",
            "8",
            "None where copy_granularity is not 1",
        ),
        (
            LateConfig { gather: Some(8), largest_strided: 9, ..config() },
            "largest_strided",
            "9",
            "0 where gather or gather_strided is set",
        ),
        (
            LateConfig { gather_strided: Some(8), largest_strided: 9, ..config() },
            "largest_strided",
            "9",
            "0 where gather or gather_strided is set",
        ),
        (
            LateConfig { largest_scattered_run: 64, ..config() },
            "largest_scattered_run",
            "64",
            "0 where largest_strided is 0",
        ),
    ];
    for (config, expected, shown, allowed) in refused {
        let late = LateHandle::new(config).unwrap();
        match Device::from_backend(late.backend(0)) {
            Err(error @ Error::InvalidLimit { field, .. }) => {
                assert_eq!(field, expected);
                let text = error.to_string();
                assert!(
                    [shown, allowed, "late-limits:0", field].iter().all(|word| text.contains(word)),
                    "{text}"
                );
            }
            other => panic!("{expected} {shown}: {other:?}"),
        }
        assert!(late.calls().is_empty(), "nothing was asked of a device that was refused");
    }
    let late = late_backend::install(LateConfig { copy_granularity: power(17), ..config() }).unwrap();
    assert!(matches!(
        Device::open("late-limits:0".parse().unwrap()),
        Err(Error::InvalidLimit { field: "copy_granularity", .. })
    ));
    drop(late);
}
