//! Every error that a program can meet names what it is about and says what to do next, keeps its source, and turns into
//! the plain error by `?`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/hooked.rs"]
mod hooked;
mod support;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use hooked::Hooked;
use late_backend::{Call, LateConfig, LateHandle};
use support::{eventually, in_time, late, no_violations, on, two, with};
use transship_core::backend::{Backend, Driver, MemoryKind, RawMemory, StreamPriority};
use transship_core::{
    Alignment, BackgroundWork, CopyError, CopyOptions, CopyPolicy, DType, Device, DeviceId, Error, ErrorKind,
    Result, Stop, Tensor, TensorTree, Value, Visitor, register_driver, start_copy, start_copy_into,
};

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn bytes(count: usize) -> Tensor {
    Tensor::from(vec![1_u8; count])
}

/// The error of a copy, through `?`.
fn copy<S: TensorTree + Send + 'static>(value: S, to: &Device, options: CopyOptions) -> Error {
    let to = to.clone();
    let copied = in_time(move || -> Result<()> {
        start_copy(value, &to, options)?.wait()?;
        Ok(())
    });
    copied.expect_err("the copy fails")
}

/// The error is of a variant, and its text has all of these in it, the hint last.
#[track_caller]
fn says(error: &Error, variant: &str, words: &[&str]) {
    assert!(format!("{error:?}").starts_with(variant), "{error:?} is no {variant}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

#[test]
fn tensors_say_what_is_wrong_with_them() {
    let tensor = Tensor::from_vec(vec![1.0_f32; 6], &[2, 3]).unwrap();
    let shape = Tensor::from_vec(vec![1_u8; 5], &[2, 3]).unwrap_err();
    says(&shape, "ShapeMismatch", &["[2, 3]", "uint8", "6 bytes", "are 5", "change the shape"]);
    let huge = Tensor::empty(&[usize::MAX, 2], DType::F64, &Device::host()).unwrap_err();
    says(&huge, "SizeOverflow", &[&usize::MAX.to_string(), "float64", "use smaller"]);
    says(&tensor.narrow(1, 2, 5).unwrap_err(), "OutOfRange", &["2..7", "0..3", "ask for a part"]);
    let beyond = tensor.narrow(1, usize::MAX, 2).unwrap_err();
    says(
        &beyond,
        "OutOfRange",
        &["18446744073709551615.. (to more than can be counted) lies outside of 0..3"],
    );
    says(&tensor.as_slice::<i64>().unwrap_err(), "WrongDType", &["float32", "int64", "ask for"]);
    let across = tensor.transpose(0, 1).unwrap().as_slice::<f32>().unwrap_err();
    says(&across, "NotContiguous", &["[3, 2]", "[1, 3]", "call contiguous() first"]);
    let odd = Tensor::from_owner(vec![2_u8], DType::Bool, &[1]).unwrap().as_slice::<bool>().unwrap_err();
    says(&odd, "InvalidBits", &["bool", "read them with as_bytes()"]);
    let twin = tensor.clone();
    says(&{ twin }.as_mut_bytes().unwrap_err(), "NotWritable", &["shared", "drop the other tensors over it"]);
    let lent = Tensor::from_owner(vec![2_u8], DType::U8, &[1]).unwrap().as_mut_bytes().unwrap_err();
    says(&lent, "NotWritable", &["lent read-only", "write to a copy of its elements (to_vec)"]);
    let byte = Tensor::from_vec(vec![1_u8], &[2, 0]).unwrap_err();
    says(&byte, "ShapeMismatch", &["0 bytes, but there is 1;"]);

    #[repr(align(8))]
    struct Eight([u8; 16]);
    struct Shifted(Eight);
    impl AsRef<[u8]> for Shifted {
        fn as_ref(&self) -> &[u8] {
            &self.0.0[1..9]
        }
    }
    let shifted = Tensor::from_owner(Shifted(Eight([0; 16])), DType::F64, &[1]).unwrap_err();
    says(&shifted, "Misaligned", &["address 0x", "multiple of 8", "copy the data"]);
}

#[test]
fn names_say_what_they_should_look_like() {
    let parse = |text: &str| text.parse::<DeviceId>().unwrap_err();
    says(&parse("cuda:x").into(), "InvalidDeviceId", &["\"cuda:x\"", "write a driver and a number"]);
    says(
        &"float33".parse::<DType>().unwrap_err().into(),
        "InvalidDType",
        &["\"float33\"", "write one such as"],
    );
    let open = |name| Device::open(DeviceId::new(name, 0).unwrap()).unwrap_err();
    says(
        &open("nowhere"),
        "UnknownDriver",
        &["\"nowhere\"", "host", "enable the cargo feature", "`use transship_nowhere as _;`"],
    );
    let late = late_backend::install(LateConfig::new("late-errors")).unwrap();
    let cpu = late_backend::install(LateConfig::new("cpu")).map(drop).unwrap_err();
    says(&cpu, "DriverExists", &["\"cpu\"", "another name"]);
    let none = Device::open(DeviceId::new("late-errors", 7).unwrap()).unwrap_err();
    says(&none, "NoSuchDevice", &["late-errors:7", "has 1", "use a number below"]);
    let again = register_driver(late.driver()).unwrap_err();
    says(&again, "DriverExists", &["\"late-errors\"", "another name"]);
    register_driver(Arc::new(Missing)).unwrap();
    says(&open("missing"), "DriverUnavailable", &["missing", "libmissing.so.1", "install it"]);
}

/// A driver whose library is not there.
struct Missing;

impl Driver for Missing {
    fn name(&self) -> &'static str {
        "missing"
    }

    fn preference(&self) -> u32 {
        0
    }

    fn is_available(&self) -> Result<()> {
        let reason = "libmissing.so.1 is not there; install it".to_owned();
        Err(Error::DriverUnavailable { driver: "missing", reason })
    }

    fn device_count(&self) -> usize {
        0
    }

    fn open(&self, _: usize) -> Result<Arc<dyn Backend>> {
        Err(self.is_available().expect_err("it never is"))
    }
}

/// catches: 15-never-copy-not-enforced
#[test]
fn options_say_what_they_forbid() {
    let (_, device) = late();
    let never = copy(bytes(8), &device, options().policy(CopyPolicy::Never));
    let text = "cannot move tensor from host to late:0 without copying; allow copying to do so";
    says(&never, "NeverCopy", &[text]);
    assert_eq!(never.to_string(), text);
    let back = copy(on(&device, &[1]), &Device::host(), options().policy(CopyPolicy::Never));
    assert!(back.to_string().contains("from late:0 to host"), "{back}");
    let alignment = options().packed_alignment(12).validate().unwrap_err();
    says(&alignment, "InvalidOption", &["packed_alignment", "12", "a power of two"]);
    says(
        &copy(bytes(8), &device, options().max_bytes_in_flight(1)),
        "InvalidOption",
        &["max_bytes_in_flight", "1", "at least 4096"],
    );
    let coarse = copy(bytes(8), &device, options().packed_alignment(512));
    says(&coarse, "InvalidOption", &["packed_alignment", "512", "aligned less", "Device::limits"]);

    let (_, other) = support::late();
    let foreign = other.create_stream(StreamPriority::Normal).unwrap();
    says(&copy(bytes(8), &device, options().stream(&foreign)), "WrongStream", &["late:0", "needs one of"]);

    let (late, device) = support::late();
    device.set_staging_budget(64 << 10).unwrap();
    late.stall();
    let never = options().background(BackgroundWork::Never);
    let first = start_copy(bytes(8), &device, never.clone()).unwrap();
    let busy = copy(bytes(8), &device, never);
    says(
        &busy,
        "Busy",
        &["late:0", "bytes", "no staging block", "wait for other copies", "set_staging_budget"],
    );
    drop(first);
    let paced = options().background(BackgroundWork::Never).max_bytes_in_flight(4096);
    let paced = copy(bytes(8192), &device, paced);
    says(&paced, "Busy", &["8192 bytes", "paced", "raise CopyOptions::max_bytes_in_flight"]);
    assert!(!paced.to_string().contains("other copies"), "{paced}");
}

#[test]
fn devices_say_what_they_cannot_do() {
    let (late, device) = late();
    let there = on(&device, &[1; 8]);
    says(&there.as_slice::<u8>().unwrap_err(), "NotOnHost", &["late:0", "copy it to the host"]);
    let down = start_copy(there.clone(), &Device::host(), options()).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let refused = Error::from(down.wait_on(&stream).unwrap_err());
    says(&refused, "HostTarget", &["no stream to wait on", "use wait()"]);
    let (_, other) = support::late();
    let foreign = other.create_stream(StreamPriority::Normal).unwrap();
    let event = foreign.record().unwrap();
    says(&stream.wait_event(&event).unwrap_err(), "Unsupported", &["late:0", "another device"]);
    late.stall();
    let tensor = start_copy(bytes(8), &device, options()).unwrap().wait_on(&stream).unwrap();
    says(
        &tensor.to_bytes().unwrap_err(),
        "NotReady",
        &["is not done", "wait for its handle", "Stream::synchronize"],
    );

    let memory = RawMemory::new(0, 8, MemoryKind::Device);
    // SAFETY: the device refuses memory that it has not allocated.
    let raw = unsafe { Tensor::from_raw(memory, Box::new(()), &[8], DType::U8, &device) };
    says(&raw.unwrap_err(), "InvalidMemory", &["8 bytes", "0x0", "no such memory"]);
}

#[test]
fn devices_with_other_limits_say_so() {
    let four = Alignment::new(4).unwrap();
    let (_, device) =
        with(LateConfig { copy_granularity: four, mapped_staging: true, ..LateConfig::new("late") });
    let pinned = Tensor::empty_pinned(&[8], DType::U8, &device).unwrap_err();
    says(&pinned, "Unsupported", &["late:0", "lend page-locked memory"]);
    let memory = RawMemory::new(64, 6, MemoryKind::Device);
    // SAFETY: memory that ends inside of a granule is refused before anybody looks at it.
    let raw = unsafe { Tensor::from_raw(memory, Box::new(()), &[6], DType::U8, &device) };
    says(&raw.unwrap_err(), "InvalidMemory", &["6 bytes", "0x40", "granules of 4 bytes"]);
}

#[test]
fn memory_that_is_not_there_says_how_much() {
    let (_, small) = with(LateConfig { device_memory: 100, ..LateConfig::new("late") });
    says(&copy(bytes(200), &small, options()), "TooLarge", &["late:0", "100", "ask for less at once"]);
    let held = on(&small, &[1; 80]);
    says(
        &copy(bytes(60), &small, options()),
        "OutOfMemory",
        &["late:0", "device", "of 100 free", "try again"],
    );
    drop(held);
    let (_, bare) = with(LateConfig { staging_memory: 100_000, ..LateConfig::new("late") });
    let pinned = || Tensor::empty_pinned(&[40_000], DType::U8, &bare);
    let held = pinned().unwrap();
    says(&pinned().unwrap_err(), "OutOfMemory", &["late:0", "pinned", "of 100000 free", "free some"]);
    drop(held);

    let (_, device) = late();
    device.set_result_budget(64 << 10).unwrap();
    let pinned = |bytes: usize| Tensor::empty_pinned(&[bytes], DType::U8, &device);
    let held = pinned(64 << 10).unwrap();
    let busy = pinned(1).unwrap_err();
    says(&busy, "Busy", &["1 byte cannot", "drop tensors in pinned memory", "Device::set_result_budget"]);
    assert!(!busy.to_string().contains("background"), "{busy}");
    says(&pinned(65 << 10).unwrap_err(), "TooLarge", &["ask for less at once", "Device::set_result_budget"]);
    drop(held);
    let unknown =
        Error::OutOfMemory { device: DeviceId::HOST, kind: "host", requested: 1, free: 0, total: 0 };
    assert_eq!(unknown.to_string(), "host is out of host memory: 1 byte asked for; free some and try again");
    let none = Error::NoSuchDevice { device: DeviceId::new("late", 0).unwrap(), count: 0 };
    says(&none, "NoSuchDevice", &["late:0", "has none here", "use another driver"]);
}

/// Shows its tensor twice.
struct Twice(Tensor);

impl TensorTree for Twice {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)?;
        self.0.visit(visitor)
    }
}

/// Shows another number of tensors each time.
struct Fickle(Vec<Tensor>, usize);

impl TensorTree for Fickle {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.1 -= 1;
        self.0.iter_mut().take(self.1).try_for_each(|tensor| tensor.visit(visitor))
    }
}

/// catches: 16-depth-not-counted
#[test]
fn structures_that_break_the_rules_are_errors() {
    let (late, device) = late();
    let twice = start_copy(Twice(bytes(8)), &device, options()).unwrap_err();
    says(twice.error(), "Taken", &["part of a copy in progress", "wait for its handle"]);
    assert_eq!(twice.into_value().unwrap().0.to_bytes().unwrap(), [1; 8]);
    let fickle = copy(Fickle(vec![bytes(8), bytes(8), bytes(8)], 3), &device, options());
    says(&fickle, "TreeChanged", &["2 tensors when", "after 1", "show the same ones"]);
    let deep = (0..2000).fold(Value::from(bytes(8)), |inside, _| Value::list([inside]));
    let deep = start_copy(deep, &device, options()).unwrap_err();
    says(deep.error(), "TooDeep", &["1024 levels", "flatten it"]);
    assert!(!deep.error().to_string().contains("stack"), "more of it does not help");
    device.drain().unwrap();
    support::no_violations(&late);
}

#[test]
fn failures_of_the_driver_keep_its_words_and_their_source() {
    let (late, device, other) = two(LateConfig::new("late"));
    device.prepare(64).unwrap();
    late.fail_next(Call::Submit, 0);
    let failed = copy(bytes(8), &device, options());
    says(&failed, "Driver", &["late", "late:0", "told to fail", "code 1", "see the driver's documentation"]);
    assert!(failed.source().is_none());

    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall();
    let tensor = start_copy(bytes(8), &device, options()).unwrap().wait_on(&stream).unwrap();
    late.break_device();
    let poisoned = start_copy(tensor, &other, options()).unwrap_err();
    says(poisoned.error(), "CopyFailed", &["failed in the driver", "copy its source again"]);
    assert_eq!(poisoned.to_string(), "the copy to late:1 needs a tensor that an earlier copy did not fill");
    let source = poisoned.source().expect("it is the plain error");
    assert!(matches!(source.downcast_ref(), Some(Error::CopyFailed(_))));
    assert_eq!(poisoned.error().kind(), ErrorKind::Driver);
    let plain = poisoned.into_error();
    assert!(plain.source().expect("the reason is kept").to_string().contains("broken"));
}

#[test]
fn a_panic_is_an_error_with_its_message() {
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    let backend = Hooked::new(late.backend(0));
    let device = Device::from_backend(backend.clone()).unwrap();
    backend.before_next_submit(|| panic!("told to panic in submit"));
    let panicked = copy(bytes(8), &device, options().background(BackgroundWork::Always));
    says(&panicked, "Panicked", &["told to panic in submit", "please report it"]);
    backend.before_next_allocate(|| panic!("told to panic in allocate"));
    let panicked = copy(bytes(8), &device, options().background(BackgroundWork::Always));
    says(&panicked, "Panicked", &["told to panic in allocate", "please report it"]);
}

/// What came down together shares its memory. The error says which options give a tensor memory of its own, and they do.
#[test]
fn the_options_that_make_packed_results_writable_are_named() {
    let (_, device) = late();
    let there =
        || start_copy(vec![bytes(8), bytes(9), bytes(10)], &device, options()).unwrap().wait().unwrap();
    let down = |options| start_copy(there(), &Device::host(), options).unwrap().wait().unwrap();
    let mut packed = down(options());
    let refused = packed[0].as_mut_slice::<u8>().unwrap_err();
    says(&refused, "NotWritable", &["packed", "CopyOptions::packing(false)", "CopyPolicy::Always"]);

    let mut apart = down(options().packing(false));
    apart[0].as_mut_slice::<u8>().unwrap().fill(2);
    let alone = options().policy(CopyPolicy::Always);
    let mut alone = start_copy(packed.remove(0), &Device::host(), alone).unwrap().wait().unwrap();
    alone.as_mut_slice::<u8>().unwrap().fill(2);
    assert_eq!(packed[0].to_bytes().unwrap(), [1; 9]);
}

/// What does not suit a copy into held memory says what would.
#[test]
fn unsuited_destinations_say_what_suits() {
    let (_, device) = late();
    let refused = |value: Tensor, into: Tensor| {
        let failed = start_copy_into(vec![value], vec![into], options()).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::InvalidInput, "{failed:?}");
        failed.into_error()
    };
    let repeated =
        Tensor::zeros(&[4], DType::U8, &Device::host()).unwrap().as_strided(&[2, 4], &[0, 1], 0).unwrap();
    let repeated = refused(Tensor::zeros(&[2, 4], DType::U8, &Device::host()).unwrap(), repeated);
    let needed = ["[0] to copy into", "[2, 4]", "[0, 1]", "neither overlap nor interleave"];
    says(&repeated, "UnsuitedTensor", &needed);
    assert!(!repeated.to_string().contains("contiguous()"), "{repeated}");
    let held = on(&device, &[1; 8]);
    let shared = refused(bytes(8), held.clone());
    says(&shared, "UnsuitedTensor", &["[0] to copy into", "shared", "drop the other tensors over it"]);
    let lent = refused(bytes(8), Tensor::from_owner(vec![0; 8], DType::U8, &[8]).unwrap());
    says(&lent, "UnsuitedTensor", &["[0] to copy into", "lent read-only", "copy into memory of your own"]);
}

/// A copy that needs a tensor that another one did not fill in time has missed no deadline itself. Where it is known, the error says
/// which tensor that is.
#[test]
fn a_failure_of_an_earlier_copy_is_told_from_one_of_this_copy() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let (held, held_too) = (on(&device, &[1; 8]), on(&device, &[1; 8]));
    late.stall();
    let hurried = options().deadline(Duration::from_millis(5));
    let there = start_copy(bytes(8), &device, hurried).unwrap().wait_on(&stream).unwrap();
    eventually("it is late", || there.is_ready().is_err());
    let failed = start_copy(there.clone(), &Device::host(), options()).unwrap_err();
    let told = "the copy to host needs a tensor that an earlier copy did not fill: the copy that should have filled this tensor \
                missed its deadline; copy its source again; memory that you hold can be read again once any copy has filled it \
                (start_copy_into)";
    assert_eq!(format!("{failed:#}"), told);
    assert_eq!(failed.error().kind(), ErrorKind::TimedOut);
    let failed = start_copy_into(vec![bytes(8), there], vec![held, held_too], options()).unwrap_err();
    says(
        failed.error(),
        "UnsuitedTensor",
        &["[1] to copy: the copy that should have filled", "missed its deadline"],
    );
    assert_eq!(failed.to_string(), "the copy needs a tensor that an earlier copy did not fill");
    late.release();
}

/// Streams of the host have nothing to wait for, and so a copy to it has none to wait on.
#[test]
fn the_host_has_streams_of_its_own() {
    let host = Device::host();
    let stream = host.create_stream(StreamPriority::Normal).unwrap();
    let start = || start_copy(bytes(8), &host, options().policy(CopyPolicy::Always).stream(&stream)).unwrap();
    assert_eq!(start().wait().unwrap().nbytes(), 8);
    assert!(stream.is_idle().unwrap());
    assert!(matches!(start().wait_on(&stream).unwrap_err().into_error(), Error::HostTarget));
}

/// What no machine can hold is not asked for again once something is free.
#[test]
fn more_bytes_than_there_can_be_never_fit() {
    let most = isize::MAX.unsigned_abs();
    let wide = Tensor::from(vec![1_u8]).as_strided(&[most], &[0], 0).unwrap();
    for error in
        [wide.to_bytes().unwrap_err(), wide.to_vec::<u8>().unwrap_err(), wide.contiguous().unwrap_err()]
    {
        says(&error, "TooLarge", &["can never fit on host", "ask for less at once"]);
    }
    let (_, device) = with(LateConfig { device_memory: 100, ..LateConfig::new("late") });
    says(
        &device.prepare(1 << 46).unwrap_err(),
        "TooLarge",
        &["can never fit on late:0", "ask for less at once"],
    );
}

/// All variants of the error, and what to do about each.
fn kinds() -> Vec<(Error, ErrorKind)> {
    use ErrorKind::*;
    let device = DeviceId::HOST;
    let (dtype, text, path, reason) = (DType::U8, String::new, String::new, "");
    let late = || Error::DeadlineExceeded { limit: Duration::ZERO };
    let unsuited =
        |error| Error::UnsuitedTensor { index: 0, path: path(), role: "to copy", error: Arc::new(error) };
    vec![
        (Error::ShapeMismatch { shape: vec![], dtype, expected: 1, actual: 2 }, InvalidInput),
        (Error::SizeOverflow { shape: vec![], dtype }, InvalidInput),
        (Error::OutOfRange { what: "bytes", start: 0, end: 1, limit: 0 }, InvalidInput),
        (Error::Misaligned { what: "offset", value: 1, alignment: 2, cure: "" }, InvalidInput),
        (Error::WrongDType { actual: dtype, asked: dtype }, InvalidInput),
        (Error::NotContiguous { shape: vec![], strides: vec![], cure: "" }, InvalidInput),
        (Error::InvalidBits { dtype }, InvalidInput),
        (Error::NotOnHost { device }, InvalidInput),
        (Error::WrongDevice { actual: device, expected: device }, InvalidInput),
        (Error::NotVector { shape: vec![], strides: vec![], why: text() }, InvalidInput),
        (Error::WrongRank { shape: vec![2, 3], asked: 1 }, InvalidInput),
        (Error::NotWritable { why: "", cure: "" }, InvalidInput),
        (Error::Forked, Unsupported),
        (Error::StructureMismatch { path: path(), value: text(), into: text() }, InvalidInput),
        (Error::Unpaired { path: path(), type_name: "" }, Bug),
        (Error::NotShown { path: path(), type_name: "" }, Bug),
        (
            Error::DestinationMismatch {
                path: path(),
                shape: vec![],
                dtype,
                into_shape: vec![],
                into_dtype: dtype,
            },
            InvalidInput,
        ),
        (Error::NotSplittable { why: String::new(), cure: "" }, InvalidInput),
        (Error::NotJoinable { why: String::new(), cure: "" }, InvalidInput),
        (unsuited(Error::WrongDevice { actual: device, expected: device }), InvalidInput),
        (unsuited(Error::CopyFailed(Arc::new(Error::Cancelled))), Cancelled),
        (Error::NotReady, NotReady),
        (late(), TimedOut),
        (Error::Cancelled, Cancelled),
        (Error::Finished, Finished),
        (Error::Taken, NotReady),
        (Error::CopyFailed(Arc::new(late())), TimedOut),
        (Error::CopyFailed(Arc::new(Error::DeviceLost { device, reason: text() })), DeviceLost),
        (Error::InvalidOption { name: "", value: text(), reason }, InvalidInput),
        (Error::InvalidMemory { address: 0, bytes: 0, reason: text() }, InvalidInput),
        (Error::NotLockable { device, address: 0, bytes: 1, reason: text(), cure: "" }, InvalidInput),
        (Error::InvalidDlpack { field: "", value: text(), reason }, InvalidInput),
        (Error::InvalidManifest { at: 0, reason }, InvalidInput),
        (Error::ManifestMismatch { path: path(), own: text(), other: text() }, InvalidInput),
        (Error::KeysPrintAlike { path: path() }, InvalidInput),
        (Error::SharedMemory, InvalidInput),
        (Error::InvalidDeviceId { text: text() }, InvalidInput),
        (Error::InvalidDType { text: text() }, InvalidInput),
        (Error::UnknownDriver { name: text(), known: text() }, Unsupported),
        (Error::DriverUnavailable { driver: "", reason: text() }, Unsupported),
        (Error::NoSuchDevice { device, count: 1 }, Unsupported),
        (Error::InvalidLimit { device, field: "", value: text(), reason }, Bug),
        (Error::DriverExists { name: "" }, InvalidInput),
        (Error::NeverCopy { from: device, to: device }, InvalidInput),
        (Error::NeverCast { path: path(), from: DType::I64, to: DType::U8 }, InvalidInput),
        (
            Error::DoesNotFit {
                path: path(),
                element: 0,
                value: 300,
                shape: vec![1],
                from: DType::I64,
                to: DType::U8,
            },
            InvalidInput,
        ),
        (Error::OutOfMemory { device, kind: "host", requested: 1, free: 0, total: 0 }, OutOfMemory),
        (Error::TooLarge { device, kind: "host", requested: 1, limit: 0 }, OutOfMemory),
        (Error::OverBudget { device, requested: 2, used: 1, leaving: 1, budget: 2 }, OutOfMemory),
        (Error::Busy { device, requested: 1, reason, cure: "" }, Busy),
        (Error::TooDeep { limit: 1024 }, InvalidInput),
        (Error::TreeChanged { first: 1, second: 0 }, Bug),
        (Error::HostTarget, InvalidInput),
        (Error::WrongStream { actual: device, expected: device }, InvalidInput),
        (Error::StreamCaptured { device, why: "which is in the way" }, Busy),
        (Error::StreamLost { device, error: Arc::new(Error::NotReady) }, NotReady),
        (Error::Unsupported { device, what: "" }, Unsupported),
        (Error::DeviceLost { device, reason: text() }, DeviceLost),
        (Error::Driver { device, call: "", code: 1, message: text() }, Driver),
        (
            Error::AllocatorFailed { device, requested: 2, error: Arc::from(Box::from("no pages")) },
            OutOfMemory,
        ),
        (Error::Panicked { message: text() }, Bug),
        (Error::NoThread { reason: text() }, Busy),
    ]
}

#[test]
fn memory_that_is_not_locked_says_what_helps() {
    let device = DeviceId::HOST;
    let out_of = |kind| Error::OutOfMemory { device, kind, requested: 1, free: 0, total: 0 };
    says(&out_of("page-locked"), "OutOfMemory", &["page-locked memory", "1 byte", "ulimit -l"]);
    assert!(!out_of("pinned").to_string().contains("ulimit"));

    let (late, device) = late();
    let mut memory = Vec::with_capacity(1 << 18);
    memory.resize(100_000, 0_u8);
    let start = memory.as_ptr();
    let _held = device.register_vec(memory, &[100_000]).unwrap();
    // SAFETY: the memory is held for as long, and nobody writes to it.
    let again = unsafe { device.register_raw(start, 1, Box::new(())) };
    let address = format!("{:#x}", start.addr());
    let words = ["1 byte", &address, "late:0", "registered already", "Registered::tensor", "with_capacity"];
    says(again.unwrap_err().error(), "NotLockable", &words);
    no_violations(&late);
}

#[test]
fn each_error_has_a_kind() {
    let kinds = kinds();
    for (error, kind) in &kinds {
        assert_eq!(error.kind(), *kind, "{error:?}");
    }
    // Variants that are new belong into the list.
    let name = |error: &Error| format!("{error:?}").split([' ', '(']).next().map(str::to_owned);
    let named: BTreeSet<_> = kinds.iter().filter_map(|(error, _)| name(error)).collect();
    let source = include_str!("../src/error.rs");
    let body = source.split("pub enum Error {").nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap();
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let variants = lines.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    let listed: BTreeSet<_> =
        variants.map(|line| line.trim_end_matches([' ', '{', ',', '(']).to_owned()).collect();
    assert_eq!(named, listed);
}

/// Chains print each text once, and lead to the plain error without naming the structure.
#[test]
fn the_error_of_a_copy_is_told_from_its_reason() {
    for (error, _) in kinds() {
        let why = error.to_string();
        let failed = CopyError::new(error, Some(7));
        assert!(!failed.to_string().contains(&why), "{failed}");
        assert_eq!(format!("{failed:#}"), format!("{failed}: {why}"));
        let boxed: Box<dyn std::error::Error + Send + Sync> = failed.into();
        let plain = boxed.source().and_then(|source| source.downcast_ref::<Error>());
        assert_eq!(plain.expect("it is the plain error").to_string(), why);
    }
    let (late, device) = late();
    late.stall();
    let late_copy = start_copy(bytes(8), &device, options().deadline(Duration::from_millis(5))).unwrap();
    let missed = in_time(move || late_copy.wait()).unwrap_err();
    assert_eq!(missed.to_string(), "the copy to late:0 missed its deadline");
    let refused = start_copy(bytes(8), &Device::host(), options().max_chunk_bytes(0)).unwrap_err();
    assert_eq!(refused.to_string(), "the copy to host was refused");
    assert!(matches!(refused.into_error(), Error::InvalidOption { .. }));
}

/// Nobody shares the structure that a failed copy gives back: it need not be `Sync`.
#[test]
fn the_error_of_a_copy_asks_no_sync_of_the_structure() {
    fn crosses_threads<T: Send + Sync>(value: T) -> T {
        value
    }
    let counted = crosses_threads(CopyError::new(Error::Finished, Some(Cell::new(3))));
    assert_eq!(counted.into_value().map(Cell::into_inner), Some(3));
}
