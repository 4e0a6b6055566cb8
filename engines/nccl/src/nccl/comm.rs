//! A communicator of the library's, and waiting for it.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use transship::{Device, ForkCount, Stream};

use crate::error::{Error, Result};
use crate::nccl::functions::{IN_PROGRESS, RawComm, RawConfig};
use crate::nccl::library::Nccl;
use crate::nccl::native;
use crate::nccl::unique_id::UniqueId;

/// How long a wait asks again and again before it sleeps between two questions.
const SPIN: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(50);
/// How long an abort may be overlooked by what waits for others to leave.
const LOOK: Duration = Duration::from_millis(5);

/// One rank. The lock is held for single calls and for groups of them, none of which waits for another rank: communicators of several processes are not blocking,
/// and those of one process are called by one thread for all ranks. Nobody ends it meanwhile.
pub(crate) struct Comm {
    nccl: Nccl,
    state: Mutex<State>,
    /// Whether nobody waits any more for ranks that have not left.
    is_given_up: AtomicBool,
    /// Its collectives run here.
    stream: Stream,
    limit: Duration,
    /// Whether calls return when they are submitted, and not before.
    is_blocking: bool,
    /// A forked child is refused it, and ends nothing: the library's threads are its parent's.
    forks: ForkCount,
}

enum State {
    Alive(Handle),
    /// Ended behind all that it was given.
    Left,
    Aborted,
}

struct Handle(RawComm);

/// The communicator while calls are made with it.
pub(crate) struct Held<'a>(MutexGuard<'a, State>);

// SAFETY: communicators belong to no thread; the lock around this lets one thread call at a time.
unsafe impl Send for Handle {}

impl Comm {
    /// Those of all ranks of one process, each with the stream that it works on.
    pub(crate) fn all(nccl: Nccl, streams: &[Stream], limit: Duration) -> Result<Vec<Self>> {
        let ordinals = streams.iter().map(|stream| stream.device().id().ordinal());
        let ordinals: Vec<c_int> =
            ordinals.map(|ordinal| c_int::try_from(ordinal).unwrap_or(c_int::MAX)).collect();
        let mut raw: Vec<RawComm> = vec![ptr::null_mut(); ordinals.len()];
        let count = c_int::try_from(ordinals.len()).unwrap_or(c_int::MAX);
        let first = streams.first().ok_or(Error::NoSuchRank { rank: 0, ranks: 0 })?;
        native::on(first, |_| {
            // SAFETY: there is room for `count` communicators, and there are as many ordinals.
            let code =
                unsafe { (nccl.functions().comm_init_all)(raw.as_mut_ptr(), count, ordinals.as_ptr()) };
            nccl.check("ncclCommInitAll", code)
        })?;
        let comm = |(raw, stream): (RawComm, &Stream)| Self::over(nccl, raw, stream, limit, true);
        Ok(raw.into_iter().zip(streams).map(comm).collect())
    }

    /// The one of rank `rank` of `size`, each of which a process joins within `limit`.
    pub(crate) fn join(
        nccl: Nccl,
        id: &UniqueId,
        rank: usize,
        size: usize,
        stream: &Stream,
        limit: Duration,
    ) -> Result<Self> {
        let no_such_rank = || Error::NoSuchRank { rank, ranks: size };
        if rank >= size {
            return Err(no_such_rank());
        }
        let (number, count) = (c_int::try_from(rank), c_int::try_from(size));
        let (Ok(number), Ok(count)) = (number, count) else { return Err(no_such_rank()) };
        let (mut raw, mut config) = (ptr::null_mut(), RawConfig::non_blocking());
        let started = Instant::now();
        let comm = native::on(stream, |_| {
            // SAFETY: the communicator goes to a local, the id is 128 bytes, and the config is as 2.14 has it.
            let code = unsafe {
                (nccl.functions().comm_init_rank_config)(&mut raw, count, id.raw(), number, &mut config)
            };
            nccl.check("ncclCommInitRankConfig", code)?;
            Ok(Self::over(nccl, raw, stream, limit, false))
        })?;
        comm.wait("joining", started, || Ok(comm.async_state()? != IN_PROGRESS))?;
        Ok(comm)
    }

    fn over(nccl: Nccl, raw: RawComm, stream: &Stream, limit: Duration, is_blocking: bool) -> Self {
        let (state, is_given_up) = (Mutex::new(State::Alive(Handle(raw))), AtomicBool::new(false));
        let (stream, forks) = (stream.clone(), ForkCount::now());
        Self { nccl, state, is_given_up, stream, limit, is_blocking, forks }
    }

    pub(crate) fn nccl(&self) -> &Nccl {
        &self.nccl
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn device(&self) -> &Device {
        self.stream.device()
    }

    /// Whether it was neither ended nor aborted.
    pub(crate) fn is_alive(&self) -> bool {
        self.forks.is_now() && matches!(*self.state(), State::Alive(_))
    }

    /// The communicator, which nobody ends while this is there.
    pub(crate) fn hold(&self) -> Result<Held<'_>> {
        if !self.forks.is_now() {
            return Err(transship::Error::Forked.into());
        }
        match self.state() {
            alive if matches!(*alive, State::Alive(_)) => Ok(Held(alive)),
            _ => Err(Error::Aborted),
        }
    }

    /// Makes a call with the communicator.
    fn with(&self, call: &'static str, make: impl FnOnce(RawComm) -> c_int) -> Result<()> {
        let held = self.hold()?;
        self.nccl.check(call, make(held.raw()?))
    }

    /// Waits until what was called is submitted to the stream.
    pub(crate) fn settle(&self, started: Instant) -> Result<()> {
        self.wait("submitting a collective", started, || Ok(self.async_state()? != IN_PROGRESS))
    }

    /// Waits until `is_done`. Aborts the communicator when an error of the library shows, or the time since `started` is over.
    pub(crate) fn wait(
        &self,
        what: &'static str,
        started: Instant,
        mut is_done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            let done = is_done();
            // Asked behind that: what an abort has ended is not done.
            let state = self.async_state();
            let outcome = match (done, state) {
                (Err(error), _) | (_, Err(error)) => Err(error),
                (Ok(true), Ok(_)) => return Ok(()),
                _ if started.elapsed() >= self.limit => Err(Error::TimedOut { what, limit: self.limit }),
                _ => Ok(()),
            };
            if let Err(error) = outcome {
                self.abort();
                return Err(error);
            }
            if begun.elapsed() < SPIN { std::hint::spin_loop() } else { thread::sleep(NAP) }
        }
    }

    /// What the library says of it: it works, or is at it. Errors of other ranks show here.
    pub(crate) fn async_state(&self) -> Result<c_int> {
        let mut state = 0;
        if !self.forks.is_now() {
            return Err(transship::Error::Forked.into());
        }
        // Under one lock: who leaves meanwhile has not aborted it.
        let held = match self.state() {
            left if matches!(*left, State::Left) => return Ok(state),
            held => Held(held),
        };
        let raw = held.raw()?;
        // SAFETY: the communicator is alive, and held; the state goes to a local.
        let code = unsafe { (self.nccl.functions().comm_get_async_error)(raw, &mut state) };
        self.nccl.check("ncclCommGetAsyncError", code)?;
        drop(held);
        self.nccl.check("a collective", state)?;
        Ok(state)
    }

    /// Ends whatever it is doing, on the device as well. What it was to fill is undefined.
    pub(crate) fn abort(&self) {
        if !self.forks.is_now() {
            return;
        }
        self.is_given_up.store(true, Ordering::Relaxed);
        // Held until it has ended: who finds it gone may let go of what it has used.
        let mut state = self.state();
        let State::Alive(Handle(raw)) = *state else { return };
        *state = State::Aborted;
        // What fails here has no other way to end.
        let _ = native::on(&self.stream, |_| {
            // SAFETY: the communicator was taken out just now, and whoever uses it holds the lock: nobody does any more.
            self.nccl.check("ncclCommAbort", unsafe { (self.nccl.functions().comm_abort)(raw) })
        });
    }

    /// Ends it behind all that it was given, for which it waits within its limit, and aborts it where that does not come to its end. Nothing once it has ended.
    pub(crate) fn end(&self) {
        if self.is_alive() && self.finish().is_err() {
            self.abort();
        }
    }

    fn finish(&self) -> Result<()> {
        let started = Instant::now();
        let end = self.stream.record()?;
        self.wait("the last collective", started, || Ok(end.is_reached()?))?;
        if !self.is_blocking {
            self.with("ncclCommFinalize", |raw| {
                // SAFETY: the communicator is alive, and nothing is called after this but to destroy it.
                unsafe { (self.nccl.functions().comm_finalize)(raw) }
            })?;
            self.wait("leaving", started, || Ok(self.async_state()? != IN_PROGRESS))?;
        }
        let mut state = self.state();
        match mem::replace(&mut *state, State::Left) {
            State::Alive(handle) => {
                drop(state);
                self.destroy(handle, started)
            }
            ended => {
                *state = ended;
                Ok(())
            }
        }
    }

    /// The library waits there for ranks of this machine that have not left, for as long as they live (four H100s): so another thread does.
    fn destroy(&self, handle: Handle, since: Instant) -> Result<()> {
        let (nccl, stream) = (self.nccl, self.stream.clone());
        let destroy = move || {
            let handle = handle;
            native::on(&stream, |_| {
                // SAFETY: as in `abort`.
                nccl.check("ncclCommDestroy", unsafe { (nccl.functions().comm_destroy)(handle.0) })
            })
        };
        if self.is_blocking {
            return destroy();
        }
        let (sender, receiver) = mpsc::channel();
        let thread = thread::Builder::new().name("transship-nccl-leaves".to_owned());
        let started = thread.spawn(move || drop(sender.send(destroy())));
        match started {
            Ok(_) => self.wait_for_others(&receiver, since),
            // Nothing has it any more: it stays.
            Err(_) => Ok(()),
        }
    }

    /// Whoever has not left in time, or when it is aborted, is not waited for here.
    fn wait_for_others(&self, destroyed: &Receiver<Result<()>>, since: Instant) -> Result<()> {
        while since.elapsed() < self.limit && !self.is_given_up.load(Ordering::Relaxed) {
            match destroyed.recv_timeout(LOOK) {
                Ok(destroyed) => return destroyed,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held<'_> {
    pub(crate) fn raw(&self) -> Result<RawComm> {
        match *self.0 {
            State::Alive(Handle(raw)) => Ok(raw),
            State::Left | State::Aborted => Err(Error::Aborted),
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.end();
    }
}
