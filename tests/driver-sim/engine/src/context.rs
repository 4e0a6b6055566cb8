//! Contexts: which one is current for a thread, and what ends with one.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::mem::ManuallyDrop;
use std::thread::ThreadId;

use crate::failure::Failure;
use crate::memory::Block;
use crate::sim::{Kind, Sim, since};

/// A context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    /// How often it is retained, if it is the primary one.
    pub(crate) retained: Option<u32>,
    /// It answers every call with this from now on.
    pub(crate) lost: Option<Failure>,
    /// Contexts whose memory it may use.
    pub(crate) peers: BTreeSet<u64>,
    pub(crate) default_stream: u64,
    /// The default streams of threads that work on their own.
    pub(crate) per_thread: HashMap<ThreadId, u64>,
}

impl Context {
    /// Whether the driver has made the stream, and ends it.
    pub(crate) fn is_default(&self, stream: u64) -> bool {
        self.default_stream == stream || self.per_thread.values().any(|of_thread| *of_thread == stream)
    }
}

thread_local! {
    /// Never dropped: a thread may call the driver until its very end.
    static STACK: ManuallyDrop<RefCell<Vec<u64>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

fn with_stack<R>(work: impl FnOnce(&mut Vec<u64>) -> R) -> R {
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        let result = work(&mut stack);
        if stack.is_empty() {
            // Nobody frees it at the end of the thread.
            *stack = Vec::new();
        }
        result
    })
}

/// The context on top of this thread's stack.
pub(crate) fn current() -> Option<u64> {
    with_stack(|stack| stack.last().copied())
}

/// How many contexts this thread's stack has.
pub(crate) fn depth() -> usize {
    with_stack(|stack| stack.len())
}

/// Whether a call of this name only takes back what one before it did for the thread or the process.
pub(crate) fn takes_back(call: &str) -> bool {
    ["CtxPopCurrent", "ThreadExchangeStreamCaptureMode", "DevicePrimaryCtxRelease"]
        .iter()
        .any(|name| call.contains(name))
}

impl Sim {
    /// The context that is current for this thread, whatever became of it.
    pub fn current_context(&mut self) -> Result<Option<u64>, Failure> {
        self.check_initialised()?;
        Ok(current())
    }

    /// The device of the current context.
    pub fn current_device(&mut self) -> Result<usize, Failure> {
        let context = self.usable_context()?;
        Ok(self.context(context)?.device)
    }

    /// Puts a context on top of this thread's stack.
    pub fn push_context(&mut self, context: u64) -> Result<(), Failure> {
        self.context(context)?;
        with_stack(|stack| stack.push(context));
        Ok(())
    }

    /// Takes the top of this thread's stack.
    pub fn pop_context(&mut self) -> Result<u64, Failure> {
        with_stack(Vec::pop).ok_or(Failure::InvalidContext)
    }

    /// Replaces the top of this thread's stack.
    pub fn set_context(&mut self, context: Option<u64>) -> Result<(), Failure> {
        if let Some(context) = context {
            self.context(context)?;
        }
        with_stack(|stack| {
            stack.pop();
            stack.extend(context);
        });
        Ok(())
    }

    /// Retains the primary context of a device.
    pub fn retain_primary(&mut self, ordinal: i32) -> Result<u64, Failure> {
        let device = self.device(ordinal)?;
        if device.lost {
            return Err(Failure::DeviceLost);
        }
        if let Some(primary) = device.primary {
            if let Some(count) = self.context(primary)?.retained.as_mut() {
                *count += 1;
            }
            return Ok(primary);
        }
        let context = self.add_context(ordinal as usize, Some(1));
        self.device(ordinal)?.primary = Some(context);
        Ok(context)
    }

    /// Releases the primary context of a device; it ends with the last one who holds it.
    pub fn release_primary(&mut self, ordinal: i32) -> Result<(), Failure> {
        let Some(primary) = self.device(ordinal)?.primary else {
            self.violation("the primary context is released more often than it was retained".to_owned());
            return Err(Failure::InvalidContext);
        };
        let context = self.context(primary)?;
        let left = context.retained.unwrap_or(1) - 1;
        context.retained = Some(left);
        if left == 0 {
            self.device(ordinal)?.primary = None;
            self.end_context(primary);
        }
        Ok(())
    }

    /// Whether the primary context of a device is retained.
    pub fn is_primary_active(&mut self, ordinal: i32) -> Result<bool, Failure> {
        Ok(self.device(ordinal)?.primary.is_some())
    }

    /// Creates a context that is not the primary one, and makes it current.
    pub fn create_context(&mut self, ordinal: i32) -> Result<u64, Failure> {
        if self.device(ordinal)?.lost {
            return Err(Failure::DeviceLost);
        }
        let context = self.add_context(ordinal as usize, None);
        self.push_context(context)?;
        Ok(context)
    }

    /// Destroys a context that is not a primary one.
    pub fn destroy_context(&mut self, context: u64) -> Result<(), Failure> {
        if self.context(context)?.retained.is_some() {
            self.violation("a primary context is destroyed".to_owned());
            return Err(Failure::InvalidContext);
        }
        with_stack(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
        self.end_context(context);
        Ok(())
    }

    /// Blocks until all work of the current context is done.
    pub fn synchronize_context(&mut self) -> Result<(), Failure> {
        let context = self.usable_context()?;
        self.check_capture()?;
        let streams = self.streams_of(context);
        for stream in streams {
            self.drain(stream)?;
        }
        self.usable_context().map(drop)
    }

    /// Whether one device can use the memory of another.
    pub fn can_access_peer(&mut self, device: i32, peer: i32) -> Result<bool, Failure> {
        self.device(device)?;
        self.device(peer)?;
        Ok(self.settings.peers && device != peer)
    }

    /// Lets the current context use the memory of another.
    pub fn enable_peer(&mut self, peer: u64) -> Result<(), Failure> {
        let context = self.usable_context()?;
        let (here, there) = (self.context(context)?.device, self.context(peer)?.device);
        if !self.settings.peers || here == there {
            return Err(Failure::PeerUnsupported);
        }
        match self.context(context)?.peers.insert(peer) {
            true => Ok(()),
            false => Err(Failure::PeerAlreadyEnabled),
        }
    }

    /// The current context, unless there is none or it is lost.
    pub(crate) fn usable_context(&mut self) -> Result<u64, Failure> {
        self.check_initialised()?;
        let context = current().ok_or(Failure::InvalidContext)?;
        match self.context(context)?.lost {
            None => Ok(context),
            Some(failure) => Err(failure),
        }
    }

    pub(crate) fn context(&mut self, context: u64) -> Result<&mut Context, Failure> {
        self.check_initialised()?;
        if !self.contexts.contains_key(&context) {
            return Err(self.missing(Kind::Context, context));
        }
        self.contexts.get_mut(&context).ok_or(Failure::InvalidContext)
    }

    /// Nothing of the context works any more, and nothing of it runs.
    pub(crate) fn lose_context(&mut self, context: u64, failure: Failure) {
        let Some(lost) = self.contexts.get_mut(&context) else { return };
        lost.lost.get_or_insert(failure);
        let device = lost.device;
        self.devices[device].excused = true;
        for number in self.streams_of(context) {
            match self.streams.get_mut(&number) {
                Some(stream) if !stream.busy => stream.queue.clear(),
                _ => continue,
            }
            self.active.remove(&number);
        }
        // Others may have waited for its streams, which nobody waits for any more.
        self.memory.bring_all_to_life(context);
        self.notify();
    }

    pub(crate) fn lose_device(&mut self, device: usize) {
        if let Some(device) = self.devices.get_mut(device) {
            device.lost = true;
        }
        let contexts = self.contexts.iter().filter(|(_, context)| context.device == device);
        for context in contexts.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.lose_context(context, Failure::DeviceLost);
        }
    }

    fn add_context(&mut self, device: usize, retained: Option<u32>) -> u64 {
        let number = self.new_handle(Kind::Context);
        let default_stream = self.add_stream(number, device, true, 0);
        let peers = BTreeSet::new();
        self.contexts.insert(
            number,
            Context { device, retained, lost: None, peers, default_stream, per_thread: HashMap::new() },
        );
        number
    }

    /// Ends a context once its work is done. What still belongs to it is left behind.
    fn end_context(&mut self, context: u64) {
        for stream in self.streams_of(context) {
            // What cannot be done any more goes with the context.
            let _ = self.drain(stream);
        }
        let lost = self.contexts.get(&context).is_some_and(|context| context.lost.is_some());
        for stream in self.streams_of(context) {
            if self.contexts.get(&context).is_some_and(|context| context.is_default(stream)) {
                self.streams.remove(&stream);
            }
        }
        if !lost {
            self.note_left_behind(context);
        }
        self.drop_all_of(context);
        self.contexts.remove(&context);
    }

    /// What a context leaves behind is a violation, unless a fault may have kept it from being given back.
    fn note_left_behind(&mut self, context: u64) {
        let Some(device) = self.contexts.get(&context).map(|context| context.device) else { return };
        if self.faults.fired > 0 || self.devices[device].excused {
            let is_left = |block: &Block| block.context == context && block.freeing.is_none();
            let left = self.memory.blocks().filter(|(_, block)| is_left(block)).count();
            let handles = self.handles_in(context).len();
            self.devices[device].blocks_left += left as u64;
            self.devices[device].handles_left += handles as u64;
        } else if !self.settings.leaks_allowed {
            for what in self.left_in(context) {
                self.violation(format!("the context ends and leaves behind {what}"));
            }
        }
    }

    pub(crate) fn streams_of(&self, context: u64) -> Vec<u64> {
        let created_since = self.streams.range(since(context, Kind::Stream)..);
        let of_context = created_since.filter(|(_, stream)| stream.context == context);
        of_context.map(|(number, _)| *number).collect()
    }

    /// Takes away everything that belongs to a context.
    pub(crate) fn drop_all_of(&mut self, context: u64) {
        for stream in self.streams_of(context) {
            self.streams.remove(&stream);
            self.active.remove(&stream);
            self.captured.remove(&stream);
        }
        self.events.retain(|_, event| event.context != context);
        self.modules.retain(|_, module| module.context != context);
        let graphs = self.graphs.iter().filter(|(_, graph)| graph.context == context);
        for graph in graphs.map(|(number, _)| *number).collect::<Vec<_>>() {
            let held = self.graphs.remove(&graph).map(|graph| graph.held);
            held.into_iter().flatten().for_each(|object| self.let_go(object));
        }
        // Memory of pools outlives the context that allocated it, unless that was lost: nothing frees it then.
        let lost = self.contexts.get(&context).is_some_and(|context| context.lost.is_some());
        let blocks = self.memory.blocks();
        let blocks = blocks.filter(|(_, block)| block.context == context && (lost || block.pool().is_none()));
        for block in blocks.map(|(number, _)| number).collect::<Vec<_>>() {
            self.remove_block(block, "the end of its context");
        }
    }
}
