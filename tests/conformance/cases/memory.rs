//! Staging, pinned memory, budgets, paced copies, background work.

use std::thread;

use libtest_mimic::Failed;
use transship::backend::MemoryKind;
use transship::{
    BackgroundWork, CopyOptions, DType, Device, Error, ErrorKind, StreamPriority, Tensor, start_copy,
};

use crate::backends::Need::{OwnMemory, Pinned};
use crate::bed::{Bed, eventually};
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(pinned_sources_go_directly).needs(Pinned),
        case!(small_pinned_sources_are_packed).needs(Pinned),
        case!(results_are_pinned_or_own_their_bytes).needs(OwnMemory),
        case!(results_may_stay_mapped).needs(OwnMemory),
        case!(results_above_the_budget_are_pageable).needs(OwnMemory),
        case!(without_pinned_staging_up).needs(OwnMemory),
        case!(without_pinned_staging_down).needs(OwnMemory),
        case!(paced_up).needs(OwnMemory),
        case!(paced_down).needs(OwnMemory),
        case!(background_always),
        case!(background_never),
        case!(background_auto).needs(OwnMemory),
        case!(busy_gives_the_structure_back).needs(OwnMemory),
        case!(staging_stays_within_its_budget).needs(OwnMemory),
        case!(small_budget_makes_small_blocks).needs(OwnMemory),
        case!(zeros_are_zeros),
        case!(tensors_stay_within_the_budget_of_their_device),
        case!(copies_that_find_no_room_are_served_in_their_order),
    ]
}

const MIB: usize = 1 << 20;

fn pinned(bed: &Bed, bytes: usize) -> Result<Tensor, Failed> {
    let mut tensor = Tensor::empty_pinned(&[bytes], DType::U8, &bed.device)?;
    assert_eq!(tensor.memory_kind()?, MemoryKind::Pinned);
    bed.random().fill(&mut tensor);
    Ok(tensor)
}

fn pinned_sources_go_directly(bed: &Bed) -> Result<(), Failed> {
    let bytes = bed.device.limits().copy_granularity.round_up(MIB + 3).ok_or("too large")?;
    let trip = bed.round_trip(pinned(bed, bytes)?, bed.options())?;
    assert_eq!((trip.up.pinned_staging_bytes, trip.up.pageable_staging_bytes), (0, 0), "{}", trip.up);
    assert_eq!((trip.up.copies, trip.up.background), (1, false), "{}", trip.up);
    Ok(())
}

fn small_pinned_sources_are_packed(bed: &Bed) -> Result<(), Failed> {
    let sent = vec![pinned(bed, 100)?, bed.bytes(200), pinned(bed, 300)?];
    let trip = bed.round_trip(sent, bed.options())?;
    assert_eq!((trip.up.packed, trip.up.copies), (3, 1), "{}", trip.up);
    Ok(())
}

/// Memory that is mapped from a device goes with it.
fn results_are_pinned_or_own_their_bytes(bed: &Bed) -> Result<(), Failed> {
    let mapped = bed.device.limits().mapped_staging;
    results_lie_in(bed, bed.options(), if mapped { MemoryKind::Pageable } else { MemoryKind::Pinned })
}

fn results_may_stay_mapped(bed: &Bed) -> Result<(), Failed> {
    // SAFETY: nobody destroys the device.
    let options = unsafe { bed.options().mapped_results() };
    let mapped = bed.device.limits().mapped_staging;
    results_lie_in(bed, options, if mapped { MemoryKind::Mapped } else { MemoryKind::Pinned })
}

fn results_lie_in(bed: &Bed, options: CopyOptions, kind: MemoryKind) -> Result<(), Failed> {
    let trip = bed.round_trip((bed.batch(20), bed.bytes(MIB)), options)?;
    assert_eq!(trip.down.pageable_result_bytes == 0, kind != MemoryKind::Pageable, "{}", trip.down);
    for tensor in trip.value.0.iter().chain([&trip.value.1]) {
        assert_eq!(tensor.memory_kind()?, kind);
    }
    Ok(())
}

fn results_above_the_budget_are_pageable(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    device.set_result_budget(64 << 10)?;
    let sent = bed.bytes(MIB);
    let expected = Contents::of(&sent);
    let (there, _) = bed.copy(sent, &device, bed.options())?;
    let (back, report) = bed.copy(there, &bed.host, bed.options())?;
    assert_eq!(back.memory_kind()?, MemoryKind::Pageable);
    assert_eq!(report.pageable_result_bytes, MIB as u64, "{report}");
    assert!(report.to_string().contains("fall-back"), "{report}");
    assert_same(&[expected], &[Contents::of(&back)]);
    assert!(device.result_usage().high_water <= 64 << 10);
    Ok(())
}

fn without_pinned_staging_up(bed: &Bed) -> Result<(), Failed> {
    let options = bed.options().pinned_staging(false);
    let mut sent = (bed.batch(20), bed.bytes(MIB));
    let expected = Contents::of_all(&mut sent);
    let (there, report) = bed.copy(sent, &bed.device, options)?;
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    assert!(report.pageable_staging_bytes >= report.payload_bytes, "{report}");
    assert!(report.background, "a copy that blocks is not for the caller's thread");
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    Ok(())
}

fn without_pinned_staging_down(bed: &Bed) -> Result<(), Failed> {
    let sent = bed.bytes(MIB);
    let expected = Contents::of(&sent);
    let there = bed.up(sent)?;
    let (back, report) = bed.copy(there, &bed.host, bed.options().pinned_staging(false))?;
    assert_eq!((back.memory_kind()?, report.pinned_staging_bytes), (MemoryKind::Pageable, 0));
    assert_same(&[expected], &[Contents::of(&back)]);
    Ok(())
}

fn paced_up(bed: &Bed) -> Result<(), Failed> {
    let sent = (bed.batch(20), bed.bytes(MIB));
    let trip = bed.round_trip(sent, bed.options().max_bytes_in_flight(64 << 10))?;
    assert!(trip.up.submissions >= 16, "{}", trip.up);
    Ok(())
}

fn paced_down(bed: &Bed) -> Result<(), Failed> {
    let sent = (bed.batch(20), bed.bytes(MIB));
    let trip = bed.round_trip(sent, bed.options().max_bytes_in_flight(64 << 10))?;
    assert!(trip.down.submissions > 1, "{}", trip.down);
    Ok(())
}

fn background_always(bed: &Bed) -> Result<(), Failed> {
    let trip = bed.round_trip(bed.batch(50), bed.options().background(BackgroundWork::Always))?;
    assert!(trip.up.background && trip.down.background, "{}", trip.up);
    let (_, report) =
        bed.copy(Vec::<Tensor>::new(), &bed.device, bed.options().background(BackgroundWork::Always))?;
    assert!(!report.background, "there is nothing to do in the background");
    Ok(())
}

fn background_never(bed: &Bed) -> Result<(), Failed> {
    let sent = (bed.batch(50), bed.bytes(5 * MIB));
    let trip = bed.round_trip(sent, bed.options().background(BackgroundWork::Never))?;
    assert!(!trip.up.background && !trip.down.background, "{}", trip.up);
    Ok(())
}

/// With memory at hand, small copies are done at once and large ones are not.
fn background_auto(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    device.prepare(64 << 10)?;
    let (there, up) = bed.copy(bed.batch(50), &device, bed.options())?;
    let (_, down) = bed.copy(there, &bed.host, bed.options())?;
    assert!(!up.background && !down.background, "{up}");
    let (_, large) = bed.copy(bed.bytes(5 * MIB), &device, bed.options())?;
    assert!(large.background, "{large}");
    Ok(())
}

fn busy_gives_the_structure_back(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    device.set_staging_budget(64 << 10)?;
    let options = bed.options().background(BackgroundWork::Never);
    let mut sent = (bed.bytes(MIB), vec![bed.bytes(3)]);
    let expected = Contents::of_all(&mut sent);
    let failed = start_copy(sent, &device, options.clone()).expect_err("16 times the budget");
    assert!(
        matches!(failed.error(), Error::Busy { device: busy, requested, .. }
            if *busy == device.id() && *requested >= MIB),
        "{failed}"
    );
    let mut back = failed.into_value().expect("the structure comes back");
    assert_same(&expected, &Contents::of_all(&mut back));
    device.set_staging_budget(4 * MIB)?;
    let (there, _) = bed.copy(back, &device, options)?;
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    Ok(())
}

fn staging_stays_within_its_budget(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    let budget = 8 * MIB;
    device.set_staging_budget(budget)?;
    let mut sent = Vec::from_iter((0..5).map(|_| bed.bytes(5 * MIB)));
    let expected = Contents::of_all(&mut sent);
    let handles: Vec<_> = sent
        .into_iter()
        .map(|tensor| start_copy(tensor, &device, bed.options()))
        .collect::<Result<_, _>>()?;
    let there: Vec<Tensor> = handles.into_iter().map(|handle| handle.wait()).collect::<Result<_, _>>()?;
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    let held = device.staging_usage();
    assert!(held.high_water <= budget, "{held:?}");
    assert_eq!((held.budget, held.in_use), (budget, 0));
    let idle = held.idle + device.result_usage().idle;
    let trimmed = device.trim();
    assert!(trimmed >= idle, "{trimmed} bytes freed of {idle} in idle blocks alone");
    assert_eq!((device.staging_usage().idle, device.result_usage().idle), (0, 0));
    Ok(())
}

fn small_budget_makes_small_blocks(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    device.set_staging_budget(256 << 10)?;
    let sent = bed.bytes(2 * MIB);
    let expected = Contents::of(&sent);
    let (there, report) = bed.copy(sent, &device, bed.options())?;
    assert!(report.copies >= 8, "{report}");
    assert!(device.staging_usage().high_water <= 256 << 10);
    assert_same(&[expected], &[Contents::of(&bed.down(there)?)]);
    Ok(())
}

fn zeros_are_zeros(bed: &Bed) -> Result<(), Failed> {
    let on = |device: &Device| Tensor::zeros(&[1000, 3], DType::F32, device);
    assert_eq!(on(&bed.device)?.device_id()?, bed.device.id());
    let back = bed.down((on(&bed.device)?, on(&bed.host)?))?;
    assert_eq!(back.0.to_vec::<f32>()?, [0.0; 3000]);
    assert_eq!(back.1.to_vec::<f32>()?, [0.0; 3000]);
    Ok(())
}

/// The host has none: its tensors have ordinary memory.
fn tensors_stay_within_the_budget_of_their_device(bed: &Bed) -> Result<(), Failed> {
    if bed.device.is_host() {
        let refused = bed.device.set_memory_budget(MIB).expect_err("it is the system's");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        return Ok(());
    }
    let device = bed.private()?;
    device.set_memory_budget(2 * MIB)?;
    let (first, _) = bed.copy(vec![bed.bytes(MIB), bed.bytes(MIB / 2)], &device, bed.options())?;
    let mut second = (bed.bytes(MIB), vec![bed.bytes(3)]);
    let expected = Contents::of_all(&mut second);
    for when in [BackgroundWork::Auto, BackgroundWork::Always] {
        let refused = start_copy(second, &device, bed.options().background(when))
            .and_then(|copy| copy.wait())
            .expect_err("there is half a MiB left");
        assert!(
            matches!(refused.error(), Error::OverBudget { device: refuses, budget, .. }
                if *refuses == device.id() && *budget == 2 * MIB),
            "{refused}"
        );
        second = refused.into_value().expect("the structure comes back");
    }
    let memory = device.memory()?;
    assert_eq!(memory.budget, Some(2 << 20));
    assert!(memory.tensors.is_some_and(|bytes| (3 << 19..=2 << 20).contains(&bytes)), "{memory:?}");
    assert!(Tensor::zeros(&[MIB], DType::U8, &device).is_err());
    drop(first);
    device.synchronize()?;
    let (there, _) = bed.copy(second, &device, bed.options())?;
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    device.synchronize()?;
    eventually("all is given back", || device.memory().is_ok_and(|memory| memory.tensors == Some(0)))
}

/// Each thread has its last result and the next one, on a stream of its own. All fit as soon as what is in flight has ended, the large
/// ones as well.
fn copies_that_find_no_room_are_served_in_their_order(bed: &Bed) -> Result<(), Failed> {
    if bed.device.is_host() {
        return Ok(());
    }
    let sizes = [4 << 10, 64 << 10, 64 << 10, 2 * MIB];
    let device = bed.private()?;
    device.set_memory_budget(2 * sizes.iter().sum::<usize>())?;
    let copies = |bytes: usize| -> Result<(), Failed> {
        let (stream, mut held) = (device.create_stream(StreamPriority::Normal)?, None);
        for step in 0..40_u8 {
            let source = Tensor::from(vec![step; bytes]);
            let there = start_copy(source, &device, bed.options())?.wait_on(&stream)?;
            if step % 20 == 19 {
                assert_eq!(bed.down(there.clone())?.to_vec::<u8>()?, vec![step; bytes]);
            }
            held = Some(there);
        }
        drop(held);
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = sizes
            .map(|bytes| {
                scope.spawn({
                    let copies = &copies;
                    move || copies(bytes)
                })
            })
            .into_iter()
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    device.synchronize()?;
    eventually("all is given back", || device.memory().is_ok_and(|memory| memory.tensors == Some(0)))
}
