//! Owners of registered memory, whose code is not ours.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use late_backend::Call;
use transship_core::{Error, start_copy};

use crate::hostile::{Flag, Owner};
use crate::support::{bytes_of, eventually, late, no_violations, on};
use crate::{Lender, MIB, PAGE, apart, calls, numbers, options, whole};

/// Answers with other bytes each time, and counts.
struct Shifty {
    memory: Vec<u8>,
    asked: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Shifty {
    fn as_ref(&self) -> &[u8] {
        let start = self.memory.as_ptr().addr().next_multiple_of(PAGE) - self.memory.as_ptr().addr();
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        &self.memory[start + asked * MIB..][..MIB]
    }
}

/// Mutant: an owner is asked for its bytes once more after they are locked.
#[test]
fn an_owner_is_asked_once() {
    let (late, device) = late();
    let asked = Arc::<AtomicUsize>::default();
    let mut memory = vec![1; PAGE + 4 * MIB];
    memory[..PAGE + MIB - 1].fill(7);
    let shifty = || Shifty { memory: memory.clone(), asked: asked.clone() };
    late.fail_next(Call::Register, 0);
    let refused = device.register(shifty()).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let back = refused.into_value();
    asked.store(0, Ordering::Relaxed);
    let memory = device.register(back).unwrap();
    assert_eq!(bytes_of(&on(&device, &whole(&memory).to_bytes().unwrap()))[0], 7);
    drop(start_copy(whole(&memory), &device, options()).unwrap().wait().unwrap());
    drop(memory);
    eventually("it is unregistered", || calls(&late, Call::Unregister) == 1);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    no_violations(&late);
}

#[test]
fn owners_that_panic_break_nothing() {
    struct Panics(Arc<AtomicUsize>);
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            panic!("deliberate");
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (late, device) = late();
    let dropped = Arc::<AtomicUsize>::default();
    let owner = Panics(dropped.clone());
    assert!(catch_unwind(AssertUnwindSafe(|| device.register(owner))).is_err());
    assert_eq!((dropped.load(Ordering::Relaxed), calls(&late, Call::Register)), (1, 0));

    let flag = Flag::default();
    let raised = flag.clone();
    let memory = device.register(Lender::new(MIB, move || {
        raised.raise();
        panic!("deliberate");
    }));
    drop(memory.unwrap());
    eventually("the owner goes", || flag.is_raised());
    drop(device.register(Lender::new(MIB, || {})).unwrap());
    eventually("others are unregistered", || calls(&late, Call::Unregister) == 2);
    no_violations(&late);
}

#[test]
fn raw_memory_is_registered_until_its_owner_goes() {
    let (late, device) = late();
    let (memory, part) = apart(MIB);
    let start = memory[part].as_ptr();
    let gone = Flag::default();
    let flag = gone.clone();
    let owner = Box::new(Owner::new(memory, move |_| flag.raise()));
    late.fail_next(Call::Register, 0);
    // SAFETY: the memory is the owner's, and nobody writes to it.
    let register = |owner| unsafe { device.register_raw(start, MIB, owner) };
    let owner = register(owner).unwrap_err().into_value();
    assert!(!gone.is_raised());
    let memory = register(owner).unwrap();
    assert!(bytes_of(&on(&device, &whole(&memory).to_bytes().unwrap())) == numbers(MIB));
    drop(memory);
    eventually("the owner goes", || gone.is_raised());
    // SAFETY: nothing is there, which is what is refused.
    let refused = unsafe { device.register_raw(std::ptr::null(), 10, Box::new(())) }.unwrap_err();
    assert!(matches!(refused.error(), Error::InvalidMemory { .. }), "{refused}");
    no_violations(&late);
}
