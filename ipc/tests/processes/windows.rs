//! Windows: memory of a process that another one writes, again and again.

use std::os::fd::OwnedFd;
use std::time::Duration;

use late_backend::Call;
use libtest_mimic::Trial;
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, getrlimit, setrlimit, waitpid};
use transship_core::{CopyOptions, Device, Error, Tensor, TensorTree, start_copy};
use transship_ipc::{Connection, Exporter, Importer, IpcError, Window};

use crate::exported::pair;
use crate::hostile_exporter::{SEALS, hearing, manifest, tree};
use crate::hostile_loader::{message, socket};
use crate::kills::seeds;
use crate::support::{
    LONG, Tree, batch, case, compare, cuda_case, devices, eventually, folder, held, id, like, that_fails,
};
use crate::tree_child::{Phase, Process, Role, TREES, on, spawn, spawn_on_device};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("windows_are_written_by_another_process", || {
            written_by_another_process(&Device::host(), spawn_writer)
        }),
        case("a_window_is_not_written_while_it_is_read", || not_written_while_it_is_read(&Device::host())),
        case("what_was_not_taken_is_not_given_again", || {
            what_was_not_taken_is_not_given_again(&Device::host())
        }),
        cuda_case("cuda_what_was_not_taken_is_not_given_again", what_was_not_taken_is_not_given_again),
        case("what_is_prepared_is_put_once_it_is_written", || {
            what_is_prepared_is_put_once_it_is_written(&Device::host())
        }),
        cuda_case(
            "cuda_what_is_prepared_is_put_once_it_is_written",
            what_is_prepared_is_put_once_it_is_written,
        ),
        case("what_does_not_fit_a_window_is_refused", what_does_not_fit_is_refused),
        case("what_was_copied_in_part_is_not_handed_over", what_was_copied_in_part_is_not_handed_over),
        case("a_turn_that_is_dropped_comes_again", a_turn_that_is_dropped_comes_again),
        case("a_forked_child_gives_no_window_again", a_forked_child_gives_no_window_again),
        case("windows_and_trees_take_turns", windows_and_trees_take_turns),
        case("a_window_that_is_dropped_goes_at_both_ends", || dropped_windows_go(&Device::host())),
        case("what_was_finished_outlives_its_writer", || {
            what_was_finished_outlives_its_writer(&Device::host())
        }),
        case("memory_of_a_window_is_not_used_again", memory_of_a_window_is_not_used_again),
        case("writers_that_are_killed_leave_what_they_wrote", || killed_writers(&Device::host(), spawn)),
        case("a_writer_outlives_its_window", a_writer_outlives_its_window),
        case("a_writer_without_descriptors_goes_on", a_writer_without_descriptors_goes_on),
        case("who_breaks_the_rules_of_windows_is_sent_away", importers_that_break_the_rules),
        case("a_writer_believes_no_exporter", a_writer_believes_no_exporter),
        cuda_case("cuda_windows_are_written_by_another_process", |device| {
            written_by_another_process(device, |path| spawn_on_device(path, Role::Writer, None, &[]));
        }),
        cuda_case("cuda_windows_are_written_from_anywhere", written_from_anywhere),
        cuda_case("cuda_windows_are_not_written_while_they_are_read", not_written_while_it_is_read),
        cuda_case("cuda_windows_that_are_dropped_go_at_both_ends", dropped_windows_go),
        cuda_case("cuda_what_was_finished_outlives_its_writer", what_was_finished_outlives_its_writer),
        cuda_case("cuda_windows_of_another_device_are_refused", windows_of_another_device_are_refused),
        cuda_case("cuda_writers_that_are_killed_leave_what_they_wrote", |device| {
            killed_writers(device, |path, role, dies| spawn_on_device(path, role, dies, &[]));
        }),
    ]
}

const SHORT: Duration = Duration::from_millis(20);

fn spawn_writer(path: &std::path::Path) -> Process {
    spawn(path, Role::Writer, None)
}

/// What the window has now, as a tree that looks like that of `number`.
pub(crate) fn read(window: &Window, number: u64) -> Result<Tree, IpcError> {
    let mut tree = like(number);
    window.written_within(LONG)?.put_into(&mut tree)?;
    Ok(tree)
}

pub(crate) fn write<S: TensorTree>(importer: &mut Importer, tree: &S) {
    let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
    turn.put(tree).unwrap();
    turn.finish().unwrap();
}

/// One for each length of what has an odd one.
fn windows(connection: &mut Connection, device: &Device) -> Vec<Window> {
    (0..2).map(|number| connection.open_window(&like(number), device).unwrap()).collect()
}

fn written_by_another_process(device: &Device, writer: impl Fn(&std::path::Path) -> Process) {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let process = writer(&path);
    let mut connection = exporter.accept_within(LONG).unwrap();
    // Of trees of several lengths: the writer has one for each number.
    let windows: Vec<_> =
        (0..TREES).map(|number| connection.open_window(&like(number), device).unwrap()).collect();
    for (number, window) in (0..).zip(&windows) {
        let tree = read(window, number).unwrap();
        assert!(
            tree.values().all(|tensor| tensor.nbytes() == 0 || tensor.device_id().unwrap() == device.id())
        );
        compare(tree, number);
    }
    drop((windows, connection));
    process.join();
}

fn written_from_anywhere(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let window = connection.open_window(&like(1), device).unwrap();
    let mut sources = vec![batch(1), on(10, device)];
    if let Ok(peer) = Device::open(id("cuda", 1)) {
        sources.push(on(19, &peer));
    }
    for (source, number) in sources.iter().zip([1, 10, 19]) {
        write(&mut importer, source);
        compare(read(&window, number).unwrap(), number);
    }
}

/// catches: 646-written-while-it-is-read, 652-read-twice
fn not_written_while_it_is_read(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let window = connection.open_window(&like(0), device).unwrap();
    for number in [0, 9, 18] {
        assert!(matches!(window.written_within(SHORT), Err(IpcError::NotInTime { .. })));
        write(&mut importer, &batch(number));
        let tree = read(&window, number).unwrap();
        assert!(matches!(importer.next_turn_within(SHORT), Err(IpcError::NotInTime { .. })));
        assert!(matches!(window.written_within(SHORT), Err(IpcError::NotInTime { .. })));
        // The only use is a copy that runs.
        compare(start_copy(tree, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap(), number);
    }
}

/// catches: 680-what-nobody-has-taken-is-given-again
fn what_was_not_taken_is_not_given_again(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let [window, other] = [0, 1].map(|_| connection.open_window(&like(0), device).unwrap());
    let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
    // Two wait for one version, in vain, and then one of them has it.
    let waiting = || window.written_within(SHORT).is_ok();
    let seen =
        std::thread::scope(|scope| [scope.spawn(waiting), scope.spawn(waiting)].map(|wait| wait.join()));
    assert!(seen.iter().all(|seen| matches!(seen, Ok(false))));
    turn.put(&batch(0)).unwrap();
    turn.finish().unwrap();
    let tree = read(&window, 0).unwrap();
    assert!(matches!(window.written_within(SHORT), Err(IpcError::NotInTime { .. })));
    // The other one goes, which was waited for in vain.
    assert!(matches!(other.written_within(SHORT), Err(IpcError::NotInTime { .. })));
    drop((window, other));
    assert!(matches!(importer.next_turn_within(SHORT), Err(IpcError::NotInTime { .. })));
    eventually("tensors are over one of them", || connection.lent() == 1);
    compare(tree, 0);
    assert!(matches!(importer.next_turn_within(SHORT), Err(IpcError::NotInTime { .. })));
    eventually("nothing is lent", || connection.lent() == 0);
}

/// catches: 681-what-was-prepared-is-handed-out-too-early
fn what_is_prepared_is_put_once_it_is_written(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let window = connection.open_window(&like(0), device).unwrap();
    let (mut tree, mut other) = (batch(0), like(1));
    for number in [0, 9, 18] {
        for _ in 0..2 {
            let waited = window.put_written_within(&mut tree, SHORT);
            assert!(matches!(waited, Err(IpcError::NotInTime { .. })), "{waited:?}");
            let refused = window.put_written_within(&mut other, LONG);
            assert!(matches!(refused, Err(IpcError::Tensors(Error::ManifestMismatch { .. }))), "{refused:?}");
        }
        // What there was is still there, on the host.
        assert!(tree.values().all(|tensor| tensor.as_bytes().is_ok()));
        write(&mut importer, &batch(number));
        window.put_written_within(&mut tree, LONG).unwrap();
        assert!(matches!(importer.next_turn_within(SHORT), Err(IpcError::NotInTime { .. })));
        compare(tree, number);
        tree = batch(0);
    }
}

fn what_does_not_fit_is_refused() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let window = connection.open_window(&like(3), devices()[0]).unwrap();
    let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
    assert_eq!(turn.manifest().len(), 4);
    let error = turn.put(&batch(4)).unwrap_err();
    assert!(matches!(&error, Error::ManifestMismatch { path, .. } if path == r#"["odd"]"#), "{error}");
    assert!(turn.put(&vec![Tensor::from(vec![1_u8])]).is_err());
    turn.put(&batch(3)).unwrap();
    turn.finish().unwrap();
    let tree = read(&window, 3).unwrap();
    assert!(matches!(tree["image"].as_slice::<u8>(), Err(Error::SharedMemory)));
    compare(tree, 3);
}

/// catches: 654-a-child-gives-a-window-again
fn a_forked_child_gives_no_window_again() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let window = connection.open_window(&like(0), devices()[0]).unwrap();
    write(&mut importer, &batch(0));
    let tree = read(&window, 0).unwrap();
    // SAFETY: the child drops what needs no lock and no thread, and ends.
    match unsafe { libc::fork() } {
        0 => {
            drop((tree, window));
            // SAFETY: it ends the process, and runs nothing else of it.
            unsafe { libc::_exit(0) }
        }
        child => assert!(waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().is_some()),
    }
    assert!(importer.next_turn_within(SHORT).is_err());
    compare(tree, 0);
    write(&mut importer, &batch(9));
    compare(read(&window, 9).unwrap(), 9);
}

/// catches: 656-half-a-version-is-handed-over
fn what_was_copied_in_part_is_not_handed_over() {
    let (late, device) = that_fails();
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let window = connection.open_window(&like(0), devices()[0]).unwrap();
    for after in [0, 1] {
        let there = on(0, &device);
        late.fail_next(Call::Submit, after);
        let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
        let failed = turn.put(&there).is_err();
        late.fail_no_more();
        assert!(failed || after > 0);
        if failed {
            assert!(matches!(turn.finish(), Err(IpcError::HalfWritten)));
            turn = importer.next_turn_within(LONG).unwrap().unwrap();
            assert!(matches!(window.written_within(SHORT), Err(IpcError::NotInTime { .. })));
            turn.put(&batch(1)).unwrap_err();
            turn.put(&batch(0)).unwrap();
        }
        turn.finish().unwrap();
        compare(read(&window, 0).unwrap(), 0);
    }
}

/// catches: 647-turns-are-lost
fn a_turn_that_is_dropped_comes_again() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let windows = windows(&mut connection, devices()[0]);
    let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
    turn.put(&batch(0)).unwrap();
    drop(turn);
    // What it has written is there, and the window is still the first one.
    importer.next_turn_within(LONG).unwrap().unwrap().finish().unwrap();
    compare(read(&windows[0], 0).unwrap(), 0);
    write(&mut importer, &batch(1));
    compare(read(&windows[1], 1).unwrap(), 1);
}

fn windows_and_trees_take_turns() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let offer = connection.export(&batch(5)).unwrap();
    let window = connection.open_window(&like(0), devices()[0]).unwrap();
    connection.export(&batch(6)).unwrap();
    // The tree in front of it is kept, and that behind it is still to come.
    write(&mut importer, &batch(0));
    for number in [5, 6] {
        let mut there = like(number);
        importer.next_within(LONG).unwrap().unwrap().put_into(&mut there).unwrap();
        compare(there, number);
    }
    offer.wait_released(LONG).unwrap();
    compare(read(&window, 0).unwrap(), 0);
    write(&mut importer, &batch(9));
    compare(read(&window, 9).unwrap(), 9);
    // What nobody has asked for is given back at the end.
    connection.export(&batch(1)).unwrap();
    assert!(matches!(importer.next_turn_within(LONG).unwrap().map(|turn| turn.finish()), Some(Ok(()))));
    assert!(importer.next_turn_within(SHORT).is_err());
    drop(importer);
    eventually("nothing is lent", || connection.lent() == 0);
    compare(read(&window, 9).unwrap(), 9);
    assert!(matches!(window.written_within(LONG), Err(IpcError::PeerGone)));
    assert!(matches!(connection.open_window(&like(0), devices()[0]), Err(IpcError::PeerGone)));
}

/// catches: 648-windows-stay-with-who-writes-them, 653-windows-are-not-closed
fn dropped_windows_go(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    for round in 0..4 {
        let [first, second, third] =
            [0, 1, 2].map(|number| connection.open_window(&like(number), device).unwrap());
        let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
        turn.put(&batch(0)).unwrap();
        drop(second);
        match round % 2 {
            0 => turn.finish().unwrap(),
            // A window that goes while it is written.
            _ => {
                drop(first);
                write(&mut importer, &batch(2));
                drop(read(&third, 2).unwrap());
                assert!(importer.next_turn_within(SHORT).is_ok());
                drop((turn, third));
                assert!(importer.next_turn_within(SHORT).is_err());
                eventually("nothing is lent", || connection.lent() == 0);
                continue;
            }
        }
        let tree = read(&first, 0).unwrap();
        drop((first, third));
        assert!(importer.next_turn_within(SHORT).is_err());
        eventually("tensors are over one of them", || connection.lent() == 1);
        compare(tree, 0);
        assert!(importer.next_turn_within(SHORT).is_err());
        eventually("nothing is lent", || connection.lent() == 0);
    }
}

/// catches: 655-what-was-finished-goes-with-its-writer
fn what_was_finished_outlives_its_writer(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let windows: Vec<_> =
        (0..3).map(|number| connection.open_window(&like(number), device).unwrap()).collect();
    write(&mut importer, &batch(0));
    write(&mut importer, &batch(1));
    drop(importer);
    eventually("the writer has gone", || connection.lent() == 0);
    for number in [1, 0] {
        let window = &windows[number as usize];
        compare(read(window, number).unwrap(), number);
        assert!(matches!(window.written_within(LONG), Err(IpcError::PeerGone)));
    }
    assert!(matches!(windows[2].written_within(LONG), Err(IpcError::PeerGone)));
}

/// catches: 649-memory-of-windows-is-used-again
fn memory_of_a_window_is_not_used_again() {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let raw = socket(&path);
    let mut connection = exporter.accept_within(LONG).unwrap();
    let window = connection.open_window(&like(0), devices()[0]).unwrap();
    send(&raw, &message(12, [0; 4]), SendFlags::NOSIGNAL).unwrap();
    let tree = read(&window, 0).unwrap();
    // It is given back while tensors of this process are over it.
    send(&raw, &message(7, [0; 4]), SendFlags::NOSIGNAL).unwrap();
    eventually("it is back", || connection.lent() == 0);
    connection.export(&batch(0)).unwrap();
    let host = start_copy(tree, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert!(host["image"].as_slice::<u8>().unwrap().iter().all(|byte| *byte == 0));
}

fn windows_of_another_device_are_refused(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let window = connection.open_window(&like(0), device).unwrap();
    let here = connection.open_window(&like(1), devices()[0]).unwrap();
    assert!(matches!(importer.next_turn_within(LONG), Err(IpcError::OtherDevice { .. })));
    assert!(matches!(window.written_within(LONG), Err(IpcError::WindowClosed)));
    write(&mut importer, &batch(1));
    compare(read(&here, 1).unwrap(), 1);
}

/// Half of them die in a phase, the others at any time. What they have handed over is right, and stays.
fn killed_writers(device: &Device, spawn: impl Fn(&std::path::Path, Role, Option<(Phase, u64)>) -> Process) {
    for seed in 0..seeds() / 2 {
        let before = held();
        let (_folder, path) = folder();
        let exporter = Exporter::bind(&path).unwrap();
        let phases = [Phase::Connected, Phase::There, Phase::Copied, Phase::Released];
        let dies = seed.is_multiple_of(2).then(|| (phases[seed as usize / 2 % 4], seed / 8 % TREES));
        let mut process = Some(spawn(&path, Role::Writer, dies));
        let mut connection = exporter.accept_within(LONG).unwrap();
        let opened = (0..TREES).map(|number| connection.open_window(&like(number), device));
        let windows: Vec<_> = opened.map_while(Result::ok).collect();
        let killing = dies.is_none().then(|| {
            let mut process = process.take().unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(
                    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0x1fff,
                ));
                process.kill();
            })
        });
        let mut trees = Vec::new();
        for (number, window) in (0..).zip(&windows) {
            match read(window, number) {
                Ok(tree) => trees.push(tree),
                Err(error) => {
                    assert!(matches!(error, IpcError::PeerGone), "{error}");
                    break;
                }
            }
        }
        if let Some(killing) = killing {
            killing.join().unwrap();
        }
        (0..).zip(trees).for_each(|(number, tree)| compare(tree, number));
        // One that has come to its end waits for more.
        drop(process);
        eventually("nothing is lent", || connection.lent() == 0);
        drop((windows, connection, exporter));
        eventually("all is back", || device.id() != Device::host().id() || held() == before);
    }
}

fn a_writer_outlives_its_window() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let window = connection.open_window(&like(0), devices()[0]).unwrap();
    let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
    drop((window, connection));
    turn.put(&batch(0)).unwrap();
    assert!(importer.next_turn_within(LONG).unwrap().is_none());
    drop(importer);
    let _ = turn.finish();
}

/// Deliberate bug: who has no descriptors left takes the other process for one that breaks the rules.
fn a_writer_without_descriptors_goes_on() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let lost = connection.open_window(&like(0), devices()[0]).unwrap();
    let offer = connection.export(&batch(1)).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    let errors = [importer.next_turn_within(LONG).err(), importer.next_within(LONG).err()];
    setrlimit(Resource::Nofile, before).unwrap();
    for error in errors {
        assert!(matches!(error, Some(IpcError::System { .. })), "{error:?}");
    }
    offer.wait_released(LONG).unwrap();
    assert!(matches!(lost.written_within(LONG), Err(IpcError::WindowClosed)));
    let window = connection.open_window(&like(2), devices()[0]).unwrap();
    write(&mut importer, &batch(2));
    compare(read(&window, 2).unwrap(), 2);
}

/// Says that what it has not got is written.
///
/// catches: 650-written-by-nobody
fn importers_that_break_the_rules() {
    let lies: [&[(u8, u64)]; 5] =
        [&[(12, 0)], &[(12, 7)], &[(12, 1), (12, 1)], &[(13, 1)], &[(7, 1), (12, 1)]];
    for lie in lies {
        let (_folder, path) = folder();
        let exporter = Exporter::bind(&path).unwrap();
        let raw: OwnedFd = socket(&path);
        let mut connection = exporter.accept_within(LONG).unwrap();
        connection.export(&batch(0)).unwrap();
        let window = connection.open_window(&like(1), devices()[0]).unwrap();
        for (kind, ticket) in lie {
            let _ = send(&raw, &message(*kind, [*ticket, 0, 0, 0]), SendFlags::NOSIGNAL);
        }
        eventually("it is sent away", || connection.lent() == 0);
        if lie.first() == Some(&(12, 1)) {
            window.written_within(LONG).unwrap();
        }
        assert!(matches!(window.written_within(LONG), Err(IpcError::PeerGone)));
    }
}

/// catches: 651-given-again-and-again
fn a_writer_believes_no_exporter() {
    let sizes = manifest(64).len() as u64;
    let window = |ticket| (message(10, [ticket, 64, sizes, 0]), vec![tree(64, &manifest(64), SEALS)]);
    let again = |ticket| (message(13, [ticket, 0, 0, 0]), vec![]);
    let many: Vec<_> = (0..129).map(window).collect();
    for lies in [vec![window(1), again(1)], vec![again(1)], vec![window(1), window(1)], many] {
        let (mut importer, played) = hearing(lies, devices()[0]);
        let mut turns = Vec::new();
        let error = loop {
            match importer.next_turn_within(LONG) {
                Ok(Some(turn)) => turns.push(turn),
                Ok(None) => panic!("{} turns, and no error", turns.len()),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, IpcError::Protocol { .. }), "{error}");
        assert!(importer.next_turn_within(LONG).unwrap().is_none());
        played.join().unwrap();
    }
}
