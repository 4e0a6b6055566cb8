//! Conversion of elements on the way.

use half::{bf16, f16};
use libtest_mimic::Failed;
use transship::{
    Cast, CopyOptions, CopyPolicy, DType, Error, ErrorKind, Tensor, start_copy, start_copy_into,
    start_copy_to_all,
};

use crate::backends::Need::{OwnMemory, SecondDevice};
use crate::bed::Bed;
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_batch_of_many_types),
        case!(one_large_tensor),
        case!(pieces_in_flight_that_cut_elements),
        case!(into_memory_that_is_there),
        case!(values_that_do_not_fit),
        case!(tensors_of_devices).needs(OwnMemory),
        case!(strided_tensors_of_devices).needs(OwnMemory),
        case!(devices_cast_as_the_host_does).needs(OwnMemory),
        case!(large_tensors_of_devices).needs(OwnMemory),
        case!(elements_of_devices_get_larger_in_pieces).needs(OwnMemory),
        case!(out_of_a_device_into_memory_that_is_there).needs(OwnMemory),
        case!(to_another_device_and_to_all).needs(SecondDevice),
        case!(integers_of_devices_that_may_not_fit).needs(OwnMemory),
        case!(images_become_floats_on_the_way_up),
        case!(images_and_labels_through_few_blocks),
        case!(images_take_a_launch_for_each_block),
    ]
}

fn casts(bed: &Bed) -> CopyOptions {
    bed.options()
        .cast(Cast::new(DType::F32, DType::BF16))
        .cast(Cast::new(DType::F64, DType::F16))
        .cast(Cast::new(DType::I64, DType::I8).saturating())
        .cast(Cast::new(DType::U8, DType::F32).scaled(0.5, -1.0))
}

/// What the casts make of a tensor on the host, by other means.
fn expected(tensor: &Tensor) -> Vec<u8> {
    match tensor.dtype() {
        DType::F32 => bytes(tensor.to_vec::<f32>(), |value| bf16::from_f32(value).to_ne_bytes()),
        DType::F64 => bytes(tensor.to_vec::<f64>(), |value| f16::from_f64(value).to_ne_bytes()),
        DType::I64 => bytes(tensor.to_vec::<i64>(), |value| (value.clamp(-128, 127) as i8).to_ne_bytes()),
        DType::U8 => bytes(tensor.to_vec::<u8>(), |value| (f32::from(value) * 0.5 - 1.0).to_ne_bytes()),
        _ => tensor.to_bytes().expect("a tensor on the host"),
    }
}

fn bytes<T, const N: usize>(values: Result<Vec<T>, Error>, of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.expect("a tensor on the host").into_iter().flat_map(of).collect()
}

/// Numbers that 16 bits hold exactly or next to it, in different shapes, contiguous and not.
fn batch(bed: &Bed) -> Vec<Tensor> {
    let number = |index: usize| (index as f64) * 0.25 - 40.0;
    (0..48).map(|index| tensor(bed, index, &[index % 5 + 1, 2 * index + 1], number)).collect()
}

fn tensor(bed: &Bed, kind: usize, shape: &[usize], number: impl Fn(usize) -> f64) -> Tensor {
    let values = 0..shape.iter().product();
    let tensor = match kind % 5 {
        0 => Tensor::from_vec(values.map(|index| number(index) as f32 * 1.001).collect(), shape),
        1 => Tensor::from_vec(values.map(number).collect(), shape),
        2 => Tensor::from_vec(values.map(|index| number(index) as i64 * 5).collect(), shape),
        3 => Ok(bed.tensor(DType::U8, shape)),
        _ => Ok(bed.tensor(DType::I16, shape)),
    };
    let tensor = tensor.expect("as many values as the shape says");
    if kind.is_multiple_of(3) { tensor.transpose(0, 1).expect("two dimensions") } else { tensor }
}

/// Up with the casts, and down without.
fn round_trip(bed: &Bed, batch: Vec<Tensor>, options: CopyOptions) -> Result<(), Failed> {
    let expected: Vec<_> = batch.iter().map(|tensor| (tensor.shape().to_vec(), expected(tensor))).collect();
    let there = start_copy(batch, &bed.device, options)?.wait()?;
    for ((shape, bytes), tensor) in expected.iter().zip(bed.down(there)?) {
        assert_eq!(tensor.shape(), shape);
        assert!(tensor.to_bytes()? == *bytes, "{} of shape {shape:?}", tensor.dtype());
    }
    Ok(())
}

fn a_batch_of_many_types(bed: &Bed) -> Result<(), Failed> {
    round_trip(bed, batch(bed), casts(bed))?;
    round_trip(bed, batch(bed), casts(bed).packing(false))
}

fn one_large_tensor(bed: &Bed) -> Result<(), Failed> {
    let large = |kind| tensor(bed, kind, &[3, 250_001], |index| (index % 1999) as f64);
    [0, 3].into_iter().try_for_each(|kind| round_trip(bed, vec![large(kind)], casts(bed)))
}

fn pieces_in_flight_that_cut_elements(bed: &Bed) -> Result<(), Failed> {
    let options = casts(bed).max_bytes_in_flight(4099);
    round_trip(
        bed,
        vec![tensor(bed, 3, &[3, 7001], |_| 0.0), tensor(bed, 0, &[5, 4999], |index| index as f64)],
        options,
    )
}

fn into_memory_that_is_there(bed: &Bed) -> Result<(), Failed> {
    let mut held = start_copy(batch(bed), &bed.device, casts(bed))?.wait()?;
    for _ in 0..2 {
        let value = batch(bed);
        let expected: Vec<_> = value.iter().map(expected).collect();
        held = start_copy_into(value, held, casts(bed))?.wait()?;
        for (bytes, tensor) in expected.iter().zip(bed.down(held.clone())?) {
            assert!(tensor.to_bytes()? == *bytes, "{}", tensor.dtype());
        }
    }
    Ok(())
}

fn values_that_do_not_fit(bed: &Bed) -> Result<(), Failed> {
    let value = vec![Tensor::from(vec![1_i64, 200, 3])];
    let options = bed.options().cast(Cast::new(DType::I64, DType::I8));
    let failed = start_copy(value, &bed.device, options).expect_err("200 does not fit");
    assert!(matches!(failed.error(), Error::DoesNotFit { element: 1, value: 200, .. }), "{failed}");
    assert_eq!(failed.into_parts().1.ok_or("nothing came back")?[0].to_vec::<i64>()?, [1, 200, 3]);
    bed.still_works()
}

/// One of the causes has these words.
fn assert_says(failed: &(dyn std::error::Error + 'static), words: &str) {
    let causes = std::iter::successors(Some(failed), |failed| failed.source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    assert!(causes.iter().any(|cause| cause.contains(words)), "{causes:?}");
}

/// Whether the device casts what lies on it. Where it does not, that is refused.
fn device_casts(bed: &Bed) -> Result<bool, Failed> {
    if bed.device.limits().gathers() {
        return Ok(true);
    }
    let there = bed.up(vec![bed.tensor(DType::F32, &[9])])?;
    let failed = start_copy(there, &bed.host, casts(bed)).expect_err("this device has no kernel for it");
    assert_eq!(failed.error().kind(), ErrorKind::Unsupported, "{failed}");
    assert_says(&failed, "copy it to the host without the cast");
    let back = failed.into_parts().1.ok_or("nothing came back")?;
    assert_eq!((back[0].dtype(), back[0].device_id()?), (DType::F32, bed.device.id()));
    Ok(false)
}

/// Down to the host where they lie on a device, and with these contents.
fn assert_contents(bed: &Bed, tensors: Vec<Tensor>, expected: &[Vec<u8>]) -> Result<(), Failed> {
    assert_eq!(tensors.len(), expected.len());
    for (index, (tensor, expected)) in bed.down(tensors)?.iter().zip(expected).enumerate() {
        assert!(tensor.is_contiguous());
        assert!(tensor.to_bytes()? == *expected, "{index}: {} of shape {:?}", tensor.dtype(), tensor.shape());
    }
    Ok(())
}

fn tensors_of_devices(bed: &Bed) -> Result<(), Failed> {
    if !device_casts(bed)? {
        return Ok(());
    }
    let batch = batch(bed);
    let made: Vec<_> = batch.iter().map(expected).collect();
    let there = bed.up(batch)?;
    for options in [casts(bed), casts(bed).packing(false), casts(bed).max_bytes_in_flight(4099)] {
        for target in [&bed.host, &bed.device] {
            let (cast, report) = bed.copy(there.clone(), target, options.clone())?;
            assert!(report.gathered > 0, "{report}");
            assert_contents(bed, cast, &made)?;
        }
    }
    let refused =
        start_copy(there, &bed.host, casts(bed).pinned_staging(false)).expect_err("no kernel reaches it");
    assert_says(&refused, "leave pinned_staging on");
    Ok(())
}

/// Views of one tensor on the device: gaps, rows of odd sizes, elements that are repeated, and begin anywhere.
fn strided_tensors_of_devices(bed: &Bed) -> Result<(), Failed> {
    if !device_casts(bed)? {
        return Ok(());
    }
    let whole = [0, 1, 2, 3].map(|kind| tensor(bed, kind + 5, &[13, 36], |index| index as f64 - 200.0));
    let views = |whole: &[Tensor]| -> Result<Vec<Tensor>, Error> {
        let mut views = Vec::new();
        for tensor in whole {
            let tensor = tensor.reshape(&[13, 36])?;
            views.push(tensor.slice(1, 4..32, 1)?);
            views.push(tensor.slice(1, 3..34, 1)?);
            views.push(tensor.slice(1, 1..36, 5)?.slice(0, 2..13, 3)?);
            views.push(tensor.transpose(0, 1)?);
            views.push(tensor.as_strided(&[7, 30], &[0, 1], 200)?);
            views.push(tensor.as_strided(&[3, 2, 4], &[40, 0, 8], 6)?);
        }
        Ok(views)
    };
    let whole: Vec<_> = whole.into_iter().map(|tensor| tensor.contiguous()).collect::<Result<_, _>>()?;
    let made: Vec<_> = views(&whole)?.iter().map(expected).collect();
    let there = views(&bed.up(whole)?)?;
    for options in [casts(bed), casts(bed).max_bytes_in_flight(4101)] {
        for target in [&bed.host, &bed.device] {
            let (cast, _) = bed.copy(there.clone(), target, options.clone())?;
            assert_contents(bed, cast, &made)?;
        }
    }
    Ok(())
}

/// All pairs of types, with all elements of 16 bits, and bits at random for larger ones.
fn devices_cast_as_the_host_does(bed: &Bed) -> Result<(), Failed> {
    use DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    if !device_casts(bed)? {
        return Ok(());
    }
    let (floats, integers) = (&[F16, BF16, F32, F64][..], &[U8, U16, U32, U64, I8, I16, I32, I64][..]);
    let pairs = |types: &'static [DType]| types.iter().flat_map(|from| types.iter().map(|to| (*from, *to)));
    let casts = pairs(floats).map(|(from, to)| Cast::new(from, to));
    let casts = casts.chain(pairs(integers).map(|(from, to)| Cast::new(from, to).saturating()));
    let casts = casts.chain([F16, BF16, F32].map(|to| Cast::new(U8, to).scaled(1.7, -0.3)));
    let casts = casts.chain([F16, BF16, F32].map(|to| Cast::new(U8, to)));
    for cast in casts.filter(|cast| cast.from_dtype() != cast.to_dtype()) {
        let elements = bits(bed, cast.from_dtype())?;
        let options = CopyOptions::default().cast(cast);
        let on_host = start_copy(elements.clone(), &bed.host, options.clone())?.wait()?.to_bytes()?;
        let there = bed.up(elements.clone())?;
        let cast_there = start_copy(there, &bed.host, options)?.wait()?.to_bytes()?;
        let size = cast.to_dtype().size();
        if let Some(index) = (0..on_host.len()).find(|index| on_host[*index] != cast_there[*index]) {
            let (element, of) = (index / size, |bytes: &[u8]| bytes[index / size * size..][..size].to_vec());
            let source = cast.from_dtype().size();
            let from = elements.to_bytes()?[element * source..][..source].to_vec();
            return Err(
                format!("{cast:?}: {from:x?} is {:x?}, not {:x?}", of(&cast_there), of(&on_host)).into()
            );
        }
    }
    Ok(())
}

/// Elements of a type: each that there is of 16 bits or fewer; of others the borders of casts, and some at random.
fn bits(bed: &Bed, dtype: DType) -> Result<Tensor, Error> {
    let all = |count: u32| (0..count).collect::<Vec<_>>();
    let bytes: Vec<u8> = match dtype.size() {
        1 => all(256).iter().map(|bits| *bits as u8).collect(),
        2 => all(1 << 16).iter().flat_map(|bits| (*bits as u16).to_ne_bytes()).collect(),
        size => {
            let mut bytes = Vec::new();
            // Each power of two and what lies beside it, of both signs: ties, the least and the largest of each type.
            for shift in 0..8 * size {
                for beside in -3_i64..=3 {
                    for sign in [0, 1_u64 << (8 * size - 1)] {
                        let bits = (1_u64 << shift).wrapping_add_signed(beside) ^ sign;
                        bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
                    }
                }
            }
            for half in 0..1_u64 << 16 {
                // Each number of 16 bits, and a tie between it and the next one, nearly and exactly.
                let (single, double) =
                    (bf16::from_bits(half as u16).to_f32(), f64::from(bf16::from_bits(half as u16).to_f32()));
                match size {
                    4 => bytes.extend_from_slice(
                        &(single.to_bits() ^ [0x8000, 0x7fff, 0x8001, 0x1000][half as usize % 4])
                            .to_le_bytes(),
                    ),
                    _ => bytes.extend_from_slice(
                        &(double.to_bits()
                            ^ [1 << 44, (1 << 44) - 1, (1 << 44) + 1, 1 << 28][half as usize % 4])
                            .to_le_bytes(),
                    ),
                }
            }
            bytes.extend(bed.bytes(size << 14).to_bytes()?);
            bytes
        }
    };
    let count = bytes.len() / dtype.size();
    Tensor::from_owner(bytes, dtype, &[count])
}

/// In parts, and with launches of their own; into ordinary memory as well.
fn large_tensors_of_devices(bed: &Bed) -> Result<(), Failed> {
    if !device_casts(bed)? {
        return Ok(());
    }
    let large = vec![
        tensor(bed, 5, &[3, 250_001], |index| (index % 1999) as f64),
        tensor(bed, 8, &[2, 150_001], |_| 0.0),
        tensor(bed, 10, &[31, 4001], |index| (index % 999) as f64),
        tensor(bed, 0, &[31, 4001], |index| (index % 999) as f64),
    ];
    let made: Vec<_> = large.iter().map(expected).collect();
    let there = bed.up(large)?;
    for options in [casts(bed), casts(bed).max_bytes_in_flight(100_003)] {
        for target in [&bed.host, &bed.device] {
            let (cast, _) = bed.copy(there.clone(), target, options.clone())?;
            assert_contents(bed, cast, &made)?;
        }
    }
    Ok(())
}

/// Pieces end within an element: 4100 bytes are no multiple of 8.
fn elements_of_devices_get_larger_in_pieces(bed: &Bed) -> Result<(), Failed> {
    if !device_casts(bed)? {
        return Ok(());
    }
    let casts = [(DType::F32, DType::F64), (DType::I16, DType::I64), (DType::U8, DType::F32)];
    let options =
        casts.into_iter().fold(bed.options(), |options, (from, to)| options.cast(Cast::new(from, to)));
    let views = |tensors: &[Tensor]| -> Result<Vec<Tensor>, Error> {
        let parts = tensors.iter().map(|tensor| tensor.narrow(1, 1, 35)?.slice(0, 1..99, 2));
        tensors.iter().cloned().map(Ok).chain(parts).collect()
    };
    let here: Vec<_> = casts.iter().map(|(from, _)| bed.tensor(*from, &[99, 37])).collect();
    let there = views(&bed.up(here.clone())?)?;
    let always = options.clone().policy(CopyPolicy::Always);
    let made = start_copy(views(&here)?, &bed.host, always)?.wait()?;
    let made: Vec<_> = made.iter().map(Tensor::to_bytes).collect::<Result<_, _>>()?;
    for options in [options.clone(), options.max_bytes_in_flight(4100)] {
        for target in [&bed.host, &bed.device] {
            let (cast, _) = bed.copy(there.clone(), target, options.clone())?;
            assert_contents(bed, cast, &made)?;
        }
    }
    Ok(())
}

fn out_of_a_device_into_memory_that_is_there(bed: &Bed) -> Result<(), Failed> {
    if !device_casts(bed)? {
        return Ok(());
    }
    for target in [&bed.host, &bed.device] {
        let mut held = start_copy(batch(bed), target, casts(bed).policy(CopyPolicy::Always))?.wait()?;
        for _ in 0..2 {
            let value = batch(bed);
            let made: Vec<_> = value.iter().map(expected).collect();
            held = start_copy_into(bed.up(value)?, held, casts(bed))?.wait()?;
            assert_contents(bed, held.clone(), &made)?;
        }
    }
    Ok(())
}

fn to_another_device_and_to_all(bed: &Bed) -> Result<(), Failed> {
    if !device_casts(bed)? {
        return Ok(());
    }
    let second = bed.second()?;
    let batch = batch(bed);
    let made: Vec<_> = batch.iter().map(expected).collect();
    let there = bed.up(batch.clone())?;
    let (cast, _) = bed.copy(there.clone(), second, casts(bed))?;
    assert_contents(bed, cast, &made)?;
    for value in [there, batch] {
        let targets = [bed.device.clone(), second.clone()];
        for copy in start_copy_to_all(value, &targets, casts(bed))? {
            assert_contents(bed, copy.wait()?, &made)?;
        }
    }
    Ok(())
}

fn integers_of_devices_that_may_not_fit(bed: &Bed) -> Result<(), Failed> {
    if !device_casts(bed)? {
        return Ok(());
    }
    let there = bed.up(vec![Tensor::from(vec![1_i64, 2, 3])])?;
    let narrow = Cast::new(DType::I64, DType::I8);
    let refused =
        start_copy(there, &bed.host, CopyOptions::default().cast(narrow)).expect_err("not looked at");
    assert_says(&refused, "say saturating()");
    let there = refused.into_value().ok_or("nothing came back")?;
    let widen = CopyOptions::default().cast(Cast::new(DType::I64, DType::I8).saturating());
    assert_eq!(start_copy(there, &bed.host, widen)?.wait()?[0].to_vec::<i8>()?, [1, 2, 3]);
    let there = bed.up(vec![Tensor::from(vec![-7_i16, 2])])?;
    let widen = CopyOptions::default().cast(Cast::new(DType::I16, DType::I64));
    assert_eq!(start_copy(there, &bed.host, widen)?.wait()?[0].to_vec::<i64>()?, [-7, 2]);
    Ok(())
}

/// Where the device casts, they go up as they are; beside tensors that do not, large and small, strided, and in pieces that cut them. One
/// ends within a granule.
///
/// catches: 433-what-lies-behind-begins-within-a-granule
fn images_become_floats_on_the_way_up(bed: &Bed) -> Result<(), Failed> {
    let batch = || {
        let image = bed.tensor(DType::U8, &[500, 3, 301]);
        let rows = image.slice(2, 0..300, 1).expect("300 of 301");
        let small = bed.tensor(DType::U8, &[99]);
        let odd = bed.tensor(DType::U8, &[600_001]);
        vec![bed.tensor(DType::I16, &[77]), image, odd, small, rows, bed.tensor(DType::I16, &[200_001])]
    };
    let options = [
        casts(bed),
        casts(bed).packing(false),
        casts(bed).max_bytes_in_flight(200_002),
        bed.options().cast(Cast::new(DType::U8, DType::U16)),
    ];
    for (index, options) in options.into_iter().enumerate() {
        let value = batch();
        let made = value.iter().map(|tensor| match tensor.dtype() {
            DType::U8 if index == 3 => bytes(tensor.to_vec::<u8>(), |value| u16::from(value).to_ne_bytes()),
            _ => expected(tensor),
        });
        let made: Vec<_> = made.collect();
        let (there, report) = bed.copy(value, &bed.device, options)?;
        let goes_up = bed.device.limits().gathers();
        assert_eq!(report.gathered > 0, goes_up, "{report}");
        assert_contents(bed, there, &made)?;
    }
    Ok(())
}

/// Through blocks that are few and small: images of which many are side by side, and labels between them.
fn images_and_labels_through_few_blocks(bed: &Bed) -> Result<(), Failed> {
    let bed = bed.alone()?;
    let mut batch: Vec<_> = (0..40).map(|index| bed.tensor(DType::U8, &[3, 64, 50 + index / 8])).collect();
    batch.insert(20, bed.tensor(DType::I16, &[7]));
    batch.push(bed.tensor(DType::U8, &[700_001]));
    batch.push(bed.tensor(DType::I16, &[150_000]));
    let made: Vec<_> = batch.iter().map(expected).collect();
    for budget in [1 << 20, 300_000, 64 << 10] {
        bed.device.set_staging_budget(budget)?;
        let (there, report) = bed.copy(batch.clone(), &bed.device, casts(&bed))?;
        let goes_up = bed.device.limits().gathers();
        assert_eq!(report.gathered > 0, goes_up, "{report}");
        assert_contents(&bed, there, &made)?;
    }
    Ok(())
}

/// As many as there are blocks of what crosses the link: 4 MiB, of which 16 come out.
fn images_take_a_launch_for_each_block(bed: &Bed) -> Result<(), Failed> {
    let bed = bed.alone()?;
    let batch: Vec<_> = (0..4).map(|_| bed.bytes(1 << 20)).collect();
    let made: Vec<_> = batch.iter().map(expected).collect();
    let before = bed.device.counters();
    let (there, report) = bed.copy(batch, &bed.device, casts(&bed))?;
    if bed.device.limits().gathers() {
        assert!(report.gathered <= 8, "{report}");
        // A kernel that runs beside other copies may take some of its own.
        let launches = bed.device.limits().gather_strided.map_or(report.copies, |_| report.gathered);
        assert_eq!(report.copies, launches, "{report}");
        assert_eq!(report.copied_bytes, 4 << 20, "{report}");
        assert!(bed.device.counters().bytes_up >= before.bytes_up + (4 << 20));
    }
    assert_contents(&bed, there, &made)
}
