//! Trees on a device that another process gets, without a copy: on CUDA, or the stand-in for its driver.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use libtest_mimic::Trial;
use transship_core::{CopyOptions, Device, Error, Tensor, start_copy, start_copy_into};
use transship_ipc::{Exporter, Importer, IpcError};

use crate::exported::pair;
use crate::hostile_exporter::{SEALS, Sent, hearing, importer_of_all, manifest, tree};
use crate::hostile_feed::memory;
use crate::hostile_loader::message;
use crate::kills::seeds;
use crate::support::{LONG, batch, compare, cuda_case, devices, folder, hip_case, id, like};
use crate::tree_child::{
    RELEASED, Role, TREES, UNSUPPORTED, by, connect, on, phase, spawn_on_device, step, tree_of,
};
use crate::windows::read;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        cuda_case("cuda_trees_of_another_process_arrive", trees_arrive),
        cuda_case("cuda_trees_go_to_several_processes", trees_go_to_several_processes),
        cuda_case("cuda_trees_are_lent_until_their_last_use", trees_are_lent_until_their_last_use),
        cuda_case("cuda_trees_are_handed_over_once_they_are_copied", trees_are_handed_over_once_copied),
        cuda_case("cuda_trees_share_memory_and_have_no_gaps", trees_share_memory),
        cuda_case("cuda_trees_and_trees_of_the_host_take_turns", both_kinds_take_turns),
        cuda_case("cuda_trees_of_another_device_are_refused", trees_of_another_device_are_refused),
        cuda_case("cuda_trees_go_on_to_another_device_by_kernels", trees_go_on_by_kernels),
        cuda_case("cuda_tensors_outlive_their_exporter", tensors_outlive_their_exporter),
        cuda_case("cuda_importers_that_are_killed_give_all_back", killed_importers),
        cuda_case("cuda_exporters_that_are_killed_leave_what_they_gave", killed_exporters),
        cuda_case("cuda_calls_that_fail_end_in_errors", calls_that_fail),
        cuda_case("cuda_memory_that_is_not_freed_is_not_given_back", what_is_not_freed_is_not_given_back),
        cuda_case("cuda_a_window_whose_copy_is_lost_is_no_turn_again", lost_copies_keep_their_window),
        cuda_case("cuda_importers_believe_no_exporter", importers_believe_no_exporter),
        cuda_case("cuda_a_tree_in_memory_without_bounds_is_refused", memory_without_bounds_is_refused),
        cuda_case("cuda_names_that_come_twice_are_refused", names_that_come_twice_are_refused),
        cuda_case("cuda_devices_without_such_pools_say_so", devices_without_pools_say_so),
        hip_case("hip_trees_are_refused_and_go_by_the_host", hip_trees_are_refused),
    ]
}

fn trees_arrive(device: &Device) {
    let (_folder, path) = folder();
    let process = spawn_on_device(&path, Role::Exporter, None, &[]);
    let mut importer = connect(&path, device);
    for number in 0..TREES {
        let there = importer.next_within(LONG).unwrap().unwrap();
        assert_eq!(there.tensors().unwrap().len(), 4);
        let tree = tree_of(&there, number);
        for tensor in tree.values().filter(|tensor| tensor.nbytes() > 0) {
            assert_eq!(tensor.device_id().unwrap(), device.id());
        }
        let other = on(number, device);
        let refused = start_copy_into(other, tree, CopyOptions::default()).unwrap_err();
        let tree = refused.into_both().1.unwrap();
        if let Ok(peer) = Device::open(id("cuda", 1)) {
            compare(start_copy(tree.clone(), &peer, CopyOptions::default()).unwrap().wait().unwrap(), number);
        }
        compare(tree, number);
    }
    assert!(importer.next_within(LONG).unwrap().is_none());
    process.join();
}

fn trees_go_to_several_processes(device: &Device) {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let processes = [0, 1].map(|_| spawn_on_device(&path, Role::Importer, None, &[]));
    let mut connections = processes.each_ref().map(|_| exporter.accept_within(LONG).unwrap());
    let mut offers = Vec::new();
    for number in 0..TREES {
        let there = on(number, device);
        offers.extend(connections.each_mut().map(|connection| connection.export(&there).unwrap()));
    }
    offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
    drop(connections);
    processes.into_iter().for_each(|process| process.join());
}

const SHORT: Duration = Duration::from_millis(20);

/// catches: 581-told-before-the-memory-is-freed, 582-freed-while-it-is-lent
fn trees_are_lent_until_their_last_use(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    for number in 0..8 {
        let offer = connection.export(&on(number, device)).unwrap();
        let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), number);
        assert!(offer.wait_released(SHORT).is_err());
        // The only use is a copy that runs.
        let copy = start_copy(tree, &Device::host(), CopyOptions::default()).unwrap();
        compare(copy.wait().unwrap(), number);
        offer.wait_released(LONG).unwrap();
    }
    // Both ends go before the tensors do.
    let offer = connection.export(&on(9, device)).unwrap();
    let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), 9);
    drop((connection, importer));
    assert!(offer.wait_released(SHORT).is_err());
    compare(tree, 9);
    offer.wait_released(LONG).unwrap();
}

/// catches: 583-handed-over-before-it-is-copied
fn trees_are_handed_over_once_copied(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let stream = device.create_stream(transship_core::StreamPriority::Normal).unwrap();
    for number in 0..8 {
        let there = start_copy(batch(number), device, CopyOptions::default().stream(&stream)).unwrap();
        // Tensors that still wait for their copy.
        connection.export(&there.wait_on(&stream).unwrap()).unwrap();
        let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), number);
        compare(tree, number);
    }
}

fn trees_share_memory(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let base = Tensor::from_vec((0..60_u8).collect(), &[3, 4, 5]).unwrap();
    let base = start_copy(base, device, CopyOptions::default()).unwrap().wait().unwrap();
    let (part, turned) = (base.narrow(2, 1, 2).unwrap(), base.transpose(0, 2).unwrap());
    let first = base.narrow(0, 0, 1).unwrap();
    let there = BTreeMap::from([("_", first), ("a", base.clone()), ("b", base), ("c", part), ("d", turned)]);
    connection.export(&there).unwrap();
    let imported = importer.next_within(LONG).unwrap().unwrap();
    assert!(imported.manifest().chunks()[0] <= 5 * 64);
    let mut filled = there.clone();
    imported.put_into(&mut filled).unwrap();
    assert!(filled["a"].shares_memory_with(&filled["b"]));
    let host = Device::host();
    let [filled, there] =
        [filled, there].map(|tree| start_copy(tree, &host, CopyOptions::default()).unwrap().wait().unwrap());
    for (name, tensor) in there {
        assert_eq!(filled[name].to_bytes().unwrap(), tensor.to_bytes().unwrap(), "{name}");
    }
}

/// A driver opens what it imports to no peer by itself. The first pool comes before the peer is known, the second one after.
/// Mutants: imported pools are not opened to peers that come later, or that are there.
fn trees_go_on_by_kernels(device: &Device) {
    const TENSORS: u8 = 64;
    let (_folder, path) = folder();
    let content = |number: u8| Tensor::from(vec![number; 3000]);
    let batch: Vec<Tensor> = (0..TENSORS).map(content).collect();
    let mut peers = Vec::new();
    for _ in 0..2 {
        let (mut connection, mut importer) = pair(&path, device);
        let there = start_copy(batch.clone(), device, CopyOptions::default()).unwrap().wait().unwrap();
        connection.export(&there).unwrap();
        let mut tree = batch.clone();
        importer.next_within(LONG).unwrap().unwrap().put_into(&mut tree).unwrap();
        let Ok(peer) = Device::open(id("cuda", 1)) else { return };
        if !peer.backend().reaches(&**device.backend()) {
            return;
        }
        let held = (0..TENSORS).map(|_| start_copy(content(0), &peer, CopyOptions::default()).unwrap());
        let held: Vec<Tensor> = held.map(|copy| copy.wait().unwrap()).collect();
        let copy = start_copy_into(tree, held, CopyOptions::default()).unwrap();
        let (filled, report) = copy.wait_with_report().unwrap();
        assert!(report.gathered >= u64::from(TENSORS), "{report}");
        let back = start_copy(filled, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        for (number, tensor) in (0..TENSORS).zip(&back) {
            assert_eq!(tensor.as_slice::<u8>().unwrap(), [number; 3000]);
        }
        peers.push(peer);
    }
}

fn both_kinds_take_turns(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    for number in 0..4 {
        connection.export(&on(number, device)).unwrap();
        connection.export(&batch(number)).unwrap();
        for _ in 0..2 {
            compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), number), number);
        }
    }
    let mut mixed = on(1, device);
    mixed.insert("image".to_owned(), batch(1)["image"].clone());
    assert!(matches!(connection.export(&mixed), Err(IpcError::SeveralDevices { .. })));
}

/// catches: 584-any-device-will-do
fn trees_of_another_device_are_refused(device: &Device) {
    let mut others = vec![devices()[0].clone(), devices()[1].clone()];
    others.extend(Device::open(id("cuda", 1)).ok());
    for other in others {
        let (_folder, path) = folder();
        let (mut connection, mut importer) = pair(&path, &other);
        let offer = connection.export(&on(1, device)).unwrap();
        connection.export(&batch(2)).unwrap();
        let error = importer.next_within(LONG).unwrap_err();
        let theirs = device.properties().unwrap().uuid.unwrap();
        assert!(error.to_string().contains(&theirs.to_string()), "{error}");
        assert!(matches!(error, IpcError::OtherDevice { device, .. } if device == other.id()));
        offer.wait_released(LONG).unwrap();
        // What comes behind it is there.
        compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), 2), 2);
    }
}

fn tensors_outlive_their_exporter(device: &Device) {
    let (_folder, path) = folder();
    let mut process = spawn_on_device(&path, Role::Exporter, None, &[]);
    let mut importer = connect(&path, device);
    let trees = [0, 1].map(|number| tree_of(&importer.next_within(LONG).unwrap().unwrap(), number));
    process.kill();
    assert!(importer.find_map(Result::err).is_none_or(|error| matches!(error, IpcError::PeerGone)));
    (0..).zip(trees).for_each(|(number, tree)| compare(tree, number));
}

/// Half of them die in a phase, the others at any time.
fn killed_importers(device: &Device) {
    for seed in 0..seeds() / 2 {
        let (_folder, path) = folder();
        let exporter = Exporter::bind(&path).unwrap();
        let dies = seed.is_multiple_of(2).then(|| phase(seed / 2));
        let mut process = spawn_on_device(&path, Role::Importer, dies, &[by(step(seed / 2))]);
        let mut connection = exporter.accept_within(LONG).unwrap();
        let mut offers = Vec::new();
        for number in 0..TREES {
            match connection.export(&on(step(seed / 2) * number, device)) {
                Ok(offer) => offers.push(offer),
                Err(IpcError::PeerGone) => break,
                Err(error) => panic!("{error}"),
            }
            // Its memory may be that of the next one. One that is killed from here dies at any time otherwise.
            if dies.is_some() && number % 2 == 1 {
                offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
            }
        }
        if dies.is_none() {
            std::thread::sleep(time(seed));
            process.kill();
        }
        offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
    }
}

fn killed_exporters(device: &Device) {
    for seed in 0..seeds() / 2 {
        let (_folder, path) = folder();
        let dies = seed.is_multiple_of(2).then(|| phase(seed / 2));
        let mut process = spawn_on_device(&path, Role::Exporter, dies, &[by(step(seed / 2))]);
        let mut importer = connect(&path, device);
        let killing = std::thread::spawn(move || {
            if dies.is_none() {
                std::thread::sleep(time(seed));
                process.kill();
            }
            process
        });
        let (mut kept, mut number) = (Vec::new(), 0);
        let end = loop {
            let tree = match importer.next_within(LONG) {
                Ok(Some(there)) => tree_of(&there, step(seed / 2) * number),
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            let of = step(seed / 2) * number;
            match number % 2 {
                0 => kept.push((of, tree)),
                // The exporter waits for these.
                _ => compare(start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap(), of),
            }
            number += 1;
        };
        assert!(matches!(end, None | Some(IpcError::PeerGone)), "{end:?}");
        drop(killing.join().unwrap());
        kept.into_iter().for_each(|(number, tree)| compare(tree, number));
    }
}

fn time(seed: u64) -> Duration {
    Duration::from_micros(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0x1fff)
}

/// The exit code of a process that has broken a rule of the driver.
const BROKEN: i32 = 86;
const SHARING: [&str; 8] = [
    "cuMemPoolCreate@2=oom",
    "cuMemPoolExportToShareableHandle@1=unknown",
    "cuMemPoolExportPointer@2=invalid",
    "cuMemPoolImportFromShareableHandle@1=invalid",
    "cuMemPoolImportPointer@2=unknown",
    "cuMemAllocFromPoolAsync~3=oom",
    "cuMemFreeAsync@2+=unknown",
    "cuStreamSynchronize@2=launch-failed",
];

/// In the process of the exporter, and in that of the importer. On a device nothing fails on demand.
fn calls_that_fail(device: &Device) {
    for faults in SHARING {
        let faults = [("DRIVER_SIM_FAULTS", faults.to_owned()), ("DRIVER_SIM_LEAKS", "allow".to_owned())];
        let (_folder, path) = folder();
        let process = spawn_on_device(&path, Role::Exporter, None, &faults);
        let mut importer = connect(&path, device);
        while let Ok(Some(there)) = importer.next_within(LONG) {
            drop(there);
        }
        assert_ne!(process.end().code(), Some(BROKEN), "{faults:?}");

        let (_folder, path) = folder();
        let exporter = Exporter::bind(&path).unwrap();
        let process = spawn_on_device(&path, Role::Importer, None, &faults);
        let mut connection = exporter.accept_within(LONG).unwrap();
        let offers = [0, 1, 2].map(|number| connection.export(&on(number, device)));
        drop(connection);
        offers.into_iter().flatten().for_each(|offer| offer.wait_released(LONG).unwrap());
        assert_ne!(process.end().code(), Some(BROKEN), "{faults:?}");
    }
}

/// In a process whose driver takes no memory back: who has exported it must not free it. On a device it does.
///
/// catches: 587-given-back-and-not-freed
fn what_is_not_freed_is_not_given_back(device: &Device) {
    let (_folder, path) = folder();
    let environment = [
        ("DRIVER_SIM_FAULTS", "cuMemFreeAsync@1+=unknown".to_owned()),
        ("DRIVER_SIM_LEAKS", "allow".to_owned()),
    ];
    let process = spawn_on_device(&path, Role::Both, None, &environment);
    let is_stand_in = device.description().contains("driver-sim");
    assert_eq!(process.end().code(), Some(if is_stand_in { 0 } else { RELEASED }));
}

/// In a process one of whose streams is lost. On a device none is.
///
/// catches: 702-a-lost-window-is-written-again
fn lost_copies_keep_their_window(device: &Device) {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let environment = [
        ("DRIVER_SIM_FAULTS", "cuEventQuery@5=unknown".to_owned()),
        ("DRIVER_SIM_LEAKS", "allow".to_owned()),
    ];
    let process = spawn_on_device(&path, Role::Loser, None, &environment);
    let mut connection = exporter.accept_within(LONG).unwrap();
    let windows = [0, 1].map(|_| connection.open_window(&like(0), device).unwrap());
    compare(read(&windows[1], 0).unwrap(), 0);
    let first = windows[0].written_within(Duration::from_millis(20));
    match device.description().contains("driver-sim") {
        true => assert!(matches!(first, Err(IpcError::NotInTime { .. })), "{first:?}"),
        false => drop(first.unwrap()),
    }
    drop((windows, connection));
    process.join();
}

/// In a process whose stand-in has no pools that can be exported. On a device all goes well.
fn devices_without_pools_say_so(device: &Device) {
    for without in ["shared-pools", "pools"] {
        let (_folder, path) = folder();
        let environment =
            [("DRIVER_SIM_WITHOUT", without.to_owned()), ("DRIVER_SIM_LEAKS", "allow".to_owned())];
        let process = spawn_on_device(&path, Role::Exporter, None, &environment);
        let end = connect(&path, device).find_map(Result::err);
        match device.description() {
            stand_in if stand_in.contains("driver-sim") => {
                assert_eq!(process.end().code(), Some(UNSUPPORTED), "{without}: {end:?}");
            }
            _ => process.join(),
        }
    }
}

fn hip_trees_are_refused(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let there = on(1, device);
    let refused = connection.export(&there).unwrap_err();
    assert!(refused.to_string().contains("HIP map wrong memory"), "{refused}");
    let back = start_copy(there, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    let offer = connection.export(&back).unwrap();
    let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), 1);
    compare(start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap(), 1);
    offer.wait_released(LONG).unwrap();
}

/// In a process whose driver does not tell where memory ends. On a device it does.
///
/// catches: 721-memory-without-bounds-is-believed
fn memory_without_bounds_is_refused(device: &Device) {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let environment = [
        ("DRIVER_SIM_FAULTS", "cuMemGetAddressRange_v2@1+=unknown".to_owned()),
        ("DRIVER_SIM_LEAKS", "allow".to_owned()),
    ];
    let process = spawn_on_device(&path, Role::Importer, None, &environment);
    let mut connection = exporter.accept_within(LONG).unwrap();
    let offer = connection.export(&on(0, device)).unwrap();
    offer.wait_released(LONG).unwrap();
    drop(connection);
    let is_stand_in = device.description().contains("driver-sim");
    assert_eq!(process.end().success(), !is_stand_in);
}

/// The driver gives the same pool and the same address again: to give the second one back would take them from the first.
///
/// catches: 593-imported-twice, 594-a-pool-imported-twice
fn names_that_come_twice_are_refused(device: &Device) {
    let shared = device.backend().create_shared_pool().unwrap();
    let uuid = u128::from_be_bytes(device.properties().unwrap().uuid.unwrap().0);
    let pool = |number: u64| -> Sent {
        let words = [number, (uuid >> 64) as u64, uuid as u64, 0];
        (message(8, words), vec![shared.export().unwrap()])
    };
    let pools = [pool(0), pool(1)];
    let (name, chunk) = shared.allocate(5000).unwrap();
    let whole = manifest(5000);
    let offer = |ticket: u64, pool: u64| -> Sent {
        let memory = tree(0, &[&name, &*whole].concat(), SEALS);
        (message(9, [ticket, pool, 5000, whole.len() as u64]), vec![memory])
    };
    let sent = pools.into_iter().chain([offer(1, 0), offer(2, 0), offer(3, 1), offer(4, 0)]).collect();
    let (mut importer, played) = hearing(sent, device);
    let first = importer.next_within(LONG).unwrap().unwrap();
    let address = first.tensors().unwrap()[0].1.address().unwrap().unwrap();
    for pool in [0, 1] {
        let again = importer.next_within(LONG);
        assert!(matches!(again, Err(IpcError::Tensors(Error::Unsupported { .. }))), "{pool}: {again:?}");
        assert!(device.backend().allocation_of(address).is_some(), "{pool}: the first one is gone");
    }
    drop(first);
    drop(importer.next_within(LONG).unwrap().unwrap());
    played.join().unwrap();
    drop((importer, chunk));
}

/// catches: 585-behind-the-end-of-the-memory, 586-pools-that-are-not-there
fn importers_believe_no_exporter(device: &Device) {
    let shared = device.backend().create_shared_pool().unwrap();
    shared.allocate(5000).err().expect("the pool was not exported");
    drop(shared.export().unwrap());
    let (name, chunk) = shared.allocate(5000).unwrap();
    let uuid = u128::from_be_bytes(device.properties().unwrap().uuid.unwrap().0);
    let uuid = [(uuid >> 64) as u64, uuid as u64];
    let pool = |number, uuid: [u64; 2]| message(8, [number, uuid[0], uuid[1], 0]);
    let good_pool = || -> Sent { (pool(0, uuid), vec![shared.export().unwrap()]) };
    let behind = |name: &[u8], manifest: &[u8], seals| {
        let both = [name, manifest].concat();
        tree(0, &both, seals)
    };
    let offer = |number, chunk, manifest: &[u8]| message(9, [1, number, chunk, manifest.len() as u64]);
    let of = |sent: Vec<Sent>| importer_of_all(sent, device);
    let whole = manifest(5000);

    let works = of(vec![good_pool(), (offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS)])]);
    assert!(matches!(works, Ok(Some(1))), "{works:?}");
    let larger = manifest(1 << 20);
    let broken: Vec<Vec<Sent>> = vec![
        vec![(offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS)])],
        vec![good_pool(), (offer(1, 5000, &whole), vec![behind(&name, &whole, SEALS)])],
        vec![good_pool(), (offer(u64::MAX, 5000, &whole), vec![behind(&name, &whole, SEALS)])],
        vec![good_pool(), (offer(0, 5000, &whole), vec![])],
        vec![
            good_pool(),
            (offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS - rustix::fs::SealFlags::SHRINK)]),
        ],
        vec![good_pool(), (offer(0, 5001, &whole), vec![behind(&name, &whole, SEALS)])],
        vec![good_pool(), (offer(0, u64::MAX, &whole), vec![behind(&name, &whole, SEALS)])],
        vec![good_pool(), (offer(0, 1 << 20, &larger), vec![behind(&name, &larger, SEALS)])],
        vec![good_pool(), (message(9, [1, 0, 5000, u64::MAX]), vec![behind(&name, &whole, SEALS)])],
        vec![good_pool(), (message(9, [1, 0, 5000, 0]), vec![behind(&name, &[], SEALS)])],
        vec![(pool(1, uuid), vec![shared.export().unwrap()])],
        vec![(pool(0, uuid), vec![])],
    ];
    for (number, sent) in broken.into_iter().enumerate() {
        let result = of(sent);
        assert!(matches!(result, Err(IpcError::Protocol { .. })), "{number}: {result:?}");
    }
    // What the driver is asked.
    let no_pool = || -> OwnedFd { memory(1 << 20, SEALS) };
    let mut garbage = [name; 3];
    garbage[0] = [0; 64];
    garbage[1] = [0xff; 64];
    garbage[2][8] ^= 0x40;
    let mut refused: Vec<Vec<Sent>> = vec![vec![
        (pool(0, uuid), vec![no_pool()]),
        (offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS)]),
    ]];
    for name in garbage {
        refused.push(vec![good_pool(), (offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS)])]);
    }
    for sent in refused {
        let result = of(sent);
        assert!(matches!(result, Err(IpcError::Tensors(_))), "{result:?}");
    }
    let other = of(vec![
        (pool(0, [uuid[0], uuid[1] ^ 0xff00]), vec![shared.export().unwrap()]),
        (offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS)]),
    ]);
    assert!(matches!(other, Err(IpcError::OtherDevice { .. })), "{other:?}");
    // A pool of another device, which is said to be one of this.
    if let Ok(peer) = Device::open(id("cuda", 1)) {
        let there = peer.backend().create_shared_pool().unwrap();
        drop(there.export().unwrap());
        let (name, _chunk) = there.allocate(5000).unwrap();
        let result = of(vec![
            (pool(0, uuid), vec![there.export().unwrap()]),
            (offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS)]),
        ]);
        // A driver of NVIDIA tells this device no bounds of memory of the other one.
        assert!(matches!(result, Err(IpcError::Tensors(_) | IpcError::Protocol { .. })), "{result:?}");
    }
    drop(chunk);
    let gone = of(vec![good_pool(), (offer(0, 5000, &whole), vec![behind(&name, &whole, SEALS)])]);
    // The stand-in knows no name of freed memory. A driver may (H100): then it is memory of that pool, with any bytes.
    assert!(gone.is_err() || !device.description().contains("driver-sim"), "{gone:?}");
    let _ = Importer::connect("nowhere", device).unwrap_err();
}
