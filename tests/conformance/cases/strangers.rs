//! Programs that behave badly: structures with an order of their own, owners of memory that lock and panic, wakers that panic.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use libtest_mimic::Failed;
use transship::{
    CopyHandle, CopyPolicy, DType, Error, Pairs, Stop, Tensor, TensorTree, Visitor, start_copy,
    start_copy_into, start_copy_to_all,
};

use crate::backends::Need::SecondDevice;
use crate::bed::{Bed, eventually};
use crate::data::{Contents, assert_same};
use crate::hostile::{Owner, PanicsWhenDropped, Task, waker};
use crate::suite::{Case, DELIBERATE, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(maps_into_held_maps),
        case!(maps_with_other_keys_come_back_whole),
        case!(visits_that_change_their_order),
        case!(clones_that_rebuild_to_all_devices),
        case!(clones_that_rebuild_to_two_devices).needs(SecondDevice),
        case!(owners_that_lock_what_is_held_by_who_waits),
        case!(owners_that_panic),
        case!(a_waker_that_panics_twice),
    ]
}

/// Each has an order of its own, and so has each clone.
struct Weights(HashMap<String, Tensor>);

type Expected = BTreeMap<String, Contents>;

impl Clone for Weights {
    fn clone(&self) -> Self {
        Self(self.0.iter().map(|(key, tensor)| (key.clone(), tensor.clone())).collect())
    }
}

impl TensorTree for Weights {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        self.0.pair(&mut into.0, pairs)
    }
}

/// Tensors of one shape, so that no other one is told by its size.
fn weights(bed: &Bed, count: usize) -> Weights {
    Weights((0..count).map(|index| (format!("layer{index}"), bed.bytes(64))).collect())
}

fn expected(weights: &Weights) -> Expected {
    weights.0.iter().map(|(key, tensor)| (key.clone(), Contents::of(tensor))).collect()
}

fn assert_holds(bed: &Bed, weights: Weights, all: &Expected) -> Result<(), Failed> {
    let found = expected(&bed.down(weights)?);
    assert!(found.keys().eq(all.keys()), "the same keys");
    all.iter().zip(found).for_each(|((_, was), (_, is))| assert_same(std::slice::from_ref(was), &[is]));
    Ok(())
}

/// In memory of its own, on the host as well.
fn held(bed: &Bed, weights: Weights) -> Result<Weights, Failed> {
    Ok(bed.copy(weights, &bed.device, bed.options().policy(CopyPolicy::Always))?.0)
}

/// Where each lies.
fn places(weights: &Weights) -> Result<BTreeMap<String, (Option<u64>, usize)>, Failed> {
    let place = |(key, tensor): (&String, &Tensor)| Ok((key.clone(), (tensor.address()?, tensor.offset())));
    weights.0.iter().map(place).collect()
}

fn maps_into_held_maps(bed: &Bed) -> Result<(), Failed> {
    for count in [8, 300] {
        let mut into = held(bed, weights(bed, count))?;
        let before = places(&into)?;
        for _ in 0..3 {
            let value = weights(bed, count);
            let all = expected(&value);
            into = start_copy_into(value, into, bed.options())?.wait()?;
            assert_eq!(places(&into)?, before);
            assert_holds(bed, into.clone(), &all)?;
        }
    }
    Ok(())
}

fn maps_with_other_keys_come_back_whole(bed: &Bed) -> Result<(), Failed> {
    for _ in 0..4 {
        let (mut value, old) = (weights(bed, 20), weights(bed, 20));
        let (new, old_expected) = (expected(&value), expected(&old));
        value.0.insert("further".into(), bed.bytes(64));
        let refused = start_copy_into(value, held(bed, old)?, bed.options()).map(drop);
        let refused = refused.expect_err("there is no such key to copy into");
        assert!(matches!(refused.error(), Error::StructureMismatch { .. }), "{refused:?}");
        let (value, into) = refused.into_both();
        let mut value = value.ok_or("the new one is gone")?;
        value.0.remove("further").ok_or("a key is gone")?;
        assert_holds(bed, value, &new)?;
        assert_holds(bed, into.ok_or("the held one is gone")?, &old_expected)?;
    }
    Ok(())
}

type End = fn(CopyHandle<Turning>) -> Result<Turning, Failed>;

/// Each visit begins with another tensor.
struct Turning(Vec<Tensor>, usize);

impl TensorTree for Turning {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.1 = (self.1 + 1) % self.0.len();
        let (last, first) = self.0.split_at_mut(self.1);
        first.iter_mut().chain(last).try_for_each(|tensor| visitor.tensor(tensor))
    }
}

fn visits_that_change_their_order(bed: &Bed) -> Result<(), Failed> {
    let tensors = || vec![bed.bytes(4), bed.tensor(DType::F32, &[1]), bed.bytes(4), bed.bytes(3 << 20)];
    let ends: [End; 3] = [
        |copy| Ok(copy.wait()?),
        |copy| Ok(futures::executor::block_on(copy)?),
        |copy| copy.cancel().value.ok_or_else(|| "a cancelled copy keeps its structure".into()),
    ];
    for end in ends {
        let mut sent = tensors();
        let all = Contents::of_all(&mut sent);
        let there = end(start_copy(Turning(sent, 0), &bed.device, bed.options())?)?;
        let back = end(start_copy(there, &bed.host, bed.options().policy(CopyPolicy::Always))?)?;
        assert_same(&all, &Contents::of_all(&mut bed.down(back.0)?));
    }
    Ok(())
}

fn to_all(bed: &Bed, devices: &[transship::Device]) -> Result<(), Failed> {
    for _ in 0..4 {
        let value = weights(bed, 30);
        let all = expected(&value);
        for (copy, device) in start_copy_to_all(value, devices, bed.options())?.into_iter().zip(devices) {
            let there = copy.wait()?;
            assert!(there.0.values().all(|tensor| tensor.device_id().is_ok_and(|id| id == device.id())));
            assert_holds(bed, there, &all)?;
        }
    }
    Ok(())
}

fn clones_that_rebuild_to_all_devices(bed: &Bed) -> Result<(), Failed> {
    to_all(bed, &[bed.device.clone(), bed.host.clone(), bed.device.clone()])
}

fn clones_that_rebuild_to_two_devices(bed: &Bed) -> Result<(), Failed> {
    to_all(bed, &[bed.second()?.clone(), bed.device.clone(), bed.second()?.clone()])
}

fn lent(bytes: usize, on_drop: impl FnOnce(Vec<u8>) + Send + Sync + 'static) -> Result<Tensor, Failed> {
    Ok(Tensor::from_owner(Owner::new(vec![7; bytes], on_drop), DType::U8, &[bytes])?)
}

/// A pool of buffers behind a lock: who holds it waits for a copy of his own.
fn owners_that_lock_what_is_held_by_who_waits(bed: &Bed) -> Result<(), Failed> {
    let pool = Arc::new(Mutex::new(Vec::<Vec<u8>>::new()));
    let sizes = [64, 3 << 20];
    for (round, bytes) in sizes.into_iter().cycle().take(8).enumerate() {
        let pooled = pool.clone();
        let returns = lent(bytes, move |buffer| {
            pooled.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        })?;
        let dropped = bed.start(returns, &bed.device, bed.options())?;
        let held = pool.lock().unwrap_or_else(PoisonError::into_inner);
        drop(dropped);
        let own = bed.start(bed.bytes(100), &bed.device, bed.options())?;
        let own = if round % 4 < 2 { own.wait() } else { futures::executor::block_on(own) };
        drop(held);
        own?;
    }
    bed.device.synchronize()?;
    let all_are_back = || pool.lock().unwrap_or_else(PoisonError::into_inner).len() == 8;
    eventually("the buffers come back", all_are_back)?;
    bed.still_works()
}

/// Who waits meets the panic of what he has lent; nobody else does.
fn owners_that_panic(bed: &Bed) -> Result<(), Failed> {
    let panics = || {
        lent(64, |_| {
            if !std::thread::panicking() {
                panic_any(PanicsWhenDropped(DELIBERATE));
            }
        })
    };
    for _ in 0..4 {
        drop(start_copy(panics()?, &bed.device, bed.options())?);
        let own = start_copy(panics()?, &bed.device, bed.options())?;
        let other = start_copy(bed.bytes(100), &bed.device, bed.options())?;
        assert_eq!(other.wait()?.nbytes(), 100);
        match catch_unwind(AssertUnwindSafe(|| own.wait().map(drop))) {
            Ok(ended) => return Err(format!("nobody has met the panic: {ended:?}").into()),
            Err(payload) => {
                assert!(payload.is::<PanicsWhenDropped>(), "the panic of the owner");
                std::mem::forget(payload);
            }
        }
    }
    bed.still_works()
}

struct Panics;

impl Task for Panics {
    fn woken(&self) {
        panic_any(PanicsWhenDropped(DELIBERATE));
    }
}

fn a_waker_that_panics_twice(bed: &Bed) -> Result<(), Failed> {
    for _ in 0..4 {
        let hold = bed.hold();
        let mut copy = bed.start(bed.bytes(3 << 20), &bed.device, bed.options())?;
        let panics = waker(Arc::new(Panics));
        let polled = Pin::new(&mut copy).poll(&mut Context::from_waker(&panics));
        assert!(polled.is_pending() || !hold.holds(), "a device that stands still has copied");
        drop(hold);
        // It is awaited behind the panic.
        let other = bed.start(bed.bytes(100), &bed.device, bed.options())?;
        assert_eq!(futures::executor::block_on(other)?.nbytes(), 100);
        let done = match polled {
            Poll::Ready(done) => done,
            Poll::Pending => futures::executor::block_on(copy),
        };
        assert_eq!(done?.nbytes(), 3 << 20);
    }
    bed.still_works()
}
