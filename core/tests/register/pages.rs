//! A page is registered once, and again when it is unlocked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use late_backend::Call;
use transship_core::{DType, Device, Error, ErrorKind, MemoryKind, Tensor, start_copy};

use crate::hostile::{Flag, Owner};
use crate::support::{eventually, late, no_violations};
use crate::{Lender, MIB, PAGE, apart, calls, options, whole};

/// Mutants: pages that are registered already are registered once more; pages are never released.
#[test]
fn a_page_is_registered_once() {
    let (late, device) = late();
    let (memory, part) = apart(4 * PAGE);
    let shared = Arc::new(memory);
    let start = part.start;
    let register = |from: usize, to: usize| device.register(Part(shared.clone(), start + from..start + to));
    let held = register(PAGE, 2 * PAGE + 10).unwrap();
    for (from, to) in [(PAGE, 2 * PAGE), (0, 4 * PAGE), (2 * PAGE + 100, 2 * PAGE + 200), (0, PAGE + 1)] {
        let refused = register(from, to).unwrap_err();
        assert!(
            matches!(refused.error(), Error::NotLockable { bytes, .. } if *bytes == to - from),
            "{refused}"
        );
        assert!(refused.to_string().contains("Registered::tensor"), "{refused}");
        assert_eq!(refused.into_value().1.len(), to - from);
    }
    let neighbours = [register(0, PAGE).unwrap(), register(3 * PAGE, 4 * PAGE).unwrap()];
    assert_eq!(calls(&late, Call::Register), 3);
    drop((held, neighbours));
    eventually("all are unregistered", || calls(&late, Call::Unregister) == 3);
    register(0, 4 * PAGE).unwrap();
    no_violations(&late);
}

/// Pages of a vector that others hold as well.
#[derive(Clone)]
struct Part(Arc<Vec<u8>>, std::ops::Range<usize>);

impl Part {
    fn new(bytes: usize) -> Self {
        let (memory, part) = apart(bytes);
        Self(Arc::new(memory), part)
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

/// Unlocking is left to a worker, and registering waits for it.
///
/// Mutant: pages that are being unlocked are refused.
#[test]
fn what_nobody_uses_any_more_is_registered_again_at_once() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let rounds = if cfg!(miri) { 2 } else { 50 };
    let start = |device: &Device| {
        let memory = device.register(part.clone()).unwrap();
        start_copy(whole(&memory), device, options()).unwrap()
    };
    for _ in 0..rounds {
        drop(device.register(part.clone()).unwrap());
        drop(start(&device).wait().unwrap());
        drop(block_on(start(&device)).unwrap());
    }
    assert_eq!(calls(&late, Call::Register), 3 * rounds);
    eventually("the owners go", || Arc::strong_count(&part.0) == 1);
    no_violations(&late);
}

/// Owners of the program wait, on as many threads as there are for them: what a copy was the last to use is unlocked meanwhile.
///
/// Mutant: what is lent goes by way of the threads for owners before it is unlocked.
#[test]
fn pages_are_unlocked_whatever_owners_wait_for() {
    const THREADS_FOR_OWNERS: usize = 64;
    let (late, device) = late();
    let part = Part::new(MIB);
    let (gate, waiting) = (Arc::new(Mutex::new(())), Arc::new(AtomicUsize::new(0)));
    let shut = gate.lock().unwrap();
    for _ in 0..THREADS_FOR_OWNERS {
        let (gate, waiting) = (gate.clone(), waiting.clone());
        let owner = Owner::new(vec![1; 64], move |_| {
            waiting.fetch_add(1, Ordering::SeqCst);
            drop(gate.lock());
        });
        drop(start_copy(Tensor::from_owner(owner, DType::U8, &[64]).unwrap(), &device, options()).unwrap());
    }
    eventually("all of them wait", || waiting.load(Ordering::SeqCst) == THREADS_FOR_OWNERS);

    let memory = device.register(part.clone()).unwrap();
    late.stall();
    drop(start_copy(whole(&memory), &device, options()).unwrap());
    drop(memory);
    late.release();
    eventually("the pages are unlocked", || calls(&late, Call::Unregister) == 1);
    drop(shut);
    eventually("the owners go", || Arc::strong_count(&part.0) == 1);
    no_violations(&late);
}

/// Mutant: pages that are being unlocked are refused.
#[test]
fn registering_waits_for_pages_that_are_being_unlocked_and_not_for_ever() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let memory = device.register(part.clone()).unwrap();
    late.hold(0);
    drop(memory);
    eventually("it is being unlocked", || late.is_holding());
    let refused = device.register(part.clone()).unwrap_err();
    assert!(refused.to_string().ends_with("is still being unlocked; try again"), "{refused}");
    assert_eq!(refused.error().kind(), ErrorKind::Busy);
    let registered = Flag::default();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let memory = device.register(part.clone());
            registered.raise();
            memory
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!registered.is_raised(), "its pages are locked");
        late.let_go();
        drop(waits.join().unwrap().unwrap());
    });
    no_violations(&late);
}

/// What the driver keeps is said, and waited for by nobody.
#[test]
fn what_the_driver_did_not_unlock_is_not_registered_again() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let memory = device.register(part.clone()).unwrap();
    late.fail_next(Call::Unregister, 0);
    drop(memory);
    let refused = device.register(part).unwrap_err();
    assert!(
        refused.to_string().contains("memory that the driver did not unlock; use other memory"),
        "{refused}"
    );
    no_violations(&late);
}

/// Mutant: it comes back before the memory is unlocked.
#[test]
fn memory_is_unregistered_when_nobody_shares_it() {
    let (late, device) = late();
    let part = Part::new(MIB);
    let memory = device.register(part.clone()).unwrap();
    let clone = memory.clone();
    let refused = memory.unregister().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    drop(clone);
    let memory = refused.into_value();
    late.stall();
    let copy = start_copy(whole(&memory), &device, options()).unwrap();
    let refused = memory.unregister().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    assert_eq!(calls(&late, Call::Unregister), 0);
    late.release();
    drop(copy.wait().unwrap());
    late.fail_next(Call::Unregister, 0);
    let refused = refused.into_value().unregister().unwrap_err();
    assert!(matches!(refused.error(), Error::Driver { .. }), "{refused}");
    let memory = refused.into_value();
    assert_eq!(memory.memory_kind(), MemoryKind::Pinned);
    let refused = device.register(part.clone()).unwrap_err();
    assert!(matches!(refused.error(), Error::NotLockable { .. }), "{refused}");
    memory.unregister().unwrap();
    assert_eq!((calls(&late, Call::Unregister), Arc::strong_count(&part.0)), (2, 2));
    drop(refused);
    let here = thread::current().id();
    let owner = Lender::new(MIB, move || assert_eq!(thread::current().id(), here));
    device.register(owner).unwrap().unregister().unwrap();
    Device::host().register(part.clone()).unwrap().unregister().unwrap();
    device.register(part.clone()).unwrap().unregister().unwrap();
    assert_eq!(Arc::strong_count(&part.0), 1);
    no_violations(&late);
}
