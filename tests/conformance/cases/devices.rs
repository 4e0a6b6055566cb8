//! What a device is, what memory it has, and which other one it reaches.

use libtest_mimic::Failed;
use transship::{DType, Device, DeviceId, Error, PciAddress, Tensor};

use crate::backends::Need::{OwnMemory, SecondDevice};
use crate::bed::{Bed, eventually};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(memory_adds_up),
        case!(memory_in_use_is_counted).needs(OwnMemory).alone(),
        case!(peaks_stay_until_they_are_reset).needs(OwnMemory).alone(),
        case!(properties_are_the_same_opened_or_not),
        case!(each_device_is_hardware_of_its_own).needs(SecondDevice),
        case!(who_reaches_whom_is_known_before).needs(SecondDevice),
        case!(drivers_do_not_reach_each_other),
        case!(a_device_that_is_not_there_has_no_properties),
    ]
}

const BYTES: usize = 24 << 20;

fn memory_adds_up(bed: &Bed) -> Result<(), Failed> {
    let _held = Tensor::zeros(&[BYTES], DType::U8, &bed.device)?;
    let memory = bed.device.memory()?;
    let in_order = |least: Option<u64>, most: Option<u64>| {
        assert!(least.zip(most).is_none_or(|(least, most)| least <= most), "{memory:?}");
    };
    in_order(memory.free, memory.total);
    in_order(memory.used, memory.reserved);
    in_order(memory.reserved, memory.total);
    in_order(memory.reserved, memory.peak_reserved);
    in_order(memory.used, memory.peak_used);
    in_order(memory.peak_used, memory.peak_reserved);
    // What is known of one device of a kind is known of all: the table in the README says which.
    let knows_all = memory.free.is_some() && memory.total.is_some();
    assert!(knows_all || bed.device.id().driver() == "wgpu", "{memory:?}");
    let total = bed.device.properties()?.total_memory;
    assert!(total.is_none_or(|total| Some(total) == memory.total), "{total:?} in all, and {memory:?}");
    Ok(())
}

/// catches: 250-memory-in-use-not-counted
fn memory_in_use_is_counted(bed: &Bed) -> Result<(), Failed> {
    let used = || bed.device.memory().map(|memory| memory.used.unwrap_or(0));
    let before = used()?;
    let there = bed.up(bed.bytes(BYTES))?;
    let with = bed.device.memory()?;
    assert!(figure(with.used)? >= before + BYTES as u64, "{before} before, then {with:?}");
    assert!(figure(with.reserved)? >= BYTES as u64, "{with:?}");
    drop(there);
    bed.device.synchronize()?;
    eventually("memory is in use no more", || used().is_ok_and(|used| used <= before))?;
    let idle = bed.device.memory()?;
    assert!(figure(idle.peak_used)? >= before + BYTES as u64, "{idle:?}");
    bed.device.trim();
    let trimmed = bed.device.memory()?;
    assert!(figure(trimmed.reserved)? < figure(with.reserved)?, "{trimmed:?} after it was trimmed");
    Ok(())
}

/// catches: 251-peaks-not-reset, 252-peak-below-what-is-used
fn peaks_stay_until_they_are_reset(bed: &Bed) -> Result<(), Failed> {
    let small = bed.up(bed.bytes(BYTES / 8))?;
    drop(bed.up(bed.bytes(BYTES))?);
    bed.device.synchronize()?;
    let least = (BYTES + BYTES / 8) as u64;
    eventually("the large one goes", || {
        bed.device.memory().is_ok_and(|memory| memory.used.is_some_and(|used| used < BYTES as u64))
    })?;
    let before = bed.device.memory()?;
    assert!(figure(before.peak_used)? >= least && figure(before.peak_reserved)? >= least, "{before:?}");
    bed.device.trim();
    bed.device.reset_memory_peaks()?;
    let after = bed.device.memory()?;
    // What is there is part of the new peaks, and all of them.
    assert!(((BYTES / 8) as u64..BYTES as u64).contains(&figure(after.peak_used)?), "{after:?}");
    assert_eq!(after.peak_reserved, after.reserved, "{after:?}");
    drop(small);
    let there = bed.up(bed.bytes(BYTES))?;
    let again = bed.device.memory()?;
    assert!(figure(again.peak_used)? >= BYTES as u64, "{again:?}");
    drop(there);
    Ok(())
}

fn figure(known: Option<u64>) -> Result<u64, Failed> {
    known.ok_or_else(|| "a backend with memory of its own does not count it".into())
}

fn properties_are_the_same_opened_or_not(bed: &Bed) -> Result<(), Failed> {
    let properties = bed.device.properties()?;
    assert_eq!(Device::properties_of(bed.device.id())?, properties);
    assert!(!properties.name.is_empty());
    assert!(bed.device.description().contains(&properties.name), "{properties:?}");
    if let Some(pci) = properties.pci {
        assert_eq!(pci.to_string().parse::<PciAddress>()?, pci);
    }
    Ok(())
}

/// catches: 253-uuid-of-another-device
fn each_device_is_hardware_of_its_own(bed: &Bed) -> Result<(), Failed> {
    let properties = |device: &Device| Device::properties_of(device.id());
    let (first, second) = (properties(&bed.device)?, properties(bed.second()?)?);
    assert_eq!(bed.second()?.properties()?, second);
    assert_ne!(first.is_same_hardware(&first.clone()), Some(false), "{first:?}");
    // Two adapters of wgpu may be two ways to one GPU.
    if bed.device.id().driver() != "wgpu" {
        assert_eq!(first.is_same_hardware(&second), Some(false), "{first:?} and {second:?}");
        assert!(first.uuid.is_none() || first.uuid != second.uuid, "{first:?} and {second:?}");
    }
    Ok(())
}

fn who_reaches_whom_is_known_before(bed: &Bed) -> Result<(), Failed> {
    let (first, second) = (&bed.device, bed.second()?);
    for (to, from) in [(first, second), (second, first), (first, first)] {
        let told = Device::reaches(to.id(), from.id())?;
        assert_eq!(told, to.backend().reaches(&**from.backend()), "{} from {}", to.id(), from.id());
    }
    Ok(())
}

/// catches: 255-drivers-reach-each-other
fn drivers_do_not_reach_each_other(bed: &Bed) -> Result<(), Failed> {
    let (device, host) = (bed.device.id(), bed.host.id());
    assert!(Device::reaches(device, device)? && Device::reaches(host, host)?);
    assert_eq!(Device::reaches(device, host)?, bed.device.is_host());
    assert_eq!(Device::reaches(host, device)?, bed.device.is_host());
    Ok(())
}

fn a_device_that_is_not_there_has_no_properties(bed: &Bed) -> Result<(), Failed> {
    if bed.device.is_host() {
        return Ok(());
    }
    let id = bed.device.id();
    let far = DeviceId::new(id.driver(), 9999)?;
    let no_such =
        |error: Option<Error>| matches!(error, Some(Error::NoSuchDevice { device, .. }) if device == far);
    assert!(no_such(Device::properties_of(far).err()));
    assert!(no_such(Device::reaches(far, id).err()) && no_such(Device::reaches(id, far).err()));
    Ok(())
}
