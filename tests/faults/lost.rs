//! One question about a stream is answered with an error. That stream is lost, with what is in flight on it, and nothing else: no wrong
//! bytes, no further leaks, and copies go on.

use std::ops::Range;

use transship::{
    BackgroundWork, CopyError, CopyHandle, CopyOptions, DType, Device, Error, Stream, StreamPriority, Tensor,
    runtime_stats, start_copy, start_copy_into,
};

use crate::stand_in::StandIn;
use crate::through::Through;
use crate::trip;

const BYTES: usize = 900;
const ROUNDS: Range<u8> = 1..30;
/// The next answer is an error, and all others are not.
const ONE_QUESTION: &str = "faults cuEventQuery@1=unknown";

/// Which stream is lost.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lost {
    /// The one that the memory to copy into is allocated on, before it has come by.
    OfAllocation,
    /// The one that the copies of this thread run on.
    OfThread,
    /// One that the program has created.
    OfProgram,
    /// None: memory cannot be freed behind a stream.
    Nothing,
}

impl Lost {
    pub(crate) const ALL: [Self; 4] = [Self::OfAllocation, Self::OfThread, Self::OfProgram, Self::Nothing];

    pub(crate) fn run(self, through: Through, stand_in: &StandIn) -> Result<(), String> {
        let first = stand_in.add_devices(1);
        let violations = stand_in.ask("violations");
        let device = through.open(first).unwrap();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        match self {
            Self::OfAllocation => of_allocation(&device, &stream, stand_in)?,
            Self::OfThread => of_thread(&device, stand_in)?,
            Self::OfProgram => of_program(&device, &stream, stand_in)?,
            Self::Nothing => nothing(&device, &stream, stand_in)?,
        }
        stand_in.tell("excuse");
        drop((stream, device));
        trip::works(through, first);
        match stand_in.ask("violations") - violations {
            0 => Ok(()),
            count => Err(format!("{count} violations")),
        }
    }
}

/// catches: 211-failed-copy-has-nothing-left
fn of_allocation(device: &Device, stream: &Stream, stand_in: &StandIn) -> Result<(), String> {
    let on_stream = || CopyOptions::default().stream(stream);
    let empty = || Tensor::empty(&[BYTES], DType::U8, device).unwrap();
    let held = empty();
    stand_in.tell(ONE_QUESTION);
    let failed = start_copy_into(bytes(0), held, on_stream()).and_then(CopyHandle::wait);
    assert_eq!(stand_in.ask("fired"), 1);
    stand_in.tell("faults");
    let failed = failed.err().ok_or("nobody knows whether the memory is there, and it was written")?;
    check(failed.error())?;
    let (_, into) = failed.into_both();
    let again = start_copy_into(bytes(0), into.unwrap(), on_stream()).and_then(CopyHandle::wait);
    check(again.err().ok_or("it was written later")?.error())?;
    for round in ROUNDS {
        let copied = start_copy_into(bytes(round), empty(), on_stream()).and_then(CopyHandle::wait);
        came_down(copied, round)?;
    }
    Ok(())
}

/// catches: 212-copies-stay-on-a-lost-stream
fn of_thread(device: &Device, stand_in: &StandIn) -> Result<(), String> {
    let up = |byte| start_copy(bytes(byte), device, CopyOptions::default()).and_then(CopyHandle::wait);
    came_down(up(0), 0)?;
    stand_in.tell(ONE_QUESTION);
    check(up(0).err().ok_or("nobody knows whether the copy is done, and it counts as done")?.error())?;
    stand_in.tell("faults");
    let lost = taken(device);
    for round in ROUNDS {
        came_down(up(round), round)?;
    }
    device.synchronize().map_err(|error| format!("synchronize: {error}"))?;
    device.drain().map_err(|error| format!("drain: {error}"))?;
    same(lost, taken(device))
}

/// catches: 213-lost-streams-of-the-program-are-used
fn of_program(device: &Device, stream: &Stream, stand_in: &StandIn) -> Result<(), String> {
    // By workers and at once, in turn.
    let background = |byte| if byte % 2 == 0 { BackgroundWork::Always } else { BackgroundWork::Auto };
    let options = |byte| CopyOptions::default().background(background(byte));
    let up = |byte, stream| start_copy(bytes(byte), device, options(byte).stream(stream));
    let there = up(1, stream).and_then(CopyHandle::wait).unwrap();
    stand_in.tell(ONE_QUESTION);
    check(up(0, stream).and_then(CopyHandle::wait).err().ok_or("it counts as done")?.error())?;
    stand_in.tell("faults");
    let lost = taken(device);
    for round in ROUNDS {
        let refused = up(round, stream).err().ok_or("a copy was started on a stream that is lost")?;
        check(refused.error())?;
        let back = refused.into_value().ok_or("the tensor is gone")?;
        assert_eq!(back.to_bytes().unwrap(), [round; BYTES]);
        let elsewhere = start_copy(back, device, CopyOptions::default()).unwrap();
        check(elsewhere.wait_on(stream).err().ok_or("a stream that is lost waits")?.error())?;
        check(&there.record_stream(stream).err().ok_or("a stream that is lost was handed a tensor")?)?;
        // The copy that was not to be waited for goes on.
        device.synchronize().unwrap();
        same(lost, taken(device))?;
    }
    let other = device.create_stream(StreamPriority::Normal).unwrap();
    came_down(up(7, &other).and_then(CopyHandle::wait), 7)
}

/// catches: 214-bytes-of-leaks-not-counted
fn nothing(device: &Device, stream: &Stream, stand_in: &StandIn) -> Result<(), String> {
    let before = runtime_stats();
    for round in ROUNDS {
        let held =
            start_copy(bytes(round), device, CopyOptions::default()).and_then(CopyHandle::wait).unwrap();
        held.record_stream(stream).unwrap();
        let works = start_copy(bytes(round), device, CopyOptions::default().stream(stream)).unwrap();
        stand_in.tell("faults cuStreamWaitEvent@1+=oom");
        drop(held);
        stand_in.tell("faults");
        works.wait().unwrap();
    }
    let (leaks, leaked) =
        (runtime_stats().leaks - before.leaks, runtime_stats().leaked_bytes - before.leaked_bytes);
    match leaks {
        0 => Err("all of it was freed".to_owned()),
        _ if leaked < leaks * BYTES as u64 => Err(format!("{leaks} leaks of {leaked} bytes")),
        _ => Ok(()),
    }
}

/// What is given up, how many bytes that are, and the staging memory in use.
fn taken(device: &Device) -> [u64; 3] {
    let stats = runtime_stats();
    [stats.leaks, stats.leaked_bytes, device.staging_usage().in_use as u64]
}

fn same(before: [u64; 3], after: [u64; 3]) -> Result<(), String> {
    if before == after { Ok(()) } else { Err(format!("more was given up: {before:?}, then {after:?}")) }
}

fn bytes(byte: u8) -> Tensor {
    Tensor::from(vec![byte; BYTES])
}

fn came_down(copied: Result<Tensor, CopyError<Tensor>>, byte: u8) -> Result<(), String> {
    let down = |tensor| start_copy(tensor, &Device::host(), CopyOptions::default());
    let there =
        copied.and_then(down).and_then(CopyHandle::wait).map_err(|error| format!("{byte}: {error:#}"))?;
    match there.to_bytes().unwrap() == [byte; BYTES] {
        true => Ok(()),
        false => Err(format!("{byte}: the bytes are wrong")),
    }
}

/// It says that the stream is lost.
fn check(error: &Error) -> Result<(), String> {
    match error {
        Error::UnsuitedTensor { error, role: "to copy into", .. } => check(error),
        Error::StreamLost { error, .. } if matches!(**error, Error::Driver { call, .. } if call.ends_with("EventQuery")) => {
            Ok(())
        }
        other => Err(format!("an error of another kind: {other:?}")),
    }
}
