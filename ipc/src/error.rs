//! What can go wrong between processes.

use std::io;
use std::time::Duration;

use transship_core::{DeviceId, DeviceUuid, ForkCount};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpcError {
    /// A call of the system failed.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// Tensors or devices.
    #[error(transparent)]
    Tensors(#[from] transship_core::Error),
    /// The other process says what it must not. The connection has ended.
    #[error("the other process breaks the rules: {what}; both must have the same version of transship-ipc")]
    Protocol {
        /// What it says.
        what: &'static str,
    },
    /// The other process runs under another user. The connection has ended.
    #[error("the other process runs as user {user}, and this one as {own}; both must be the same")]
    OtherUser {
        /// Its user.
        user: u32,
        /// The user of this process.
        own: u32,
    },
    /// The other process has gone, or has thrown this one out.
    #[error("the other process has gone or ended the connection; connect again when there is one")]
    PeerGone,
    /// This process was forked from the one that has the connection. The parent uses it as before.
    #[error(
        "this process was forked from the one that has the connection, which is that of the parent: ask there, or connect anew, in a process that is started as a program \
         of its own (spawn, forkserver, exec)"
    )]
    Forked,
    /// What was waited for did not happen in time. The next call waits again.
    #[error("{what} within {limit:?}")]
    NotInTime {
        /// What did not happen.
        what: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// An importer has as many trees and windows as it may have at a time.
    #[error(
        "the importer has {limit} trees and windows; wait until it lets go of a tree (Offer::wait_released), or drop a window, which has gone once it has listened"
    )]
    TooManyTrees {
        /// How many it may have.
        limit: usize,
    },
    /// The importer has given a window back: it takes no more turns, or could not map it.
    #[error(
        "the importer has given the window back: it takes no more, is about to end, or could not map it; a window on a device must be on that which the importer is connected with"
    )]
    WindowClosed,
    /// A copy into a window has failed, and may have written a part of it.
    #[error(
        "the last copy into the window has failed, and may have written a part of it: put the tree again, in the turn that comes next"
    )]
    HalfWritten,
    /// Nothing shows any more whether a copy into the window is over: its stream, or its device, is lost.
    #[error(
        "a copy into the window was lost with its stream, and may write there for ever: put trees into another window, which the exporter opens"
    )]
    WindowLost,
    /// The tensors of a tree lie on several devices.
    #[error(
        "the tensor at {path} lies on {other}, and one before it on {own}; hand over what lies on one device"
    )]
    SeveralDevices {
        /// Where in the tree it is.
        path: String,
        /// Where it lies.
        other: DeviceId,
        /// Where those before it lie.
        own: DeviceId,
    },
    /// A tree lies on another device than that of the importer.
    #[error(
        "the tree lies on the device with the UUID {theirs}, and {device} of this process is {own}; connect with that one"
    )]
    OtherDevice {
        /// The device that it lies on.
        theirs: DeviceUuid,
        /// The device of the importer.
        device: DeviceId,
        /// Its UUID, or that it has none.
        own: String,
    },
    /// The paths, types and shapes of a tree, or of a batch, take more than the other process believes. Nothing of it was sent.
    #[error("a manifest of {bytes} bytes is above the limit of {limit}; {cure}")]
    ManifestTooLarge {
        /// Bytes that it has.
        bytes: usize,
        /// Bytes that it may have.
        limit: usize,
        /// What to do, as in `hand it over as several trees`.
        cure: &'static str,
    },
    /// A batch does not fit into a slot.
    #[error(
        "a batch of {needed} bytes does not fit into a slot of {slot}; make slots larger (FeedOptions::new)"
    )]
    TooLarge {
        /// Bytes that it needs, with its manifest.
        needed: usize,
        /// Bytes that a slot has.
        slot: usize,
    },
    /// The loader says that a batch cannot be had. Those behind it come.
    #[error("batch {number}: {}", printable(message))]
    Failed {
        /// Its number.
        number: u64,
        /// What the loader says, as it says it. The error prints it with escapes for control characters.
        message: String,
    },
    /// Loaders died over a batch again and again. Those behind it come.
    #[error("batch {number} was given up: {attempts} loaders died or were late over it")]
    GivenUp {
        /// Its number.
        number: u64,
        /// How many did.
        attempts: u32,
    },
    /// No batch came in time. The next call waits for the same one.
    #[error("no batch within {limit:?}{}", why_late(*loaders, *held))]
    TimedOut {
        /// How long was waited.
        limit: Duration,
        /// How many loaders there are.
        loaders: usize,
        /// How many slots they have, if batches that this process holds have all of them.
        held: Option<usize>,
    },
}

fn why_late(loaders: usize, held: Option<usize>) -> String {
    match held {
        Some(slots) => {
            format!(": the program holds all {slots} slots; drop a batch, with the tensors over it")
        }
        None => format!("; {loaders} loaders are connected"),
    }
}

/// What another process says, for a terminal or a log.
fn printable(text: &str) -> String {
    let mut printed = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => printed.extend(letter.escape_debug()),
            false => printed.push(letter),
        }
    }
    printed
}

/// Names what failed.
pub(crate) trait Named<T> {
    fn named(self, what: &'static str) -> Result<T, IpcError>;
}

impl<T> Named<T> for rustix::io::Result<T> {
    fn named(self, what: &'static str) -> Result<T, IpcError> {
        self.map_err(|errno| IpcError::System { what, error: errno.into() })
    }
}

/// Fails in a process that was forked from the one that something was made in: what it would take or say is the parent's. No call of the system.
pub(crate) fn check_here(forks: ForkCount) -> Result<(), IpcError> {
    if forks.is_now() { Ok(()) } else { Err(IpcError::Forked) }
}

pub(crate) fn broken(what: &'static str) -> IpcError {
    IpcError::Protocol { what }
}
