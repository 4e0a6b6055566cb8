//! Streams and graphs that use memory, and giving memory back behind them.

use std::mem;
use std::ptr;
use std::sync::atomic::fence;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::backend::stream::reached;
use crate::backend::{BackendStream, Ticket};
use crate::error::{Error, Result};
use crate::in_flight::deferred_release;
use crate::in_flight::graph_use::GraphUse;
use crate::in_flight::memory_budget::Allocated;
use crate::runtime::leaks::count_leak;
use crate::runtime::reactor::{Asked, Pollable};
use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::Ordering;
use crate::runtime::{reactor, workers};

/// So many uses are noted before those that are over are removed.
const FEW: usize = 4;

/// The uses of a piece of memory: no more than twice as many as there are streams that the program holds or that still work.
#[derive(Default)]
pub(crate) struct Uses {
    all: List,
    /// How many there may be before those that are over are removed.
    room: usize,
}

/// Some uses. Dropping them may run code of a stream's owner, so never under a lock.
pub(crate) type List = SmallVec<[Use; 1]>;

/// A use that the end of the memory must wait for.
pub(crate) enum Use {
    /// Everything submitted to the stream before the end of the memory.
    On(Arc<Handed>),
    /// Everything up to a position.
    Until(Ticket),
    /// Every launch of a graph, for as long as there is one.
    InGraph(Arc<GraphUse>),
}

/// Streams, and up to which position; `None` for all that they were given so far.
pub(crate) type StreamUses = SmallVec<[(Arc<dyn BackendStream>, Option<u64>); 1]>;

impl Uses {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the stream is among them.
    pub(crate) fn know(&self, stream: &Arc<dyn BackendStream>) -> bool {
        self.all.iter().any(|using| matches!(using, Use::On(known) if known.is_of(stream)))
    }

    /// Adds a stream, unless it is known; returns uses that are over.
    pub(crate) fn hand_to(&mut self, handed: &Arc<Handed>) -> List {
        let is_known = |using: &Use| matches!(using, Use::On(known) if known.is_like(handed));
        match self.all.iter().any(is_known) {
            true => List::new(),
            false => self.add(Use::On(handed.clone())),
        }
    }

    /// Adds a position; returns uses that are over.
    pub(crate) fn last_until(&mut self, ticket: Ticket) -> List {
        for using in &mut self.all {
            if let Use::Until(known) = using
                && Arc::ptr_eq(&known.stream, &ticket.stream)
            {
                known.position = known.position.max(ticket.position);
                return List::new();
            }
        }
        self.add(Use::Until(ticket))
    }

    /// Adds a graph, unless it is known; returns uses that are over.
    pub(crate) fn add_graph(&mut self, graph: &Arc<GraphUse>) -> List {
        let is_known = |using: &Use| matches!(using, Use::InGraph(known) if Arc::ptr_eq(known, graph));
        match self.all.iter().any(is_known) {
            true => List::new(),
            false => self.add(Use::InGraph(graph.clone())),
        }
    }

    /// Adds those of other memory; returns what is not needed any more.
    pub(crate) fn absorb(&mut self, others: Self) -> List {
        let mut unneeded = List::new();
        for using in others.all {
            unneeded.extend(match &using {
                Use::On(handed) => self.hand_to(handed),
                Use::Until(ticket) => self.last_until(ticket.clone()),
                Use::InGraph(graph) => self.add_graph(graph),
            });
            unneeded.push(using);
        }
        unneeded
    }

    /// The same uses, up to what their streams were given so far.
    pub(crate) fn so_far(&self) -> Self {
        let so_far = |using: &Use| {
            if let Use::InGraph(graph) = using {
                return Some(Use::InGraph(graph.clone()));
            }
            match using.ticket() {
                Ok(ticket) => ticket.map(Use::Until),
                // Captured, or broken: that shows again when somebody waits for it.
                Err(_) => using.handed().map(|handed| Use::On(handed.clone())),
            }
        };
        Self { all: self.all.iter().filter_map(so_far).collect(), room: self.room }
    }

    fn add(&mut self, using: Use) -> List {
        let mut over = List::new();
        if self.all.len() >= self.room.max(FEW) {
            over = self.take(Use::is_over);
            // Looking through them takes time in proportion to their number: as many come before the next time.
            self.room = 2 * self.all.len();
        }
        self.all.push(using);
        over
    }

    /// Takes those out to which nothing can be added, and of which nothing runs.
    pub(crate) fn take_over(&mut self) -> List {
        self.take(Use::is_over)
    }

    /// Takes those of streams out, of which more may come.
    pub(crate) fn take_streams(&mut self) -> List {
        self.take(|using| matches!(using, Use::On(_)))
    }

    /// Whether nothing of them runs now. More may come of streams that somebody holds.
    pub(crate) fn are_past(&self) -> bool {
        self.all.iter().all(Use::is_past)
    }

    fn take(&mut self, is_meant: fn(&Use) -> bool) -> List {
        let (meant, left) = mem::take(&mut self.all).into_iter().partition(is_meant);
        self.all = left;
        meant
    }

    /// Adds the streams to `streams`.
    pub(crate) fn add_to(&self, streams: &mut StreamUses) {
        for (stream, position) in self.all.iter().filter_map(Use::point) {
            match streams.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &stream)) {
                // After everything is after any position.
                Some((_, known)) => *known = known.zip(position).map(|(known, position)| known.max(position)),
                None => streams.push((stream, position)),
            }
        }
    }

    /// Gives `memory` back after all of them, without blocking; `lent`: by the program, whose code runs then.
    pub(crate) fn release(self, memory: Allocated, lent: bool) {
        let mut left = self.all;
        // They are taken from the end: positions are recorded now, and graphs waited for behind that, when a stream may be gone.
        left.sort_by_key(|using| !matches!(using, Use::InGraph(_)));
        Leaving { memory: Some(memory), lent, behind: SmallVec::new(), left }.go_on();
    }
}

impl Use {
    /// Whether nothing can be added to it, and it is done. A stream that cannot be asked may still use the memory.
    fn is_over(&self) -> bool {
        match self {
            Self::On(handed) => handed.is_over(),
            Self::Until(ticket) => ticket.is_reached().unwrap_or(false),
            Self::InGraph(graph) => graph.is_over(),
        }
    }

    /// Whether nothing of it runs now, as far as that can be asked.
    fn is_past(&self) -> bool {
        if let Self::InGraph(graph) = self {
            return graph.is_over();
        }
        let reached = |ticket: Option<Ticket>| ticket.map_or(Ok(true), |ticket| ticket.is_reached());
        self.ticket().and_then(reached).unwrap_or(false)
    }

    fn handed(&self) -> Option<&Arc<Handed>> {
        match self {
            Self::On(handed) => Some(handed),
            Self::Until(_) | Self::InGraph(_) => None,
        }
    }

    /// The position behind it as it is now; `None` if it is over, and for a graph, which has none.
    fn ticket(&self) -> Result<Option<Ticket>> {
        match self {
            Self::On(handed) => handed.ticket(),
            Self::Until(ticket) => Ok(Some(ticket.clone())),
            Self::InGraph(_) => Ok(None),
        }
    }

    /// What later work must come after; `None` if it is over. What a graph does comes behind the streams on which it is launched.
    fn point(&self) -> Option<(Arc<dyn BackendStream>, Option<u64>)> {
        match self {
            Self::On(handed) => handed.point(),
            Self::Until(ticket) => Some((ticket.stream.clone(), Some(ticket.position))),
            Self::InGraph(_) => None,
        }
    }
}

/// A stream that memory was handed to; what was handed to it through the same queue shares one of these.
///
/// It does not count as holding the stream. When nobody holds it any more, nothing can be submitted to it: the position behind
/// all work is known then, and once that is reached the stream goes, however long the memory stays.
pub(crate) struct Handed {
    /// As it was handed to us.
    stream: Weak<dyn BackendStream>,
    state: Mutex<State>,
    /// Whether it has no twin: others may submit to it as long as they like, and it never ends here.
    is_endless: bool,
    /// Memory that was dropped while the stream was being captured.
    deferred: Mutex<Vec<Leaving>>,
}

struct State {
    /// The same stream, for us; `None` once all of its work is over.
    own: Option<Arc<dyn BackendStream>>,
    /// The position behind all of its work, once nobody holds it.
    end: Option<u64>,
}

impl Handed {
    pub(crate) fn new(stream: &Arc<dyn BackendStream>) -> Arc<Self> {
        let twin = stream.twin();
        let is_endless = twin.is_none();
        let state = State { own: Some(twin.unwrap_or_else(|| stream.clone())), end: None };
        Arc::new(Self {
            stream: Arc::downgrade(stream),
            state: Mutex::new(state),
            is_endless,
            deferred: Mutex::default(),
        })
    }

    fn is_of(&self, stream: &Arc<dyn BackendStream>) -> bool {
        ptr::addr_eq(self.stream.as_ptr(), Arc::as_ptr(stream)) || self.is_same(&**stream)
    }

    fn is_like(&self, other: &Self) -> bool {
        ptr::addr_eq(self.stream.as_ptr(), other.stream.as_ptr())
            || other.stream.upgrade().is_some_and(|stream| self.is_same(&*stream))
    }

    /// Whether it stands for `other` as well. What ends here might end before another object for the same stream does.
    fn is_same(&self, other: &dyn BackendStream) -> bool {
        self.is_endless && self.own().is_some_and(|own| own.is_same(other))
    }

    fn own(&self) -> Option<Arc<dyn BackendStream>> {
        self.state.lock().own.clone()
    }

    fn ticket(&self) -> Result<Option<Ticket>> {
        let (own, end) = self.known();
        let Some(stream) = own else { return Ok(None) };
        let position = end.map_or_else(|| stream.record(), Ok)?;
        Ok(Some(Ticket { stream, position }))
    }

    fn point(&self) -> Option<(Arc<dyn BackendStream>, Option<u64>)> {
        let (own, end) = self.known();
        let own = own?;
        // The object that was handed to us, if it is alive: streams are compared by address.
        Some((self.stream.upgrade().unwrap_or(own), end))
    }

    fn known(&self) -> (Option<Arc<dyn BackendStream>>, Option<u64>) {
        let state = self.state.lock();
        (state.own.clone(), state.end)
    }

    /// Whether nobody holds the stream, and all that was submitted to it is done. Drops nothing: that may run code of the
    /// stream's owner, and this is called under a lock.
    fn is_over(&self) -> bool {
        let is_held = self.stream.strong_count() > 0;
        // Work that a thread submitted before it dropped the stream comes before the position.
        fence(Ordering::Acquire);
        let mut state = self.state.lock();
        let State { own: Some(own), end } = &mut *state else { return true };
        if end.is_none() && !is_held {
            *end = own.record().ok();
        }
        // A broken stream never ends: its uses stay, so that the memory is leaked.
        end.is_some_and(|end| reached(&**own).is_ok_and(|reached| reached >= end))
    }

    /// Notes the position behind all of its work: nobody else can submit to it.
    fn find_end(&self) -> Result<()> {
        if let (Some(own), None) = self.known() {
            let position = own.record()?;
            self.state.lock().end.get_or_insert(position);
        }
        Ok(())
    }

    /// The stream to drop, if its end is known and reached. `None` if the end is still to come; `Some(None)` if there is nothing
    /// to wait for.
    fn take_ended(&self) -> Option<Option<Arc<dyn BackendStream>>> {
        let (Some(own), Some(end)) = self.known() else { return Some(None) };
        match reached(&*own) {
            Ok(reached) if reached >= end => Some(self.state.lock().own.take()),
            Ok(_) => None,
            // The stream is broken: its end will never be reached, and memory that it may use is leaked.
            Err(_) => Some(None),
        }
    }

    /// Its queue, which held `stream`, is dropped: perhaps nobody holds the stream then.
    pub(crate) fn queue_goes(self: &Arc<Self>, stream: &Arc<dyn BackendStream>) {
        let is_used = Arc::strong_count(self) > 1;
        let is_last = Arc::strong_count(stream) == 1;
        if is_used && is_last && !self.is_endless && self.find_end().is_ok() && self.take_ended().is_none() {
            // A stream whose end cannot be found is one that the memory is not freed behind (`Leaving::go_on`).
            // Without a reactor thread it is dropped with the memory, or when the memory is handed to other streams.
            let _ = reactor::watch(self.clone());
        }
    }

    /// Keeps memory until the stream is no longer captured.
    fn defer(self: &Arc<Self>, leaving: Leaving) {
        let mut deferred = self.deferred.lock();
        deferred.push(leaving);
        let is_first = deferred.len() == 1;
        drop(deferred);
        if is_first && reactor::watch(self.clone()).is_err() {
            // Without a reactor thread nothing watches the memory: dropping it leaks it.
            let unwatched = mem::take(&mut *self.deferred.lock());
            drop(unwatched);
        }
    }

    /// Whether there is nothing to watch any more. Memory and streams are dropped on a worker, because that runs code of their
    /// owners.
    fn is_settled(&self) -> bool {
        let Some(ready) = self.take_ready() else { return false };
        if !ready.leaving.is_empty() {
            workers::dispose(ready);
        }
        match self.take_ended() {
            None => return false,
            Some(None) => {}
            Some(Some(stream)) => {
                workers::dispose(stream);
            }
        }
        true
    }

    /// Gives memory back that was dropped while the stream was being captured, if the capture is over. After this call no thread
    /// touches the stream for such memory.
    pub(crate) fn go_on_deferred(&self) {
        drop(self.take_ready());
    }

    /// Memory that need not wait for the end of a capture any more; `None` while the stream is captured.
    fn take_ready(&self) -> Option<Ready> {
        let mut deferred = self.deferred.lock();
        if deferred.is_empty() {
            return Some(Ready { leaving: Vec::new(), ticket: None });
        }
        // One position for all: it is behind what was submitted before each of them was dropped.
        match self.ticket() {
            Err(Error::StreamCaptured { .. }) => None,
            Ok(ticket) => Some(Ready { leaving: mem::take(&mut *deferred), ticket }),
            Err(_) => {
                let never = mem::take(&mut *deferred);
                drop(deferred);
                // Leaks it.
                drop(never);
                Some(Ready { leaving: Vec::new(), ticket: None })
            }
        }
    }
}

impl Pollable for Arc<Handed> {
    fn is_finished(&mut self, _: &mut Asked) -> bool {
        self.is_settled()
    }
}

/// Memory that waits for a position now, not for the end of a capture. When this is dropped, the memory is given back behind
/// that.
struct Ready {
    leaving: Vec<Leaving>,
    ticket: Option<Ticket>,
}

impl Drop for Ready {
    fn drop(&mut self) {
        for mut leaving in mem::take(&mut self.leaving) {
            leaving.behind.extend(self.ticket.clone());
            leaving.go_on();
        }
    }
}

/// Memory that is being given back; leaked if this is dropped.
struct Leaving {
    memory: Option<Allocated>,
    lent: bool,
    behind: SmallVec<[Ticket; 1]>,
    /// Uses whose position is not known yet.
    left: List,
}

impl Leaving {
    fn go_on(mut self) {
        while let Some(using) = self.left.pop() {
            match (using.ticket(), using) {
                (_, Use::InGraph(graph)) if !graph.is_over() => return graph.keep(Resumed(Some(self))),
                (Ok(ticket), _) => self.behind.extend(ticket),
                // Nothing can be recorded there as long as the capture lasts.
                (Err(Error::StreamCaptured { .. }), Use::On(handed)) => return handed.defer(self),
                // The stream is broken: nothing proves that its work is done, so the memory is never freed.
                (Err(_), _) => return,
            }
        }
        if let Some(memory) = self.memory.take() {
            deferred_release::release(memory, mem::take(&mut self.behind), self.lent);
        }
    }
}

/// Memory that is given back when this is dropped.
struct Resumed(Option<Leaving>);

impl Drop for Resumed {
    fn drop(&mut self) {
        if let Some(leaving) = self.0.take() {
            leaving.go_on();
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            count_leak(memory.buffer.bytes());
            mem::forget(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use std::time::Duration;

    use super::*;
    use crate::backend::TimeMark;
    use crate::backend::host::HostStream;
    use crate::runtime::sync::atomic::AtomicU64;

    /// A stream on which everything is done at once, or nothing ever.
    struct Plain(Arc<AtomicU64>, bool);

    // SAFETY: nothing is copied on it.
    unsafe impl BackendStream for Plain {
        fn record(&self) -> Result<u64> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed) + 1)
        }

        fn twin(&self) -> Option<Arc<dyn BackendStream>> {
            Some(Arc::new(Self(self.0.clone(), self.1)))
        }

        fn wait_for(&self, _: &dyn BackendStream, _: u64) -> Result<()> {
            Ok(())
        }

        fn reached(&self) -> Result<u64> {
            Ok(if self.1 { self.0.load(Ordering::Relaxed) } else { 0 })
        }

        fn wait(&self, _: u64, _: Option<Duration>) -> Result<bool> {
            Ok(self.1)
        }

        fn mark(&self) -> Result<Box<dyn TimeMark>> {
            Err(Error::NotReady)
        }
    }

    fn stream(is_quick: bool) -> Arc<dyn BackendStream> {
        Arc::new(Plain(Arc::default(), is_quick))
    }

    /// Mutant: uses that are over stay in the list.
    #[test]
    fn the_list_is_as_long_as_there_are_streams_held_or_working() {
        let mut uses = Uses::default();
        let held = [stream(true), stream(true), stream(true)];
        let working = stream(false);
        held.iter().chain([&working]).for_each(|stream| drop(uses.hand_to(&Handed::new(stream))));
        let end = Arc::downgrade(&working);
        drop(working);
        const ROUNDS: usize = if cfg!(miri) { 30 } else { 200 };
        let mut longest = 0;
        for _ in 0..ROUNDS {
            drop(uses.hand_to(&Handed::new(&stream(true))));
            let stream = stream(true);
            let position = stream.record().unwrap();
            drop(uses.last_until(Ticket { stream, position }));
            longest = longest.max(uses.all.len());
        }
        assert!(longest <= 4 * FEW, "{longest} uses");
        assert!(held.iter().all(|stream| uses.know(stream)), "a stream that the program holds was forgotten");
        assert_eq!(end.strong_count(), 0, "a use holds the stream");
        drop(uses.take(Use::is_over));
        assert_eq!(uses.all.len(), held.len() + 1, "the streams held, and the one that still works");
    }

    /// Parts of a tensor have the uses of the whole, and give theirs to it.
    #[test]
    fn graphs_are_noted_once_however_often_parts_are_made() {
        let (graph, share) = GraphUse::begin();
        let mut whole = Uses::default();
        drop(whole.add_graph(&graph));
        for _ in 0..10 {
            let parts = [whole.so_far(), whole.so_far()];
            parts.into_iter().for_each(|part| drop(whole.absorb(part)));
        }
        assert_eq!(whole.all.len(), 1);
        assert!(whole.take_over().is_empty(), "the graph is there");
        drop(share);
        assert_eq!(whole.take_over().len(), 1);
    }

    #[test]
    fn streams_that_are_one_are_noted_once() {
        let mut uses = Uses::default();
        for _ in 0..10 {
            let stream: Arc<dyn BackendStream> = Arc::new(HostStream::new());
            drop(uses.hand_to(&Handed::new(&stream)));
        }
        assert_eq!(uses.all.len(), 1);
    }
}
