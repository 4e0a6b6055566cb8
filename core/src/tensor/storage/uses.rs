//! Streams and graphs that use the memory of a storage.

use std::sync::Arc;

use crate::backend::{BackendStream, Ticket};
use crate::error::{Error, Result};
use crate::in_flight::graph_use::GraphUse;
use crate::in_flight::stream_uses::{Handed, List, StreamUses, Uses};
use crate::runtime::sync::atomic::Ordering;
use crate::tensor::storage::{Storage, StorageInner};

impl Storage {
    /// The memory is not given back before everything submitted to `stream` up to that moment is done.
    pub(crate) fn record_stream(&self, stream: &Arc<dyn BackendStream>) {
        let is_known = self.0.uses.with(|uses| uses.know(stream));
        if !is_known {
            self.hand_to(&Handed::new(stream));
        }
    }

    /// The same for the stream of a queue.
    pub(crate) fn hand_to(&self, stream: &Arc<Handed>) {
        let over = self.0.uses.with(|uses| {
            self.0.used.store(true, Ordering::Release);
            uses.hand_to(stream)
        });
        // Not under the lock: streams may go with it.
        drop(over);
    }

    /// Its end waits for no stream that it was handed to.
    pub(crate) fn forget_streams(&self) {
        let forgotten = self.0.uses.with(Uses::take_streams);
        drop(forgotten);
    }

    /// A graph that is being captured on `stream` uses the memory.
    pub(crate) fn use_in_graph(&self, graph: &Arc<GraphUse>, stream: &Arc<Handed>) {
        self.hand_to(stream);
        let over = self.0.uses.with(|uses| uses.add_graph(graph));
        drop(over);
    }

    /// The memory is not given back before `ticket` is reached.
    pub(crate) fn record_use(&self, ticket: Ticket) {
        let over = self.0.uses.with(|uses| {
            self.0.used.store(true, Ordering::Release);
            uses.last_until(ticket)
        });
        drop(over);
    }

    /// Adds the streams that use the memory to `streams`: later work must come behind them, up to a position or behind
    /// all that they were given so far.
    #[inline]
    pub(crate) fn add_uses(&self, streams: &mut StreamUses) {
        if self.0.used.load(Ordering::Acquire) {
            self.add_known_uses(streams);
        }
    }

    fn add_known_uses(&self, streams: &mut StreamUses) {
        self.0.uses.with(|uses| uses.add_to(streams));
        self.0.memory.also_used().iter().for_each(|storage| storage.add_uses(streams));
    }

    /// Its uses up to now.
    pub(crate) fn uses_so_far(&self) -> Uses {
        self.0.uses.with(|uses| uses.so_far())
    }

    /// Keeps the uses of parts that have gone until the memory goes.
    pub(crate) fn keep(&self, uses: Uses) {
        if !uses.is_empty() {
            let over = self.0.uses.with(|known| {
                self.0.used.store(true, Ordering::Release);
                known.absorb(uses)
            });
            drop(over);
        }
    }

    /// Takes out the uses that are over, if nobody else holds it: dropping them may run code of a stream's owner. A stream that somebody
    /// holds stays, whether or not it has work now: the memory was handed to it until its end.
    pub(crate) fn take_over_uses(&mut self) -> List {
        self.exclusive().map(|memory| memory.take_over_uses()).unwrap_or_default()
    }

    /// Whether nothing of its uses runs now.
    #[cfg(feature = "dlpack")]
    pub(crate) fn is_unused(&self) -> bool {
        self.0.is_unused()
    }
}

impl StorageInner {
    /// Fails while a stream uses the memory.
    pub(super) fn check_unused(&self) -> Result<()> {
        drop(self.take_over_uses());
        match self.is_unused() {
            true => Ok(()),
            false => Err(Error::NotWritable {
                why: "in use on a stream",
                cure: "wait for the stream (Stream::synchronize)",
            }),
        }
    }

    /// Takes out the uses that are over. To be called while nobody else holds the memory.
    fn take_over_uses(&self) -> List {
        let mut over = self.uses.with(Uses::take_over);
        self.memory.also_used().iter().for_each(|storage| over.extend(storage.0.take_over_uses()));
        over
    }

    fn is_unused(&self) -> bool {
        self.uses.with(|uses| uses.are_past())
            && self.memory.also_used().iter().all(|storage| storage.0.is_unused())
    }
}
