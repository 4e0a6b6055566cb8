//! Bad input: a typed error with the values in it, nothing lost, and the next copy works.

use libtest_mimic::Failed;
use transship::{CopyOptions, DType, Device, DeviceId, Error, Tensor, start_copy};

use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(alignment_that_is_no_power_of_two),
        case!(chunks_of_no_bytes),
        case!(pace_below_a_page),
        case!(name_that_is_none),
        case!(driver_that_is_not_compiled_in),
        case!(ordinal_that_does_not_exist),
        case!(size_that_cannot_be_counted),
        case!(tensor_larger_than_the_device),
        case!(copy_larger_than_the_device),
        case!(data_on_the_device_is_not_read_by_the_host),
    ]
}

/// The error of a copy with such options; its structure must be back.
fn refused(bed: &Bed, options: CopyOptions) -> Result<Error, Failed> {
    let mut sent = bed.batch(4);
    let expected = Contents::of_all(&mut sent);
    let failed = start_copy(sent, &bed.device, options).expect_err("options that cannot be");
    let (error, back) = failed.into_parts();
    assert_same(&expected, &Contents::of_all(&mut back.expect("the structure comes back")));
    bed.still_works()?;
    Ok(error)
}

#[track_caller]
fn assert_names(error: &Error, option: &str, text: &str) {
    assert!(
        matches!(error, Error::InvalidOption { name, value, .. } if *name == option && value == text),
        "{error}"
    );
    let words = error.to_string();
    assert!(words.contains(option) && words.contains(text), "{words}");
}

fn alignment_that_is_no_power_of_two(bed: &Bed) -> Result<(), Failed> {
    for bytes in [0, 12, 48, usize::MAX] {
        let error = refused(bed, bed.options().packed_alignment(bytes))?;
        assert_names(&error, "packed_alignment", &bytes.to_string());
    }
    Ok(())
}

fn chunks_of_no_bytes(bed: &Bed) -> Result<(), Failed> {
    assert_names(&refused(bed, bed.options().max_chunk_bytes(0))?, "max_chunk_bytes", "0");
    Ok(())
}

fn pace_below_a_page(bed: &Bed) -> Result<(), Failed> {
    for bytes in [0, 1, 4095] {
        assert_names(
            &refused(bed, bed.options().max_bytes_in_flight(bytes))?,
            "max_bytes_in_flight",
            &bytes.to_string(),
        );
    }
    Ok(())
}

fn name_that_is_none(bed: &Bed) -> Result<(), Failed> {
    for text in ["", "CUDA:0", ":1", "cuda:x", "cuda:-1", "host:1"] {
        let error = text.parse::<DeviceId>().expect_err("no name");
        assert_eq!(error.text, text, "{error}");
    }
    assert_eq!(bed.device.id().to_string().parse::<DeviceId>()?, bed.device.id());
    Ok(())
}

fn driver_that_is_not_compiled_in(bed: &Bed) -> Result<(), Failed> {
    let error = Device::open("nosuch:0".parse()?).expect_err("no such driver");
    let Error::UnknownDriver { name, known } = &error else { panic!("{error}") };
    assert_eq!(name, "nosuch");
    assert!(known.split(", ").any(|known| known == bed.device.id().driver()), "{error}");
    bed.still_works()
}

fn ordinal_that_does_not_exist(bed: &Bed) -> Result<(), Failed> {
    let driver = bed.device.id().driver().to_owned();
    let count = transship::drivers().iter().find(|info| info.name == driver).map(|info| info.devices);
    if bed.device.is_host() {
        // There is one, and names of others are none.
        let error = DeviceId::new(&driver, 4000).expect_err("there is one host");
        assert!(matches!(Error::from(error), Error::InvalidDeviceId { .. }));
        return bed.still_works();
    }
    let absent = DeviceId::new(&driver, 4000)?;
    let error = Device::open(absent).expect_err("nobody has so many devices");
    assert!(
        matches!(error, Error::NoSuchDevice { device, count: found } if device == absent && Some(found) == count),
        "{error}"
    );
    bed.still_works()
}

fn size_that_cannot_be_counted(bed: &Bed) -> Result<(), Failed> {
    let shape = [usize::MAX / 4, 8];
    for made in
        [Tensor::empty(&shape, DType::F32, &bed.device), Tensor::zeros(&shape, DType::F32, &bed.device)]
    {
        let error = made.expect_err("more bytes than a word can count");
        assert!(matches!(&error, Error::SizeOverflow { shape: found, .. } if found[..] == shape), "{error}");
    }
    bed.still_works()
}

/// A petabyte.
const TOO_MUCH: usize = 1 << 50;

#[track_caller]
fn assert_says_how_much(error: &Error) {
    let asked = match error {
        Error::OutOfMemory { requested, .. } | Error::TooLarge { requested, .. } => *requested,
        _ => panic!("{error}"),
    };
    assert!(asked >= TOO_MUCH && error.to_string().contains(&asked.to_string()), "{error}");
}

fn tensor_larger_than_the_device(bed: &Bed) -> Result<(), Failed> {
    assert_says_how_much(&Tensor::empty(&[TOO_MUCH], DType::U8, &bed.device).expect_err("a petabyte"));
    assert_says_how_much(&Tensor::zeros(&[TOO_MUCH], DType::U8, &bed.device).expect_err("a petabyte"));
    bed.still_works()
}

/// One byte on the host, repeated a petabyte of times.
fn copy_larger_than_the_device(bed: &Bed) -> Result<(), Failed> {
    let huge = Tensor::from(vec![5_u8]).as_strided(&[TOO_MUCH], &[0], 0)?;
    let mut small = bed.batch(3);
    let expected = Contents::of_all(&mut small);
    let started = start_copy((small, huge), &bed.device, bed.options());
    let failed = started.and_then(|handle| handle.wait()).expect_err("a petabyte");
    assert_says_how_much(failed.error());
    let (mut small, huge) = failed.into_value().expect("the structure comes back");
    assert_same(&expected, &Contents::of_all(&mut small));
    assert_eq!(huge.narrow(0, 77, 2)?.to_vec::<u8>()?, [5, 5]);
    bed.still_works()
}

fn data_on_the_device_is_not_read_by_the_host(bed: &Bed) -> Result<(), Failed> {
    let there = bed.up(bed.tensor(DType::F32, &[8]))?;
    let wrong = there.as_slice::<f64>().expect_err("it holds float32");
    assert!(matches!(wrong, Error::WrongDType { actual: DType::F32, asked: DType::F64 }), "{wrong}");
    if !bed.device.is_host() {
        let error = there.as_slice::<f32>().expect_err("it lies on the device");
        assert!(matches!(error, Error::NotOnHost { device } if device == bed.device.id()), "{error}");
        assert!(matches!(there.to_bytes(), Err(Error::NotOnHost { .. })));
    }
    bed.down(there)?.as_slice::<f32>()?;
    Ok(())
}
