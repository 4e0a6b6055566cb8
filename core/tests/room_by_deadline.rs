//! Copies with a deadline that wait in line for memory that the program frees, and those that they do not hold up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/budget.rs"]
mod budget;
mod support;

use std::fs;
use std::future::IntoFuture;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use budget::{BUDGET, LONG_NAP, all_comes_back, limited, options, pending};
use futures::FutureExt;
use futures::executor::block_on;
use late_backend::LateConfig;
use support::{bytes_of, eventually, in_time, on, two};
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, DType, Device, Error, ErrorKind, Lent, Prefetch,
    PrefetchOptions, Tensor, start_copy,
};

/// Long enough for any machine, and no test waits for its end.
const LONG: Duration = Duration::from_secs(120);

fn until_deadline() -> CopyOptions {
    options().deadline(LONG)
}

fn by_workers() -> CopyOptions {
    options().background(BackgroundWork::Always)
}

fn start_until(device: &Device, bytes: usize, options: CopyOptions) -> CopyHandle<Tensor> {
    start_copy(Tensor::from(vec![1_u8; bytes]), device, options).unwrap()
}

/// Its thread waits, polls or does neither. Nothing is in flight, and another thread frees what the program holds.
/// catches: 590-refused-in-spite-of-a-deadline
#[test]
fn a_copy_with_a_deadline_waits_for_memory_that_the_program_frees() {
    for when in [until_deadline(), until_deadline().background(BackgroundWork::Always)] {
        for way in 0..3 {
            let (late, device) = limited();
            let held = on(&device, &[7; 3000]);
            let copy = pending(start_until(&device, 2000, when.clone()));
            let (waits, freed) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
            let (begins, was_freed) = (waits.clone(), freed.clone());
            let consumer = thread::spawn(move || {
                begins.wait();
                was_freed.store(true, Ordering::Relaxed);
                drop(held);
            });
            let there = in_time(move || {
                waits.wait();
                match way {
                    0 => copy.wait().unwrap(),
                    1 => block_on(copy).unwrap(),
                    _ => {
                        eventually("it goes on by itself", || copy.is_ready().expect("room comes"));
                        copy.wait().unwrap()
                    }
                }
            });
            assert!(freed.load(Ordering::Relaxed), "there was room before");
            assert_eq!(bytes_of(&there), [1; 2000]);
            consumer.join().unwrap();
            drop(there);
            all_comes_back(&late, &device);
        }
    }
}

/// By hand: with a limit that the clock cannot add it counts as none, and the copy is refused in the call.
#[test]
fn a_deadline_that_never_comes_is_one() {
    let (late, device) = limited();
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(i64::MAX as u64)] {
        let held = on(&device, &[7; 3000]);
        let copy = pending(start_until(&device, 2000, options().deadline(limit)));
        drop(held);
        assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [1; 2000]);
    }
    all_comes_back(&late, &device);
}

/// One thread waits for each copy, and another one holds results for a while.
#[test]
fn of_many_copies_with_a_deadline_none_is_refused_while_results_are_let_go_of() {
    const COPIES: u8 = if cfg!(miri) { 5 } else { 50 };
    let (late, device) = limited();
    let (results, held) = mpsc::channel();
    let consumer = thread::spawn(move || held.into_iter().map(|tensor: Tensor| bytes_of(&tensor)).collect());
    let copies: Vec<_> = (0..COPIES).map(|_| start_until(&device, 1000, until_deadline())).collect();
    let there: Vec<Vec<u8>> = in_time(move || {
        copies.into_iter().for_each(|copy| results.send(copy.wait().expect("room comes")).unwrap());
        drop(results);
        consumer.join().unwrap()
    });
    assert_eq!(there, vec![vec![1; 1000]; usize::from(COPIES)]);
    all_comes_back(&late, &device);
}

/// The time in which so many copies stand in line one after the other, and all of them come to their end.
fn time_of_a_line(copies: usize) -> Duration {
    let (late, device) = limited();
    let held = on(&device, &[7; 3000]);
    let begin = Instant::now();
    let line: Vec<_> = (0..copies).map(|_| start_until(&device, 2000, until_deadline())).collect();
    drop(held);
    in_time(move || line.into_iter().for_each(|copy| drop(copy.wait().expect("room comes"))));
    let time = begin.elapsed();
    all_comes_back(&late, &device);
    time
}

/// Eight times as many take eight times as long. Where somebody goes through the whole line for each of them, it is fifty times.
/// catches: 741-who-stands-aside-is-passed-again-and-again
#[test]
fn a_copy_in_a_long_line_costs_what_it_costs_in_a_short_one() {
    const SHORT: usize = if cfg!(miri) { 4 } else { 500 };
    let (short, long) = (time_of_a_line(SHORT), time_of_a_line(8 * SHORT));
    assert!(cfg!(miri) || long < 24 * short, "{SHORT} take {short:?}, {} {long:?}", 8 * SHORT);
}

/// What the reactor's thread has computed so far.
#[cfg(all(target_os = "linux", not(miri)))]
fn time_of_the_reactor() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_reactor = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("transship-reac"))
    };
    let reactor = tasks.into_iter().find(is_reactor).expect("it looks after copies");
    let times = fs::read_to_string(reactor.join("schedstat")).unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

/// Other tests may keep the reactor busy meanwhile, for a while. By hand: where it asks each copy in each of its rounds, it does little else.
/// catches: 742-those-behind-are-asked-in-each-round
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn copies_in_a_long_line_keep_no_thread_busy() {
    const WHILE: Duration = Duration::from_millis(100);
    let (late, device) = limited();
    let held = on(&device, &[7; 3000]);
    let line: Vec<_> = (0..8000).map(|_| start_until(&device, 2000, until_deadline())).collect();
    // Each of them has its deadline looked after as well.
    let mut line: Vec<_> = line.into_iter().map(IntoFuture::into_future).collect();
    line.iter_mut().for_each(|copy| assert!(copy.now_or_never().is_none(), "there is no room for it"));
    eventually("the reactor rests", || {
        let before = time_of_the_reactor();
        thread::sleep(WHILE);
        time_of_the_reactor() - before < WHILE / 10
    });
    drop(held);
    drop(line);
    all_comes_back(&late, &device);
}

/// What the program holds is the reason, with its figures.
#[test]
fn a_copy_for_which_the_program_frees_nothing_is_refused_at_its_deadline() {
    for waits in [true, false] {
        let (late, device) = limited();
        let held = Tensor::zeros(&[3000], DType::U8, &device).unwrap();
        let copy = start_until(&device, 2000, options().deadline(LONG_NAP));
        let refused = in_time(move || if waits { copy.wait() } else { block_on(copy) }).unwrap_err();
        let Error::OverBudget { requested: 2000, used: 3000, leaving: 0, budget: BUDGET, .. } =
            refused.error()
        else {
            panic!("{refused}")
        };
        assert_eq!(bytes_of(&refused.into_value().expect("it comes back")), [1; 2000]);
        let never = start_copy(Tensor::from(vec![1_u8; BUDGET + 1]), &device, until_deadline());
        assert!(matches!(never.unwrap_err().error(), Error::OverBudget { .. }), "it can never fit");
        drop(held);
        all_comes_back(&late, &device);
    }
}

/// Who would be refused is, or passes, though a copy with a deadline waits on for more. With a deadline nobody passes it.
/// catches: 591-who-stands-aside-holds-up-the-others
#[test]
fn copies_without_a_deadline_wait_for_none_that_waits_for_the_program() {
    let (late, device) = limited();
    let held = Tensor::zeros(&[3000], DType::U8, &device).unwrap();
    let much = pending(start_until(&device, 2000, until_deadline()));
    let little = pending(start_until(&device, 500, until_deadline()));
    for when in [options(), by_workers(), options().background(BackgroundWork::Never)] {
        let end_of = |bytes: usize| loop {
            let (device, when) = (device.clone(), when.clone());
            let copy = move || start_copy(Tensor::from(vec![1_u8; bytes]), &device, when)?.wait();
            match in_time(copy) {
                // A worker lets go of the copy of before.
                Err(busy) if busy.error().kind() == ErrorKind::Busy => thread::yield_now(),
                copied => break copied,
            }
        };
        assert_eq!(bytes_of(&end_of(1000).expect("there is room")), [1; 1000]);
        let refused = end_of(1500).unwrap_err();
        assert!(matches!(refused.error(), Error::OverBudget { requested: 1500, .. }), "{refused}");
    }
    let (much, little) = (pending(much), pending(little));
    drop(held);
    let (much, little) = in_time(move || (much.wait().unwrap(), little.wait().unwrap()));
    assert_eq!((much.nbytes(), little.nbytes()), (2000, 500));
    drop((much, little));
    all_comes_back(&late, &device);
}

/// What leaves for a device that is full is not in flight, so that its own device refuses as if it had not begun.
#[test]
fn a_copy_that_waits_for_the_program_holds_up_no_other_device() {
    let (late, one, other) = two(LateConfig::new("late"));
    for device in [&one, &other] {
        device.set_memory_budget(BUDGET).unwrap();
    }
    let (held, source) = (on(&one, &[7; 3000]), on(&other, &[5; 3000]));
    let across = pending(start_copy(source, &one, until_deadline()).unwrap());
    let target = other.clone();
    let refused = in_time(move || {
        start_copy(Tensor::from(vec![1_u8; 2000]), &target, by_workers()).and_then(|copy| copy.wait())
    });
    assert!(matches!(refused.unwrap_err().error(), Error::OverBudget { requested: 2000, .. }));
    drop(held);
    assert_eq!(bytes_of(&in_time(move || across.wait()).unwrap()), [5; 3000]);
    all_comes_back(&late, &one);
    all_comes_back(&late, &other);
}

/// Its structure comes back at once, and nothing of it stays in flight.
#[test]
fn a_copy_that_waits_for_the_program_ends_at_once_when_it_is_given_up() {
    for is_cancelled in [true, false] {
        let (late, device) = limited();
        let held = on(&device, &[7; 3000]);
        let first = pending(start_until(&device, 2000, until_deadline()));
        let second = pending(start_until(&device, 1000, until_deadline()));
        if is_cancelled {
            let mut cancelled = first.cancel();
            // A thread that asks for its room this moment has it.
            eventually("nothing of it is in flight", || cancelled.in_flight.is_over().unwrap());
            assert!(cancelled.value.take().expect("it comes back").as_mut_bytes().is_ok());
        } else {
            drop(first);
        }
        assert_eq!(bytes_of(&in_time(move || second.wait()).expect("there was room for it")), [1; 1000]);
        drop(held);
        all_comes_back(&late, &device);
    }
}

/// An item that the program has dropped makes room for the next one, which does not go into its memory.
/// catches: 592-memory-that-came-back-is-kept
#[test]
fn items_that_come_back_are_freed_for_who_waits_for_the_program() {
    let (late, device) = limited();
    let source = (0..20_u8).map(|number| Tensor::from(vec![number; 2500 + usize::from(number % 2)]));
    let prefetch = PrefetchOptions::default().depth(1).copy(until_deadline());
    let mut items = source.prefetch(&device, prefetch).reuse();
    let numbers: Vec<u8> = in_time(move || {
        let mut number = |item: Result<Lent<Tensor>, _>| bytes_of(&item.expect("room comes"))[0];
        items.by_ref().map(&mut number).collect()
    });
    assert_eq!(numbers, (0..20).collect::<Vec<u8>>());
    all_comes_back(&late, &device);
}
