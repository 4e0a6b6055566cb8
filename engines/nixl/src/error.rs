//! What can go wrong, in words that say what to do next.

use std::fmt;
use std::time::Duration;

use transship::DeviceId;

/// `Result` with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Structures and copies: what transship says. [`ManifestMismatch`](transship::Error::ManifestMismatch) where the two sides have other tensors;
    /// nothing was moved then.
    #[error(transparent)]
    Transship(#[from] transship::Error),
    /// The library cannot be loaded.
    #[error("NIXL cannot be loaded: {}; install it, or put its folder on the loader's path", tried.join("; "))]
    NotLoaded {
        /// Each name that was tried, with what the loader said.
        tried: Vec<String>,
    },
    /// A call of the library failed.
    #[error("{call} of NIXL failed with {code}; it prints why, and more with NIXL_LOG_LEVEL=DEBUG")]
    Nixl {
        /// The function.
        call: &'static str,
        /// The number that it returned.
        code: i32,
    },
    /// The library takes no memory of this device.
    #[error(
        "NIXL does not take {bytes} bytes on {device} (nixl_capi_register_mem failed with {code}): this NIXL, or its UCX, is without support of CUDA, or cannot \
         load it; UCX wants libuct_cuda.so and the driver's libraries, and cuda_copy and cuda_ipc among UCX_TLS where that is set; UCX_MEMTYPE_CACHE=n lets it ask the driver; NIXL_LOG_LEVEL=DEBUG and \
         UCX_LOG_LEVEL=info say more; an arena on the host needs none of that (leave AgentOptions::arena_on out)"
    )]
    NotRegistered {
        /// The device.
        device: DeviceId,
        /// How many bytes.
        bytes: usize,
        /// What the library says.
        code: i32,
    },
    /// An arena cannot lie on this device.
    #[error(
        "no arena can lie on {device}: {reason}; leave AgentOptions::arena_on out, and trees of any device go by the memory of the host"
    )]
    UnsuitedDevice {
        /// The device.
        device: DeviceId,
        /// Why not.
        reason: &'static str,
    },
    /// A transfer did not end in its time. The library cannot abort it: the memory that it uses is set aside ([`Agent::usage`](crate::Agent::usage)).
    #[error(
        "{what} did not come within {limit:?}: the other side is late or dead, or has not added this agent"
    )]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// The time.
        limit: Duration,
    },
    /// A device has not come by a copy in the time of the transfer. What it still uses stays where it is until it has.
    #[error(
        "{what} on {} was not done within {limit:?}: the device is late, by what the program has it do before for instance",
        names(devices)
    )]
    DeviceLate {
        /// What was waited for.
        what: &'static str,
        /// The devices that the copy is on.
        devices: Vec<DeviceId>,
        /// The time.
        limit: Duration,
    },
    /// A peer cannot be reached any more.
    #[error("{peer} cannot be reached any more (NIXL says {code}): it has ended, or the connection to it")]
    Broken {
        /// The name of the peer.
        peer: String,
        /// What the library says.
        code: i32,
    },
    /// The peer does not take the tree that was sent.
    #[error("{peer} has refused: {reason}")]
    Refused {
        /// The name of the peer.
        peer: String,
        /// What it says.
        reason: String,
    },
    /// The peer has given up a tree that it has offered.
    #[error(
        "{peer} has withdrawn the tree before all of it was there: the error of its own transfer says why"
    )]
    Withdrawn {
        /// The name of the peer.
        peer: String,
    },
    /// What a peer has sent makes no sense, or is of another version. Nothing was moved.
    #[error("what {peer} has sent is refused: {reason}")]
    Protocol {
        /// The name of the peer, as far as it is known.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No peer keeps a manifest that is so long: mostly the paths of the tensors are.
    #[error(
        "the manifest of the tree has {bytes} bytes, and no peer keeps one of more than {limit}: give its maps shorter keys, or send it in several trees"
    )]
    ManifestTooLong {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        limit: usize,
    },
    /// There is no room in the registered memory of the agent.
    #[error(
        "no {asked} bytes in a row are free of {bytes} that this agent has registered, {set_aside} are set aside; wait for other transfers, drop what \
         was received, or give the agent more (AgentOptions::arena_bytes)"
    )]
    ArenaFull {
        /// How many bytes the tree needs.
        asked: usize,
        /// How many there are.
        bytes: usize,
        /// How many are kept for transfers that did not end in time.
        set_aside: usize,
    },
    /// A peer cannot be added.
    #[error("{peer} cannot be added: {reason}")]
    NotAdded {
        /// The name of the peer.
        peer: String,
        /// What is in the way.
        reason: &'static str,
    },
    /// A peer of another agent, or one whose name a new one has.
    #[error(
        "{peer} was added anew and is another agent now, or was never added here: use what Agent::add_peer has returned last"
    )]
    UnknownPeer {
        /// The name of the peer.
        peer: String,
    },
    /// The process was forked from the one that made the agent.
    #[error(
        "this process was forked from the one that made the agent: NIXL, its connections and its threads are the parent's; make agents in processes that are \
         started anew (spawn, exec), or behind the fork"
    )]
    Forked,
    /// A name or a parameter has a zero byte in it, or is empty.
    #[error("{what} {text:?} is empty or has a zero in it; NIXL takes no such text")]
    UnsuitedText {
        /// What it is.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// The system has no memory, or no thread.
    #[error("the system gives no {what}: {reason}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it says.
        reason: String,
    },
    /// The thread of a transfer has ended without a word, by a panic of somebody's destructor for instance; or its result was handed out before.
    #[error("the transfer has no result: its thread has ended without one, or it was handed out before")]
    Lost,
}

fn names(devices: &[DeviceId]) -> String {
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A transfer into held memory that failed.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Failed<S> {
    /// Why.
    #[source]
    pub error: Box<Error>,
    /// The structure. What its tensors hold is unspecified, unless nothing was moved; those that a late device still fills are [`CopyFailed`](transship::Error::CopyFailed)
    /// until another copy has filled them. `None` where they are lost: the library holds the thread up that has them, or the system has none.
    pub value: Option<S>,
}

impl<S> fmt::Debug for Failed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<S> From<Failed<S>> for Error {
    fn from(failed: Failed<S>) -> Self {
        *failed.error
    }
}
