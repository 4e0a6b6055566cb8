//! Questions about devices: those that are not open stay closed, and a call that fails is an error, or one property that is not known.

use transship::{Device, DeviceId, DeviceMemory, DeviceProperties, Error};

use crate::left::Left;
use crate::stand_in::StandIn;
use crate::sweep::check_error;
use crate::through::Through;

/// No question takes so many calls.
const MOST_CALLS: u64 = 100;

/// catches: 254-asking-opens-the-device, 256-one-unknown-property-fails-all
pub(crate) fn run(through: Through, stand_in: &StandIn) -> Result<(), String> {
    let first = stand_in.add_devices(2);
    let ids = [first, first + 1].map(|ordinal| DeviceId::new(through.name(), ordinal).unwrap());
    let there = || contexts(first, stand_in);
    let properties = ask_closed(ids).map_err(|error| error.to_string())?;
    nothing_is_open(there())?;
    let is_whole = |known: &DeviceProperties| {
        known.uuid.is_some()
            && known.pci.is_some()
            && known.compute_capability.is_some()
            && known.total_memory.is_some()
    };
    if !properties.iter().all(is_whole) {
        return Err(format!("something is not known: {properties:?}"));
    }
    only_the_uuid_is_unknown(ids, &properties, stand_in)?;
    let (mut failed, mut unknown) = (0, 0);
    for number in 1..MOST_CALLS {
        match with_fault(through, number, stand_in, || ask_closed(ids)) {
            None => {
                nothing_is_open(there())?;
                println!(
                    "{}: {} calls, {failed} made it fail, {unknown} left one property open",
                    through.name(),
                    number - 1
                );
                // The name of each device has no substitute; its UUID, for one, may stay unknown.
                let expected = failed >= 2 && unknown >= 2;
                expected.then_some(()).ok_or("faults came to nothing")?;
                return ask_open(through, first, stand_in);
            }
            Some(Ok(answer)) => unknown += u64::from(answer != properties),
            // A driver whose devices cannot be counted has none.
            Some(Err(Error::NoSuchDevice { count: 0, .. })) => failed += 1,
            Some(Err(error)) => {
                check_error(&error)?;
                failed += 1;
            }
        }
        if ask_closed(ids).map_err(|error| error.to_string())? != properties {
            return Err(format!("after call {number} has failed, devices are others"));
        }
    }
    Err(format!("there are more than {MOST_CALLS} calls"))
}

/// A driver that cannot tell one property tells the others.
fn only_the_uuid_is_unknown(
    ids: [DeviceId; 2],
    all: &[DeviceProperties; 2],
    stand_in: &StandIn,
) -> Result<(), String> {
    stand_in.tell("faults cuDeviceGetUuid_v2~1=unknown");
    let answer = ask_closed(ids);
    stand_in.tell("faults");
    let mut expected = all.clone();
    expected.iter_mut().for_each(|known| known.uuid = None);
    match answer.map_err(|error| error.to_string())? == expected {
        true => Ok(()),
        false => Err("a UUID that the driver cannot tell is told, or something else is not".to_owned()),
    }
}

/// What can be asked of devices that are not open.
fn ask_closed([one, other]: [DeviceId; 2]) -> Result<[DeviceProperties; 2], Error> {
    Device::reaches(one, other)?;
    Ok([Device::properties_of(one)?, Device::properties_of(other)?])
}

/// The memory of an open device: the fault is told, and leaves nothing current and nothing open.
fn ask_open(through: Through, ordinal: usize, stand_in: &StandIn) -> Result<(), String> {
    let device = through.open(ordinal).unwrap();
    let before = (through.current(stand_in), Left::on(through, &(ordinal..ordinal + 1), stand_in).0);
    let expected = ask_memory(&device).map_err(|error| error.to_string())?;
    let mut failed = 0;
    for number in 1..MOST_CALLS {
        match with_fault(through, number, stand_in, || ask_memory(&device)) {
            None if failed == 0 => return Err("no question about memory has failed".to_owned()),
            None => return Ok(()),
            // What gives the caller's context back fails in silence.
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                check_error(&error)?;
                failed += 1;
            }
        }
        let after = (through.current(stand_in), Left::on(through, &(ordinal..ordinal + 1), stand_in).0);
        if after != before || ask_memory(&device).map_err(|error| error.to_string())? != expected {
            return Err(format!("call {number} has failed, and {before:?} became {after:?}"));
        }
    }
    Err(format!("there are more than {MOST_CALLS} calls"))
}

fn ask_memory(device: &Device) -> Result<DeviceMemory, Error> {
    device.reset_memory_peaks()?;
    device.memory()
}

/// What `ask` comes to if the call of this number fails; `None` if there is none.
fn with_fault<T>(through: Through, number: u64, stand_in: &StandIn, ask: impl FnOnce() -> T) -> Option<T> {
    stand_in.tell(&format!("faults {}@{number}=unknown", through.calls()));
    let answer = ask();
    let fired = stand_in.ask("fired") > 0;
    stand_in.tell("faults");
    fired.then_some(answer)
}

/// How many contexts there are on two devices.
fn contexts(first: usize, stand_in: &StandIn) -> u64 {
    (first..first + 2).map(|device| stand_in.ask(&format!("contexts:{device}"))).sum()
}

fn nothing_is_open(contexts: u64) -> Result<(), String> {
    match contexts {
        0 => Ok(()),
        count => Err(format!("questions have left {count} contexts open")),
    }
}
