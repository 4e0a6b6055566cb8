//! The happy way: what loaders write arrives.

use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use transship_core::{
    Alignment, Cast, CopyOptions, CopyPolicy, DType, Device, Error, Manifest, Tensor, start_copy,
};
use transship_ipc::{Feed, FeedOptions, IpcError, Loader};

use crate::support::{
    LONG, Tree, batch, case, check, compare, connect, devices, folder, hand_out, like, make, next, options,
};
use crate::workers::Workers;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("batches_of_processes_arrive_in_order", batches_of_processes_arrive_in_order),
        case(
            "shared_memory_is_copied_and_never_read_in_place",
            shared_memory_is_copied_and_never_read_in_place,
        ),
        case(
            "batches_fail_one_by_one_and_with_their_reasons",
            batches_fail_one_by_one_and_with_their_reasons,
        ),
        case("a_manifest_that_is_too_large_is_named_at_both_ends", a_manifest_that_is_too_large_is_named),
        case("who_holds_all_slots_is_told_so", who_holds_all_slots_is_told_so),
        case("slots_that_no_memory_has_are_refused", slots_that_no_memory_has_are_refused),
        case("what_a_loader_says_is_printed_with_escapes", what_a_loader_says_is_printed_with_escapes),
        case("clones_are_written_apart", clones_are_written_apart),
        case("a_feed_is_the_users_own_and_waits_no_longer_than_asked", a_feed_is_the_users_own),
    ]
}

fn batches_of_processes_arrive_in_order() {
    for device in devices() {
        let (_folder, path) = folder();
        let numbers = (0..30).map(|number| number * 7 % 30).collect::<Vec<u64>>();
        let mut feed = Feed::new(&path, numbers.clone(), device, options()).unwrap();
        let workers = Workers::start(&path, &[None, None], None);
        for number in numbers {
            let there = next(&mut feed).unwrap();
            assert_eq!(there.number(), number);
            check(&there, device);
        }
        assert!(next(&mut feed).is_none());
        workers.join();
    }
}

/// Asks for the batches of a loader that is a thread of this process.
fn with_a_loader(
    numbers: u64,
    options: FeedOptions,
    mut load: impl FnMut(&mut Loader) -> Result<(), IpcError> + Send,
    look: impl FnOnce(&mut Feed<std::ops::Range<u64>>),
) {
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..numbers, devices()[0], options).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut loader = Loader::connect(path).unwrap();
            load(&mut loader).unwrap();
        });
        look(&mut feed);
        drop(feed);
    });
}

fn write_all(loader: &mut Loader) -> Result<(), IpcError> {
    while let Some(job) = loader.next_job()? {
        let number = job.number();
        job.write(&batch(number))?;
    }
    Ok(())
}

/// catches: 540-shared-memory-read-in-place
fn shared_memory_is_copied_and_never_read_in_place() {
    with_a_loader(1, options(), write_all, |feed| {
        let there = next(feed).unwrap();
        let mut tree = like(0);
        there.put_into(&mut tree).unwrap();
        let tensor = || tree["image"].clone();
        let is_refused =
            |error: Option<Error>| assert!(matches!(error, Some(Error::SharedMemory)), "{error:?}");
        is_refused(tensor().as_slice::<u8>().err());
        is_refused(tensor().as_bytes().err());
        is_refused(tensor().to_vec::<u8>().err());
        is_refused(tensor().narrow(1, 3, 9).unwrap().contiguous().err());
        assert!(matches!(tensor().as_mut_bytes(), Err(Error::NotWritable { .. })));
        let cast = CopyOptions::default().cast(Cast::new(DType::U8, DType::F32));
        is_refused(
            start_copy(tensor(), &Device::host(), cast).map(|_| ()).map_err(|error| error.into_error()).err(),
        );
        let never = CopyOptions::default().policy(CopyPolicy::Never);
        let error = start_copy(tensor(), &Device::host(), never)
            .map(|_| ())
            .map_err(|error| error.into_error())
            .err();
        assert!(matches!(error, Some(Error::NeverCopy { .. })), "{error:?}");

        // A copy to the host is one, and tensors beside it that lie there stay.
        let beside = Tensor::from(vec![1_u8, 2]);
        let (copied, stays) = start_copy((tree, beside.clone()), &Device::host(), CopyOptions::default())
            .unwrap()
            .wait()
            .unwrap();
        assert!(stays.shares_memory_with(&beside));
        assert!(!copied["image"].shares_memory_with(&there.tensors().unwrap()[1].1));
        compare(copied, 0);
    });
}

fn batches_fail_one_by_one_and_with_their_reasons() {
    let load = |loader: &mut Loader| {
        while let Some(job) = loader.next_job()? {
            match job.number() {
                0 => job.fail("the file is gone")?,
                1 => drop(job),
                2 => {
                    let error = job.write(&vec![Tensor::from(vec![0_u8; 1 << 20])]).unwrap_err();
                    assert!(
                        matches!(error, IpcError::TooLarge { needed, slot } if needed > 1 << 20 && slot == 400 << 10)
                    );
                }
                3 => {
                    let mut place = job.in_place(&batch(3)).unwrap();
                    assert!(matches!(place.write("[\"odd\"]", 2, &[0; 3]), Err(Error::OutOfRange { .. })));
                    assert!(matches!(place.write("[\"od\"]", 0, &[0]), Err(Error::ManifestMismatch { .. })));
                    assert_eq!(place.address("[\"ids\"]").unwrap().1, 40);
                    drop(place);
                }
                number => job.write(&batch(number))?,
            }
        }
        Ok(())
    };
    with_a_loader(5, options(), load, |feed| {
        for (number, why) in [(0, "the file is gone"), (1, "dropped"), (2, "does not fit"), (3, "dropped")] {
            match feed.next() {
                Some(Err(IpcError::Failed { number: failed, message }))
                    if failed == number && message.contains(why) => {}
                other => panic!("{other:?}, and not: {why}"),
            }
        }
        let there = next(feed).unwrap();
        let error = there.put_into(&mut like(3)).unwrap_err();
        assert!(matches!(error, Error::ManifestMismatch { path, .. } if path == "[\"odd\"]"));
        check(&there, devices()[0]);
        assert!(next(feed).is_none() && next(feed).is_none());
    });
}

/// Deliberate bugs: the loader does not look at the size of the manifest; it is told the size of a slot as the limit.
fn a_manifest_that_is_too_large_is_named() {
    let bytes = manifest_bytes(&batch(0));
    let load = |loader: &mut Loader| {
        let job = loader.next_job()?.unwrap();
        let error = job.write(&batch(0)).unwrap_err();
        let said = format!("is above the limit of {}; let the feed take larger ones", bytes - 1);
        assert!(error.to_string().contains(&said), "{error}");
        loader.next_job()?.unwrap().write(&vec![Tensor::from(vec![7_u8])])?;
        assert!(loader.next_job()?.is_none());
        Ok(())
    };
    with_a_loader(2, options().slots(1).largest_manifest(bytes - 1), load, |feed| {
        let error = feed.next_within(LONG).unwrap_err();
        let said = format!("batch 0: a manifest of {bytes} bytes is above");
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!(next(feed).unwrap().number(), 1);
        assert!(next(feed).is_none());
    });
}

fn manifest_bytes(tree: &Tree) -> usize {
    Manifest::packed(tree, Alignment::new(64).unwrap()).unwrap().to_bytes().len()
}

/// Deliberate bugs: slots that the loader still writes count as held; those that the program holds do not.
fn who_holds_all_slots_is_told_so() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..3, host, options().slots(2)).unwrap();
    let mut loader = connect(&mut feed, &path, 1);
    let limit = Duration::from_millis(20);
    make(&mut loader, 0);
    let first = next(&mut feed).unwrap();
    assert!(matches!(feed.next_within(limit), Err(IpcError::TimedOut { held: None, loaders: 1, .. })));
    make(&mut loader, 1);
    let second = next(&mut feed).unwrap();
    let said = feed.next_within(limit).unwrap_err().to_string();
    assert!(said.starts_with("no batch within 20ms: the program holds all 2 slots; drop a batch"), "{said}");
    drop(first);
    hand_out(&mut feed);
    make(&mut loader, 2);
    assert_eq!((second.number(), next(&mut feed).unwrap().number()), (1, 2));
}

/// Deliberate bug: only a loader that comes finds out.
fn slots_that_no_memory_has_are_refused() {
    let (_folder, path) = folder();
    for bytes in [usize::MAX, usize::MAX / 2, usize::MAX / 6 + 4096] {
        let error = Feed::new(&path, 0..1, devices()[0], FeedOptions::new(bytes)).unwrap_err();
        let said = format!("option slot_bytes cannot be {bytes} for each of 3 slots: ");
        assert!(error.to_string().starts_with(&said), "{error}");
        assert!(!path.exists());
    }
}

/// Deliberate bugs: what a loader says is printed as it is; other letters are escaped, too.
fn what_a_loader_says_is_printed_with_escapes() {
    const REASON: &str = "[\"é\"] is \u{1b}[31mred\r\n";
    let load = |loader: &mut Loader| loader.next_job()?.unwrap().fail(REASON);
    with_a_loader(1, options(), load, |feed| {
        let error = feed.next_within(LONG).unwrap_err();
        assert_eq!(error.to_string(), "batch 0: [\"é\"] is \\u{1b}[31mred\\r\\n");
        assert!(matches!(error, IpcError::Failed { message, .. } if message == REASON));
    });
}

/// Deliberate bug: what shares memory in `like` has one place in the slot.
fn clones_are_written_apart() {
    let zeros = |count| vec![Tensor::zeros(&[4], DType::U8, &Device::host()).unwrap(); count];
    let load = |loader: &mut Loader| {
        while let Some(job) = loader.next_job()? {
            let mut place = job.in_place(&zeros(3))?;
            for number in 0..3_u8 {
                place.write(&format!("[{number}]"), 0, &[number; 4])?;
            }
            place.finish()?;
        }
        Ok(())
    };
    with_a_loader(1, options(), load, |feed| {
        let tensors = next(feed).unwrap().tensors().unwrap();
        let there = start_copy(tensors, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        let bytes: Vec<_> = there.iter().map(|(_, tensor)| tensor.to_bytes().unwrap()).collect();
        assert_eq!(bytes, [[0; 4], [1; 4], [2; 4]]);
        assert!(next(feed).is_none());
    });
}

fn a_feed_is_the_users_own() {
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..1, devices()[0], options()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(matches!(Feed::new(&path, 0..1, devices()[0], options()), Err(IpcError::System { .. })));
    let limit = Duration::from_millis(20);
    assert!(matches!(feed.next_within(limit), Err(IpcError::TimedOut { loaders: 0, .. })));
    let loader = thread::spawn({
        let path = path.clone();
        move || Loader::connect(path).map(|_| ())
    });
    drop(feed);
    assert!(matches!(loader.join().unwrap(), Err(IpcError::PeerGone | IpcError::System { .. })));
    assert!(!path.exists());
    let mut empty = Feed::new(&path, [], devices()[0], options()).unwrap();
    assert!(next(&mut empty).is_none());
}
