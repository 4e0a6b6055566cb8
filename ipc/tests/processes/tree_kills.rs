//! Exporters and importers that are killed: no other process hangs, what was handed over stays right, and nothing stays behind.

use std::thread::JoinHandle;
use std::time::Duration;

use libtest_mimic::Trial;
use transship_core::{CopyOptions, start_copy};
use transship_ipc::{Exporter, IpcError};

use crate::kills::seeds;
use crate::support::{LONG, batch, case, compare, devices, eventually, folder, held};
use crate::tree_child::{Phase, Process, Role, TREES, connect, phase, spawn_by, step, tree_of};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("an_importer_that_is_killed_in_any_phase_gives_all_back", importers_in_phases),
        case("importers_that_are_killed_at_any_time_give_all_back", importers_at_any_time),
        case("an_exporter_that_is_killed_in_any_phase_leaves_what_it_gave", exporters_in_phases),
        case("exporters_that_are_killed_at_any_time_leave_what_they_gave", exporters_at_any_time),
    ]
}

/// catches: 567-trees-of-the-dead-stay-lent
fn importers_in_phases() {
    (0..seeds() / 2).for_each(|seed| export_to_one_that_dies(seed, Some(phase(seed)), None));
}

fn importers_at_any_time() {
    (0..seeds() / 2).for_each(|seed| export_to_one_that_dies(seed, None, Some(time(seed))));
}

fn exporters_in_phases() {
    (0..seeds() / 2).for_each(|seed| import_of_one_that_dies(seed, Some(phase(seed)), None));
}

fn exporters_at_any_time() {
    (0..seeds() / 2).for_each(|seed| import_of_one_that_dies(seed, None, Some(time(seed))));
}

/// From its first message on a process is at work for about so long.
fn time(seed: u64) -> Duration {
    Duration::from_micros(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0x1fff)
}

/// Kills it in so much time. One that dies by itself stays until this is joined.
fn killing(mut process: Process, after: Option<Duration>) -> JoinHandle<Process> {
    std::thread::spawn(move || {
        if let Some(after) = after {
            std::thread::sleep(after);
            process.kill();
        }
        process
    })
}

fn export_to_one_that_dies(seed: u64, dies: Option<(Phase, u64)>, after: Option<Duration>) {
    let (before, step) = (held(), step(seed));
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let process = spawn_by(&path, Role::Importer, dies, step);
    let mut connection = exporter.accept_within(LONG).unwrap();
    let killing = killing(process, after);
    let mut offers = Vec::new();
    for number in 0..TREES {
        match connection.export(&batch(step * number)) {
            Ok(offer) => offers.push(offer),
            Err(IpcError::PeerGone) => break,
            Err(error) => panic!("{error}"),
        }
        // Its memory may be that of the next one.
        if number % 2 == 1 {
            offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
        }
    }
    drop(killing.join().unwrap());
    offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
    eventually("the memory of its trees has gone", || held().1 == before.1);
    drop((connection, exporter, offers));
    eventually("all is back", || held() == before);
}

fn import_of_one_that_dies(seed: u64, dies: Option<(Phase, u64)>, after: Option<Duration>) {
    let (before, device, step) = (held().1, devices()[seed as usize % 2], step(seed));
    let (_folder, path) = folder();
    let process = spawn_by(&path, Role::Exporter, dies, step);
    let mut importer = connect(&path, device);
    let killing = killing(process, after);
    let check = |tree, number| {
        compare(start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap(), number);
    };
    let (mut kept, mut number) = (Vec::new(), 0);
    let end = loop {
        let tree = match importer.next_within(LONG) {
            Ok(Some(there)) => tree_of(&there, step * number),
            Ok(None) => break None,
            Err(error) => break Some(error),
        };
        match number % 2 {
            0 => kept.push((number, tree)),
            // The exporter waits for these.
            _ => check(tree, step * number),
        }
        number += 1;
    };
    assert!(matches!(end, None | Some(IpcError::PeerGone)), "{end:?}");
    drop(killing.join().unwrap());
    assert!(end.is_some() || number == TREES);
    kept.into_iter().for_each(|(number, tree)| check(tree, step * number));
    drop(importer);
    eventually("all shared memory is unmapped", || held().1 == before);
}
