//! What a call uses: memory within its bounds, and none of the threads and blocks of copies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use late_backend::LateConfig;
use support::{Entry, check, entry, file_of, folder, late, no_violations, options};
use transship::{Cast, DType, Device, runtime_stats};
use transship_safetensors::{SaveOptions, load, save};

/// Counts what is allocated.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// The count is that of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all is passed on to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

/// The result, and how much more memory there was at a time than before.
fn peak_of<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (result, PEAK.load(Ordering::Relaxed) - before)
}

/// Large tensors and many small ones.
fn entries() -> Vec<Entry> {
    let large = (0..8).map(|number| entry(&format!("large.{number}"), 1, &[5 << 20], number));
    let small = (0..2000).map(|number| entry(&format!("small.{number}"), 11, &[number % 77], number));
    large.chain(small).collect()
}

/// catches: 208-budget-not-kept
#[test]
fn host_memory_is_bounded_by_the_budget_and_not_by_the_file() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let entries = entries();
    let bytes = entries.iter().map(|entry| entry.bytes.len().next_multiple_of(256)).sum::<usize>();
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    // For each tensor its name and shape, more than once; for each thread its buffer.
    let besides = 3 << 20;
    for budget in [64 << 10, 1 << 20, 16 << 20] {
        let (handle, device) = late(LateConfig::new("late"));
        let options = options().budget(budget).threads(3);
        // The memory of the simulated device, and its blocks, are on the host.
        let (tensors, peak) = peak_of(|| load(folder.path(), &device, options).unwrap());
        assert!(peak <= bytes + budget + besides, "{peak} bytes for {bytes} and a budget of {budget}");
        let pinned = device.counters().staging_high_water as usize;
        assert!(0 < pinned && pinned <= budget, "{pinned} bytes pinned, of {budget}");
        check(&tensors, &entries, &device);
        no_violations(Some(&handle));
    }
    let (tensors, peak) = peak_of(|| load(folder.path(), &Device::host(), options().threads(3)).unwrap());
    assert!(peak <= bytes + besides, "{peak} bytes for {bytes} on the host");
    check(&tensors, &entries, &Device::host());
}

/// catches: 442-window-as-large-as-what-is-cast
#[test]
fn casts_parts_and_direct_reads_take_a_window_for_each_thread_and_no_more() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    // Two columns of four: as many parts as rows.
    let mut entries = vec![entry("narrow", 8, &[1 << 18, 4], 1)];
    entries.extend((0..4).map(|number| entry(&format!("cast.{number}"), 11, &[1 << 20], number)));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(folder.path().join("a.safetensors"), file_of(&entries)).unwrap();
    drop(entries);
    let (bytes, budget) = ((4 << 20) + 4 * (2 << 20), 1 << 20);
    // Windows, and what the allocator of the host rounds up.
    for (is_direct, besides) in [(false, 3 << 20), (true, 6 << 20)] {
        let (handle, device) = late(LateConfig::new("late"));
        for device in [Device::host(), device] {
            let options = options().budget(budget).threads(3).direct_io(is_direct);
            let options = options.cast(Cast::new(DType::F32, DType::BF16));
            let options = options.narrow(|name, _| (name == "narrow").then_some((1, 1..3)));
            let (tensors, peak) = peak_of(|| load(folder.path(), &device, options).unwrap());
            let most = bytes + budget + besides;
            assert!(peak <= most, "{peak} bytes for {bytes} on {device:?}, direct: {is_direct}");
            assert_eq!(tensors.iter().map(|(_, tensor)| tensor.nbytes()).sum::<usize>(), bytes);
        }
        no_violations(Some(&handle));
    }
}

/// catches: 443-rows-read-whole, 210-reads-together-what-lies-apart
#[test]
#[cfg(target_os = "linux")]
fn what_is_left_out_is_not_read() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    // Between two parts of a row: 32 KiB, and 4 KiB.
    let mut entries = vec![entry("far", 1, &[100, 40 << 10], 1), entry("near", 1, &[1000, 5 << 10], 2)];
    entries.extend((0..100).map(|number| entry(&format!("{number}"), 1, &[10 << 10], number)));
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let file_bytes = std::fs::metadata(folder.path().join("a.safetensors")).unwrap().len() as usize;
    // The header, and what the system says of its memory.
    let besides = 16 << 10;
    let (far, near) = (100 * (40 << 10), 1000 * (5 << 10));
    for (wanted, dim, items, most) in [
        ("far", 0, 10..30, far / 5),
        ("far", 1, 0..8 << 10, far / 5),
        ("near", 0, 999..1000, near / 1000),
        ("near", 1, 0..1 << 10, near),
    ] {
        let options =
            options().filter(move |name| name == wanted).narrow(move |_, _| Some((dim, items.clone())));
        let before = bytes_read();
        let tensors = load(folder.path(), &Device::host(), options).unwrap();
        let read = bytes_read() - before;
        assert!(most / 2 < read && read < most + besides, "{read} bytes for {most} of {wanted}, along {dim}");
        assert!(tensors.get(wanted).unwrap().nbytes() <= most);
    }
    let before = bytes_read();
    load(folder.path(), &Device::host(), options().filter(|name| name.ends_with('3'))).unwrap();
    let read = bytes_read() - before;
    assert!(read < 10 * (10 << 10) + besides, "{read} bytes for each tenth of the small tensors");
    let before = bytes_read();
    load(folder.path(), &Device::host(), options()).unwrap();
    assert!((file_bytes..file_bytes + besides).contains(&(bytes_read() - before)));
}

/// How many bytes this process has read from files so far.
#[cfg(target_os = "linux")]
fn bytes_read() -> usize {
    let counts = std::fs::read_to_string("/proc/self/io").unwrap();
    counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn a_load_takes_neither_blocks_nor_workers_of_copies() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let entries = entries();
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let (handle, device) = late(LateConfig::new("late"));
    let before = runtime_stats();
    let tensors = load(folder.path(), &device, options()).unwrap();
    assert_eq!(device.staging_usage().high_water, 0);
    // One frees its blocks in the end.
    let handovers = runtime_stats().worker_handovers - before.worker_handovers;
    assert!(handovers <= 1, "{handovers}");
    assert_eq!(tensors.len(), entries.len());
    no_violations(Some(&handle));
}

/// catches: 244-window-as-large-as-the-budget, 245-large-tensors-in-one-piece
#[test]
fn a_save_has_no_more_of_the_model_on_the_host_than_its_budget() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let entries = entries();
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    for (budget, threads) in [(64 << 10, 1), (1 << 20, 3), (8 << 20, 2)] {
        let (handle, device) = late(LateConfig::new("late"));
        let tensors = load(folder.path(), &device, options()).unwrap();
        let options = SaveOptions::default().budget(budget).threads(threads);
        let saved = tempfile::NamedTempFile::new().unwrap();
        let (done, most) = (AtomicBool::new(false), AtomicUsize::new(0));
        let ((), peak) = peak_of(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        most.fetch_max(device.result_usage().in_use, Ordering::Relaxed);
                    }
                });
                save(&tensors, saved.path(), options).unwrap();
                done.store(true, Ordering::Relaxed);
            });
        });
        let most = most.load(Ordering::Relaxed);
        assert!(0 < most && most <= budget, "{most} bytes in use, of {budget}");
        // The pool keeps four blocks of each size up to 1 MiB, and of both kinds, ready; names and buffers.
        assert!(peak <= 2 * budget + (16 << 20), "{peak} bytes for a budget of {budget}");
        check(&load(saved.path(), &Device::host(), support::options()).unwrap(), &entries, &Device::host());
        no_violations(Some(&handle));
    }
}
