//! Conversion of elements while they are copied: what comes out, and what is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use half::{bf16, f16};
use late_backend::LateConfig;
use proptest::prelude::*;
use support::{late, no_violations, on, with};
use transship_core::{
    Cast, CopyError, CopyHandle, CopyOptions, CopyPolicy, DType, Device, Element, Error, ErrorKind, Prefetch,
    PrefetchOptions, Result, Tensor, start_copy, start_copy_into, start_copy_to_all,
};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const INTEGERS: [DType; 8] =
    [DType::U8, DType::U16, DType::U32, DType::U64, DType::I8, DType::I16, DType::I32, DType::I64];

fn casting(cast: Cast) -> CopyOptions {
    CopyOptions::default().cast(cast)
}

fn from_to(from: DType, to: DType) -> CopyOptions {
    casting(Cast::new(from, to))
}

fn copied(tensor: &Tensor, to: &Device, options: CopyOptions) -> Result<Tensor, CopyError<Tensor>> {
    start_copy(tensor.clone(), to, options).and_then(CopyHandle::wait)
}

/// On the host, by way of a device: through staging blocks.
fn through(device: &Device, tensor: &Tensor, options: CopyOptions) -> Tensor {
    let there = copied(tensor, device, options).unwrap();
    assert_eq!((there.shape(), there.is_contiguous()), (tensor.shape(), true));
    copied(&there, &Device::host(), CopyOptions::default()).unwrap()
}

fn cast_to<T: Element>(tensor: &Tensor, device: &Device) -> Vec<T> {
    through(device, tensor, from_to(tensor.dtype(), T::DTYPE)).to_vec::<T>().unwrap()
}

/// The element of a 16-bit type that is nearest to `value`; of two, the even one.
fn nearest(value: f64, bits_of: impl Fn(f64) -> u16, value_of: impl Fn(u16) -> f64) -> u16 {
    let around = bits_of(value);
    let finite = |bits: &u16| value_of(*bits).is_finite();
    let candidates = [around.wrapping_sub(1), around, around.wrapping_add(1)];
    if !finite(&around) {
        return around;
    }
    let distance = |bits: &u16| (value_of(*bits) - value).abs();
    let order =
        |one: &u16, other: &u16| distance(one).total_cmp(&distance(other)).then((one & 1).cmp(&(other & 1)));
    candidates
        .into_iter()
        .filter(|bits| finite(bits) && value_of(*bits).is_sign_negative() == value.is_sign_negative())
        .min_by(order)
        .unwrap()
}

/// What comes of `values`, by other means.
fn narrowed(values: &[f32], to: DType) -> Vec<u8> {
    let bytes = |value: &f32| match to {
        DType::BF16 => bf16::from_f32(*value).to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f32(*value).to_ne_bytes().to_vec(),
        DType::F64 => f64::from(*value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn singles() -> impl Strategy<Value = f32> {
    prop_oneof![any::<u32>().prop_map(f32::from_bits), -70_000.0_f32..70_000.0, -1e-4_f32..1e-4]
}

/// Near ties of both types of 16 bits as well.
fn doubles() -> impl Strategy<Value = f64> {
    let near_ties = (any::<i16>(), -3_i64..=3, 20_u32..45).prop_map(|(bits, off, shift)| {
        let tie = f64::from(bf16::from_bits(bits as u16).to_f32());
        f64::from_bits(
            tie.to_bits().wrapping_add_signed(1 << 44).wrapping_add_signed(off << (44 - shift.min(44))),
        )
    });
    prop_oneof![any::<u64>().prop_map(f64::from_bits), -70_000.0_f64..70_000.0, near_ties]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 64 }))]

    #[test]
    fn single_precision_is_narrowed_as_half_narrows_it(values in prop::collection::vec(singles(), 1..1500)) {
        let (_, device) = late();
        let tensor = Tensor::from(values.clone());
        let brains: Vec<u16> = cast_to::<bf16>(&tensor, &device).iter().map(|value| value.to_bits()).collect();
        let halves: Vec<u16> = cast_to::<f16>(&tensor, &device).iter().map(|value| value.to_bits()).collect();
        for (index, value) in values.iter().enumerate() {
            prop_assert_eq!(brains[index], bf16::from_f32(*value).to_bits(), "{}", value);
            prop_assert_eq!(halves[index], f16::from_f32(*value).to_bits(), "{}", value);
        }
        let wide = cast_to::<f64>(&tensor, &device);
        prop_assert!(values.iter().zip(wide).all(|(value, wide)| f64::from(*value).to_bits() == wide.to_bits() || value.is_nan() && wide.is_nan()));
    }

    /// catches: 222-rounded-twice
    #[test]
    fn double_precision_is_rounded_once(values in prop::collection::vec(doubles(), 1..1500)) {
        let (_, device) = late();
        let tensor = Tensor::from(values.clone());
        let (brains, halves) = (cast_to::<bf16>(&tensor, &device), cast_to::<f16>(&tensor, &device));
        let singles = cast_to::<f32>(&tensor, &device);
        for (index, value) in values.iter().enumerate() {
            if value.is_nan() {
                prop_assert!(brains[index].is_nan() && halves[index].is_nan() && singles[index].is_nan());
                continue;
            }
            prop_assert_eq!(singles[index].to_bits(), (*value as f32).to_bits());
            let brain = nearest(*value, |value| bf16::from_f64(value).to_bits(), |bits| bf16::from_bits(bits).to_f64());
            let half = nearest(*value, |value| f16::from_f64(value).to_bits(), |bits| f16::from_bits(bits).to_f64());
            if brains[index].is_finite() && bf16::from_bits(brain).is_finite() {
                prop_assert_eq!(brains[index].to_bits(), brain, "{:e}", value);
            }
            if halves[index].is_finite() && f16::from_bits(half).is_finite() {
                prop_assert_eq!(halves[index].to_bits(), half, "{:e}", value);
            }
        }
    }

    #[test]
    fn half_precision_is_widened_exactly(bits in prop::collection::vec(any::<u16>(), 1..1500)) {
        let (_, device) = late();
        let halves: Vec<f16> = bits.iter().copied().map(f16::from_bits).collect();
        let brains: Vec<bf16> = bits.iter().copied().map(bf16::from_bits).collect();
        let (from_halves, from_brains) = (Tensor::from(halves.clone()), Tensor::from(brains.clone()));
        let (singles, doubles) = (cast_to::<f32>(&from_halves, &device), cast_to::<f64>(&from_halves, &device));
        let (of_brains, wide_brains) = (cast_to::<f32>(&from_brains, &device), cast_to::<f64>(&from_brains, &device));
        let (to_brains, to_halves) = (cast_to::<bf16>(&from_halves, &device), cast_to::<f16>(&from_brains, &device));
        let same = |is: f64, was: f64| is.to_bits() == was.to_bits() || is.is_nan() && was.is_nan();
        for (index, (half, brain)) in halves.iter().zip(&brains).enumerate() {
            prop_assert!(same(singles[index].into(), half.to_f64()) && same(doubles[index], half.to_f64()));
            prop_assert!(same(of_brains[index].into(), brain.to_f64()) && same(wide_brains[index], brain.to_f64()));
            prop_assert_eq!(to_brains[index].to_bits(), bf16::from_f32(half.to_f32()).to_bits());
            prop_assert_eq!(to_halves[index].to_bits(), f16::from_f32(brain.to_f32()).to_bits());
        }
    }

    #[test]
    fn integers_are_clamped(values in prop::collection::vec(prop_oneof![any::<i64>(), -300_i64..300], 1..1500)) {
        let (_, device) = late();
        let tensor = Tensor::from(values.clone());
        macro_rules! check {
            ($($to:ident)*) => {$({
                let cast = Cast::new(DType::I64, <$to as Element>::DTYPE).saturating();
                let clamped = through(&device, &tensor, casting(cast)).to_vec::<$to>().unwrap();
                for (value, clamped) in values.iter().zip(clamped) {
                    let (smallest, largest) = ($to::MIN as i128, $to::MAX as i128);
                    prop_assert_eq!(clamped as i128, i128::from(*value).clamp(smallest, largest));
                }
            })*};
        }
        check!(u8 u16 u32 u64 i8 i16 i32);
    }

    /// Cut anywhere: pieces in flight end within elements, blocks are small, several threads stage.
    /// catches: 223-cast-from-the-wrong-element, 224-cut-elements-written-whole
    #[test]
    fn pieces_of_any_size_fit_together(
        rows in 1_usize..40, columns in 1_usize..300, skip in 0_usize..5, transposed: bool,
        pace in prop::option::of(4096_usize..9000), pack: bool, to in 0..4_usize, copies in 1..4_usize,
    ) {
        let (late, device) = with(LateConfig::new("late"));
        device.set_staging_budget(1 << 20).unwrap();
        let (to, count) = (FLOATS[to], rows * (columns + skip));
        let whole = Tensor::from_vec((0..count).map(|index| index as f32 * 0.37 - 100.0).collect(), &[rows, columns + skip]).unwrap();
        let part = whole.narrow(1, skip, columns).unwrap();
        let part = if transposed { part.transpose(0, 1).unwrap() } else { part };
        let expected = narrowed(&part.to_vec::<f32>().unwrap(), to);
        let mut options = from_to(DType::F32, to).packing(pack);
        if let Some(pace) = pace {
            options = options.max_bytes_in_flight(pace);
        }
        let batch = || (0..copies).map(|_| (Tensor::from(vec![7_u8; 3]), part.contiguous().unwrap(), part.clone())).collect::<Vec<_>>();
        let there = start_copy(batch(), &device, options).unwrap().wait().unwrap();
        let back = start_copy(there, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        for (bytes, contiguous, strided) in back {
            prop_assert_eq!(bytes.to_bytes().unwrap(), [7; 3]);
            for cast in [contiguous, strided] {
                prop_assert_eq!((cast.dtype(), cast.shape()), (to, part.shape()));
                prop_assert!(cast.to_bytes().unwrap() == expected);
            }
        }
        no_violations(&late);
    }
}

#[test]
fn what_is_too_large_becomes_infinite_and_nan_stays() {
    let (_, device) = late();
    let wide =
        Tensor::from(vec![1e300, -1e300, f64::NAN, f64::NEG_INFINITY, -0.0, 65_519.9, 65_520.0, 1e-320]);
    let halves: Vec<f32> = cast_to::<f16>(&wide, &device).iter().map(|value| value.to_f32()).collect();
    assert_eq!((halves[0], halves[1], halves[3]), (f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY));
    assert!(halves[2].is_nan() && halves[4].is_sign_negative());
    assert_eq!(halves[4..], [0.0, 65_504.0, f32::INFINITY, 0.0]);
    let brains: Vec<f64> = cast_to::<bf16>(&wide, &device).iter().map(|value| value.to_f64()).collect();
    assert_eq!((brains[0], brains[1]), (f64::INFINITY, f64::NEG_INFINITY));
    assert!(brains[2].is_nan());
}

/// A product and a sum, each rounded: together in one step they would come to something else.
#[test]
fn images_are_scaled() {
    let (_, device) = late();
    let (scale, bias) = (1.0_f32 / 58.395, -123.675_f32 / 58.395);
    let image: Vec<u8> = (0..=255).cycle().take(1031).collect();
    let expected: Vec<f32> = image.iter().map(|byte| f32::from(*byte) * scale + bias).collect();
    for to in [DType::F32, DType::BF16, DType::F16] {
        let cast = Cast::new(DType::U8, to).scaled(scale, bias);
        let scaled = through(&device, &Tensor::from(image.clone()), casting(cast));
        assert_eq!(scaled.to_bytes().unwrap(), narrowed(&expected, to));
    }
    assert_eq!(cast_to::<f32>(&Tensor::from(vec![0_u8, 255]), &device), [0.0, 255.0]);
}

/// catches: 225-values-not-looked-at
#[test]
fn a_value_that_does_not_fit_is_refused_before_anything_is_taken() {
    let (late, device) = late();
    let mut values = vec![7_i32; 3000];
    values[2 * 1000 + 700] = 300;
    let matrix = Tensor::from_vec(values, &[3, 1000]).unwrap();
    let batch =
        || vec![Tensor::from(vec![1_i32]), matrix.narrow(1, 600, 300).unwrap(), Tensor::from(vec![2_i32])];
    let failed = start_copy(batch(), &device, from_to(DType::I32, DType::U8)).unwrap_err();
    let (error, back) = failed.into_parts();
    let (element, is) = (2 * 300 + 100, [3, 300]);
    assert!(
        matches!(&error, Error::DoesNotFit { path, element: at, value: 300, shape, from: DType::I32, to: DType::U8 } if path == "[1]" && *at == element && *shape == is),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("is 300, which uint8 cannot hold"), "{error}");
    for (back, given) in back.unwrap().iter().zip(batch()) {
        assert_eq!((back.dtype(), back.to_bytes().unwrap()), (DType::I32, given.to_bytes().unwrap()));
    }
    // Without it they fit.
    let rest = matrix.narrow(1, 0, 700).unwrap();
    assert_eq!(cast_to::<u8>(&rest, &device), [7; 2100]);
    assert_eq!(cast_to::<i64>(&matrix, &device)[2700], 300);
    no_violations(&late);
}

#[test]
fn the_first_value_that_does_not_fit_is_found_wherever_it_lies() {
    let values: Vec<u8> = (0..2000_i32).flat_map(|value| (value - 1700).to_le_bytes()).collect();
    for shift in 0..4 {
        let shifted = [vec![0; shift], values.clone()].concat();
        let found = |to| Cast::new(DType::I32, to).first_that_does_not_fit(&shifted[shift..]);
        assert_eq!(found(DType::U16), Some((0, -1700)));
        assert_eq!((found(DType::I16), found(DType::I64)), (None, None));
        let tail = Cast::new(DType::I32, DType::U8).first_that_does_not_fit(&shifted[shift + 1700 * 4..]);
        assert_eq!(tail, Some((256, 256)));
        assert_eq!(
            Cast::new(DType::I32, DType::U8).saturating().first_that_does_not_fit(&shifted[shift..]),
            None
        );
        assert_eq!(Cast::new(DType::F32, DType::F16).first_that_does_not_fit(&shifted[shift..]), None);
    }
}

#[test]
fn all_pairs_of_integers() {
    let (_, device) = late();
    for from in INTEGERS {
        let small =
            copied(&Tensor::from(vec![0_i64, 1, 127]), &Device::host(), from_to(DType::I64, from)).unwrap();
        for to in INTEGERS {
            let cast = through(&device, &small, from_to(from, to));
            assert_eq!(cast.dtype(), to);
            assert_eq!(
                copied(&cast, &Device::host(), from_to(to, DType::I64)).unwrap().to_vec::<i64>().unwrap(),
                [0, 1, 127]
            );
        }
    }
    assert_eq!(cast_to::<u64>(&Tensor::from(vec![i64::MAX]), &device), [i64::MAX as u64]);
    let negative = copied(&Tensor::from(vec![-1_i8]), &device, from_to(DType::I8, DType::U64));
    assert!(matches!(negative.unwrap_err().error(), Error::DoesNotFit { value: -1, .. }));
    let large = copied(&Tensor::from(vec![u64::MAX]), &device, from_to(DType::U64, DType::I64));
    assert!(matches!(large.unwrap_err().error(), Error::DoesNotFit { element: 0, .. }));
}

#[test]
fn only_the_casts_of_the_table_are_there() {
    let refused =
        |cast: Cast| matches!(casting(cast).validate(), Err(Error::InvalidOption { name: "cast", .. }));
    for from in DType::ALL.iter().copied() {
        for to in DType::ALL.iter().copied() {
            let is_there = from == to
                || FLOATS.contains(&from) && FLOATS.contains(&to)
                || INTEGERS.contains(&from) && INTEGERS.contains(&to)
                || from == DType::U8 && FLOATS[..3].contains(&to);
            assert_eq!(refused(Cast::new(from, to)), !is_there, "{from} to {to}");
        }
    }
    assert!(refused(Cast::new(DType::F32, DType::F16).scaled(1.0, 0.0)));
    assert!(refused(Cast::new(DType::F32, DType::F16).saturating()));
    assert!(refused(Cast::new(DType::U8, DType::F32).saturating()));
    let failed = copied(&Tensor::from(vec![1_u8]), &Device::host(), from_to(DType::Bool, DType::U8));
    let message = failed.unwrap_err().error().to_string();
    assert!(message.contains("bool to uint8"), "{message}");
    let eight = Tensor::empty(&[1], DType::F8E4M3FN, &Device::host()).unwrap();
    let failed = copied(&eight, &Device::host(), from_to(DType::F8E4M3FN, DType::F32));
    let message = failed.unwrap_err().error().to_string();
    assert!(message.contains("float8_e4m3fn to float32") && message.contains("copied as it is"), "{message}");
}

/// On the host as well: a tensor that need not be copied is, if its type is to be another one.
#[test]
fn what_is_there_already_is_cast_too() {
    let host = Device::host();
    let batch = vec![
        Tensor::from(vec![1.5_f32, -2.0]),
        Tensor::from(vec![1_u8]),
        Tensor::empty(&[0, 3], DType::F32, &host).unwrap(),
    ];
    let kept = batch[1].clone();
    let cast = start_copy(batch, &host, from_to(DType::F32, DType::BF16)).unwrap().wait().unwrap();
    assert_eq!(cast[0].as_slice::<bf16>().unwrap(), [bf16::from_f32(1.5), bf16::from_f32(-2.0)]);
    assert!(cast[1].shares_memory_with(&kept));
    assert_eq!((cast[2].dtype(), cast[2].shape()), (DType::BF16, &[0, 3][..]));
    let nothing =
        copied(&Tensor::empty(&[0], DType::I64, &host).unwrap(), &host, from_to(DType::I64, DType::I32));
    assert_eq!(nothing.unwrap().dtype(), DType::I32);

    let never = from_to(DType::F32, DType::BF16).policy(CopyPolicy::Never);
    let refused = copied(&Tensor::from(vec![1.0_f32]), &host, never.clone()).unwrap_err();
    let text = "the value: cannot cast float32 to bfloat16 without copying; allow copying to do so, or copy float32 without a cast";
    assert_eq!(refused.error().to_string(), text);
    assert!(copied(&Tensor::from(vec![1.0_f64]), &host, never).is_ok());
}

#[test]
fn tensors_over_the_same_memory_share_it_if_they_become_the_same() {
    let (late, device) = late();
    let words = Tensor::from((0..64_u16).collect::<Vec<_>>());
    let batch = vec![words.clone(), words.clone(), words.narrow(0, 0, 32).unwrap()];
    let options = || from_to(DType::U16, DType::U8);
    let there = start_copy(batch, &device, options()).unwrap().wait().unwrap();
    assert!(there[0].shares_memory_with(&there[1]));
    for (index, count) in [(0, 64), (1, 64), (2, 32)] {
        assert_eq!(
            through(&device, &there[index], CopyOptions::default()).to_bytes().unwrap(),
            (0..count).collect::<Vec<u8>>()
        );
    }
    no_violations(&late);
}

#[test]
fn tensors_of_devices_are_refused() {
    let (late, device) = late();
    let batch = || vec![Tensor::from(vec![1_u8]), on(&device, &[1, 2, 3])];
    for to in [&Device::host(), &device] {
        let failed = start_copy(batch(), to, from_to(DType::U8, DType::F32)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Unsupported);
        let back = failed.into_parts().1.unwrap();
        assert_eq!((back[0].to_bytes().unwrap(), back[1].device_id().unwrap()), (vec![1], device.id()));
    }
    no_violations(&late);
}

/// catches: 226-type-of-held-memory
#[test]
fn memory_that_is_there_is_of_the_type_that_comes_out() {
    let (late, device) = late();
    let options = || from_to(DType::F32, DType::BF16);
    let batch = |first: f32| vec![Tensor::from(vec![first, 2.0, 3.0]), Tensor::from(vec![7_u8; 5])];
    let held = start_copy(batch(0.0), &device, options()).unwrap().wait().unwrap();
    let address = held[0].address().unwrap();
    let held = start_copy_into(batch(1.5), held, options()).unwrap().wait().unwrap();
    assert_eq!((held[0].dtype(), held[0].address().unwrap()), (DType::BF16, address));
    let back = start_copy(held.clone(), &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(back[0].to_bytes().unwrap(), narrowed(&[1.5, 2.0, 3.0], DType::BF16));

    drop(back);
    let failed = start_copy_into(batch(1.0), held, CopyOptions::default()).unwrap_err();
    let error = failed.error();
    assert!(
        matches!(error, Error::DestinationMismatch { path, dtype: DType::F32, into_dtype: DType::BF16, .. } if path == "[0]"),
        "{error}"
    );
    no_violations(&late);
}

#[test]
fn every_device_gets_the_same() {
    let (late, first, second) = support::two(LateConfig::new("late"));
    let batch =
        vec![Tensor::from((0..5000).map(|value| value as f32).collect::<Vec<_>>()), Tensor::from(vec![1_u8])];
    let devices = [first, Device::host(), second];
    let copies = start_copy_to_all(batch, &devices, from_to(DType::F32, DType::F16)).unwrap();
    for copy in copies {
        let there = copy.wait().unwrap();
        let back = start_copy(there, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        let expected: Vec<f32> = (0..5000).map(|value| value as f32).collect();
        assert_eq!(
            (back[0].dtype(), back[0].to_bytes().unwrap()),
            (DType::F16, narrowed(&expected, DType::F16))
        );
        assert_eq!(back[1].to_bytes().unwrap(), [1]);
    }
    no_violations(&late);
}

#[test]
fn batches_are_cast_ahead_and_their_memory_serves_again() {
    let (late, device) = late();
    let batches = (0..8).map(|turn| vec![Tensor::from(vec![turn as f32; 100])]);
    let options = PrefetchOptions::default().depth(1).copy(from_to(DType::F32, DType::F16));
    let mut items = batches.prefetch(&device, options).reuse();
    for turn in 0..8 {
        let item = items.next().unwrap().unwrap();
        let back = copied(&item[0], &Device::host(), CopyOptions::default()).unwrap();
        assert_eq!(back.to_bytes().unwrap(), narrowed(&[turn as f32; 100], DType::F16));
    }
    assert!(items.next().is_none());
    assert!(items.stats().reused > 0);
    no_violations(&late);
}

/// Elements that are repeated are looked at once: this one has more than anybody could look at.
/// catches: 227-element-of-the-part-told
#[test]
fn repeated_elements_are_looked_at_once() {
    let host = Device::host();
    let values = Tensor::from_vec(vec![1_i64, 2, 3, 400, 5, 6], &[2, 3]).unwrap();
    let repeated = values.as_strided(&[2, 4, 3], &[3, 0, 1], 0).unwrap();
    let failed = copied(&repeated, &host, from_to(DType::I64, DType::U8)).unwrap_err();
    let first = 4 * 3;
    assert!(
        matches!(failed.error(), Error::DoesNotFit { element, value: 400, .. } if *element == first),
        "{failed:#}"
    );
    let endless = Tensor::from(vec![1_u8]).as_strided(&[isize::MAX as usize], &[0], 0).unwrap();
    let failed = copied(&endless, &host, from_to(DType::U8, DType::I64)).unwrap_err();
    assert!(matches!(failed.error(), Error::SizeOverflow { .. }), "{failed:#}");
    let failed =
        copied(&endless, &host, from_to(DType::U8, DType::I8).policy(CopyPolicy::Never)).unwrap_err();
    assert!(matches!(failed.error(), Error::NeverCast { .. }), "{failed:#}");
}

#[test]
fn errors_name_the_tensor() {
    let (_, device) = late();
    let batch = || {
        BTreeMap::from([
            ("images", vec![on(&device, &[1])]),
            ("labels", vec![Tensor::from(vec![1_i64]), Tensor::from(vec![-1_i64])]),
        ])
    };
    let failed = start_copy(batch(), &device, from_to(DType::I64, DType::U8)).unwrap_err();
    assert!(
        failed.error().to_string().starts_with(r#"["labels"][1]: element 0 of shape [1] is -1, which uint8"#),
        "{failed:#}"
    );
    let failed = start_copy(batch(), &Device::host(), from_to(DType::U8, DType::F32)).unwrap_err();
    assert!(failed.error().to_string().starts_with(r#"["images"][0] to copy: late:"#), "{failed:#}");
    let never = |to| from_to(DType::I64, to).policy(CopyPolicy::Never);
    let there = BTreeMap::from([("labels", vec![Tensor::scalar(1_u8), Tensor::from(vec![1_i64])])]);
    let failed = start_copy(there.clone(), &Device::host(), never(DType::I32)).unwrap_err();
    assert!(
        failed
            .error()
            .to_string()
            .starts_with(r#"["labels"][1]: cannot cast int64 to int32 without copying"#),
        "{failed:#}"
    );
    let failed = start_copy(there, &device, never(DType::I32)).unwrap_err();
    assert!(matches!(failed.error(), Error::NeverCopy { .. }), "{failed:#}");
}

#[test]
fn the_last_cast_of_a_type_counts() {
    let host = Device::host();
    let options = from_to(DType::F32, DType::I32).cast(Cast::new(DType::F32, DType::F16));
    let cast = copied(&Tensor::from(vec![1.0_f32]), &host, options.clone()).unwrap();
    assert_eq!(cast.dtype(), DType::F16);
    let kept =
        copied(&Tensor::from(vec![1.0_f32]), &host, options.cast(Cast::new(DType::F32, DType::F32))).unwrap();
    assert_eq!(kept.dtype(), DType::F32);
    let nothing = casting(Cast::new(DType::F32, DType::F32).saturating()).validate().unwrap_err();
    assert!(nothing.to_string().contains("ask for no saturation"), "{nothing}");
    let kept = Tensor::from(vec![-1_i32]);
    let same = copied(&kept, &host, casting(Cast::new(DType::I32, DType::I32).saturating())).unwrap();
    assert!(same.shares_memory_with(&kept) && same.dtype() == DType::I32);
    let none = from_to(DType::I32, DType::F32).validate().unwrap_err();
    assert!(none.to_string().ends_with("name one of these, or cast it where it is used"), "{none}");
}
