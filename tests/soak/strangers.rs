//! What the program does behind the library's back, at random: owners of memory and wakers that lock, sleep, panic, copy and
//! await.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{panic_any, set_hook, take_hook};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use transship::{CopyError, CopyHandle, CopyOptions, Device, Tensor, start_copy};

use crate::data::Random;
use crate::hostile::{Owner, PanicsWhenDropped, Task, waker};

/// The text of panics that are part of the soak.
const DELIBERATE: &str = "deliberate panic";
const POOLS: usize = 4;

/// What threads, owners and wakers share.
pub(crate) struct Strangers {
    /// Of buffers, as programs have them: owners put theirs back, and threads hold the locks while they wait or await.
    pools: [Mutex<Vec<usize>>; POOLS],
    /// Wakers take it, and threads hold it while they wait: to await would be to wait for the waker.
    wakers: Mutex<()>,
    /// Owners and wakers that are not gone yet.
    alive: Mutex<BTreeMap<u64, String>>,
    failures: Mutex<Vec<String>>,
}

/// What the panic of an owner carries; to drop it is to panic again.
pub(crate) struct OwnersPanic {
    pub(crate) owner: u64,
    _again: PanicsWhenDropped,
}

/// How the wait for a stranger's copy ends.
pub(crate) type Ending = fn(CopyHandle<Tensor>) -> Result<Tensor, CopyError<Tensor>>;

/// What a stranger does when its time has come.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Nothing,
    Lock(usize),
    Sleep,
    Copy,
    Await,
    Panic,
}

/// Keeps count of one owner or waker.
struct Alive(Arc<Strangers>, u64);

/// Does its deed at one of the calls, or at all of them.
struct StrangeTask {
    alive: Alive,
    device: Device,
    deed: Deed,
    /// At which call: cloned, woken, dropped.
    at: [bool; 3],
}

/// Says nothing of panics that are part of the soak.
pub(crate) fn hush_deliberate_panics() {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        if !is_deliberate(info.payload()) {
            usual(info);
        }
    }));
}

/// Polls until it is ready: what executors keep for each thread may be gone.
pub(crate) fn poll_until_ready(mut copy: CopyHandle<Tensor>) -> Result<Tensor, CopyError<Tensor>> {
    loop {
        match Pin::new(&mut copy).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// Whether a panic is a waker's or an owner's.
pub(crate) fn is_deliberate(payload: &(dyn Any + Send)) -> bool {
    payload.is::<OwnersPanic>()
        || payload.is::<PanicsWhenDropped>()
        || payload.downcast_ref() == Some(&DELIBERATE)
}

impl Strangers {
    pub(crate) fn new() -> Arc<Self> {
        let strangers = Self {
            pools: Default::default(),
            wakers: Mutex::default(),
            alive: Mutex::default(),
            failures: Mutex::default(),
        };
        Arc::new(strangers)
    }

    /// A tensor over memory like that of `tensor`, whose owner misbehaves; and whether that panics.
    pub(crate) fn lend(
        self: &Arc<Self>,
        tensor: &Tensor,
        owner: u64,
        may_panic: bool,
        device: &Device,
        random: &mut Random,
    ) -> (Tensor, bool) {
        let deed = match Deed::new(random) {
            Deed::Panic if !may_panic => Deed::Sleep,
            deed => deed,
        };
        let (alive, device) = (Alive::new(self, format!("owner {owner:#x}, {deed:?}")), device.clone());
        let on_drop = move |mut bytes: Vec<u8>| {
            // Whoever still reads them shall see it.
            bytes.fill(0xA5);
            match deed {
                Deed::Panic if thread::panicking() => {}
                Deed::Panic => panic_any(OwnersPanic { owner, _again: PanicsWhenDropped(DELIBERATE) }),
                Deed::Lock(pool) => lock(&alive.0.pools[pool]).push(bytes.len()),
                deed => alive.0.does(deed, &device),
            }
        };
        let bytes = Owner::new(tensor.to_bytes().unwrap(), on_drop);
        let lent = Tensor::from_owner(bytes, tensor.dtype(), tensor.shape()).unwrap();
        (lent, matches!(deed, Deed::Panic))
    }

    /// A waker that misbehaves.
    pub(crate) fn waker(self: &Arc<Self>, device: &Device, random: &mut Random) -> Waker {
        let mut at = [0; 3].map(|_| random.next().is_multiple_of(3));
        let deed = Deed::new(random);
        if matches!(deed, Deed::Panic) {
            // Those that panic elsewhere do so in this program's own hands.
            at = [false, true, false];
        }
        let deed = if matches!(deed, Deed::Await) { Deed::Copy } else { deed };
        let alive = Alive::new(self, format!("waker, {deed:?} at {at:?}"));
        waker(Arc::new(StrangeTask { alive, device: device.clone(), deed, at }))
    }

    /// The lock of a pool, of which owners put their buffers back.
    pub(crate) fn hold_pool(&self, random: &mut Random) -> MutexGuard<'_, Vec<usize>> {
        let mut pool = lock(&self.pools[random.next() as usize % POOLS]);
        pool.clear();
        pool
    }

    pub(crate) fn hold_wakers(&self) -> MutexGuard<'_, ()> {
        lock(&self.wakers)
    }

    /// Copies there and back; each ends by `end`.
    pub(crate) fn copy(&self, device: &Device, end: Ending) {
        let copied = || -> Result<Vec<u8>, CopyError<Tensor>> {
            let there = end(start_copy(Tensor::from(vec![7_u8; 40]), device, CopyOptions::default())?)?;
            let back = end(start_copy(there, &Device::host(), CopyOptions::default())?)?;
            Ok(back.to_bytes().unwrap_or_default())
        };
        match copied() {
            Ok(bytes) if bytes == [7; 40] => {}
            Ok(bytes) => self.fails(format!("a stranger found {bytes:?}")),
            Err(error) => self.fails(format!("a stranger could not copy: {error:?}")),
        }
    }

    /// Whether no owner and no waker is left.
    pub(crate) fn are_gone(&self) -> bool {
        lock(&self.alive).is_empty()
    }

    /// Which are left, and what went wrong where nobody could be told.
    pub(crate) fn look(&self) -> (Vec<String>, Vec<String>) {
        (lock(&self.alive).values().cloned().collect(), lock(&self.failures).clone())
    }

    fn fails(&self, what: String) {
        lock(&self.failures).push(what);
    }

    fn does(&self, deed: Deed, device: &Device) {
        match deed {
            Deed::Nothing => {}
            Deed::Lock(_) => drop(self.hold_wakers()),
            Deed::Sleep => thread::sleep(Duration::from_millis(1)),
            Deed::Copy => self.copy(device, CopyHandle::wait),
            Deed::Await => self.copy(device, block_on),
            Deed::Panic => panic_any(PanicsWhenDropped(DELIBERATE)),
        }
    }
}

impl Deed {
    fn new(random: &mut Random) -> Self {
        match random.next() % 8 {
            0 => Self::Nothing,
            1 | 2 => Self::Lock(random.next() as usize % POOLS),
            3 => Self::Sleep,
            4 => Self::Copy,
            5 => Self::Await,
            _ => Self::Panic,
        }
    }
}

impl Alive {
    fn new(strangers: &Arc<Strangers>, what: String) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        lock(&strangers.alive).insert(number, what);
        Self(strangers.clone(), number)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        lock(&self.0.alive).remove(&self.1);
    }
}

impl StrangeTask {
    fn does(&self, call: usize) {
        if self.at[call] {
            self.alive.0.does(self.deed, &self.device);
        }
    }
}

impl Task for StrangeTask {
    fn cloned(&self) {
        self.does(0);
    }

    fn woken(&self) {
        self.does(1);
    }

    fn dropped(&self) {
        self.does(2);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
