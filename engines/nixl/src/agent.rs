//! An agent, and peers of it.

use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use transship::{Device, TensorTree};

use crate::arena::Arena;
use crate::deadline::Deadline;
use crate::error::{Error, Failed, Result};
use crate::last_packings::{LastPackings, Packed};
use crate::link::{Link, Usage};
use crate::memory;
use crate::metadata::Metadata;
use crate::nixl::agent::RawAgent;
use crate::nixl::library::Nixl;
use crate::nixl::place::{Home, Place};
use crate::options::AgentOptions;
use crate::pack::parts;
use crate::receive::Receive;
use crate::received::Received;
use crate::send::Sending;
use crate::transfer::{Claim, Ended, Transfer};
use crate::tree::{self, TransferInto};

/// One end of transfers: a name, a backend of NIXL, and memory that is registered with it.
///
/// Clones are the same agent. It goes when the last of them and the last transfer is dropped; results stay.
///
/// In a process that is forked from the one that has made it, it and its transfers are of no use: [`Error::Forked`] is all that comes of them, and dropped they
/// leave what is the parent's.
#[derive(Clone)]
pub struct Agent {
    link: Arc<Link>,
    name: CString,
    sent: Arc<LastPackings>,
}

/// Another agent, to which trees go and from which they come.
#[derive(Clone)]
pub struct Peer {
    metadata: Arc<Metadata>,
    /// Tells it from others of its name.
    added: u64,
}

impl Agent {
    /// An agent that peers know by `name`, which no other one of them has.
    ///
    /// # Errors
    ///
    /// [`Error::Nixl`], if there is no such backend or it cannot be used here; [`Error::System`], or that of the device, without so much memory;
    /// [`Error::UnsuitedText`]; [`Error::UnsuitedDevice`] if the arena cannot lie where [`AgentOptions::arena_on`] says; [`Error::NotRegistered`] if NIXL takes
    /// no memory there.
    pub fn new(nixl: &Nixl, name: &str, options: AgentOptions) -> Result<Self> {
        let name = text("the name of an agent", name)?;
        let plugin = text("the name of a backend", &options.backend)?;
        let parameter =
            |(key, value): &(String, String)| Ok((text("a parameter", key)?, text("a value", value)?));
        let parameters = options.parameters.iter().map(parameter).collect::<Result<Vec<_>>>()?;
        let device = options.arena_device;
        memory::check(&device)?;
        let mut agent = RawAgent::new(*nixl, Home::new(&device), &name, &plugin, &parameters)?;
        // Behind the backend: UCX watches what the driver allocates, and takes what it has not seen for memory of the host.
        let arena = Arena::new(options.arena_bytes, &device)?;
        // SAFETY: the arena is mapped as long as anybody has it, and the link has it longer than the agent (the order of its fields). Peers read and write
        // there at any time: no reference points there, and what is read there is believed by nobody.
        let registered = unsafe { agent.register(arena.place(), arena.start(), arena.bytes()) };
        if let Err(error) = registered {
            // Whatever it has of the memory goes before that.
            drop(agent);
            return Err(not_registered(error, &device, arena.bytes()));
        }
        // SAFETY: just now.
        let link = unsafe { Link::new(agent, arena, device) };
        Ok(Self { link, name, sent: Arc::default() })
    }

    /// What another agent needs for [`add_peer`](Self::add_peer), to be passed on by whatever the two programs have, such as a file or a socket. Whoever has
    /// it can read and write the registered memory of this agent.
    ///
    /// # Errors
    ///
    /// [`Error::Nixl`].
    pub fn metadata(&self) -> Result<Vec<u8>> {
        self.link.check_here()?;
        let metadata = Metadata {
            name: self.name.clone(),
            place: self.link.arena.place(),
            arena_start: self.link.arena.start(),
            arena_bytes: self.link.arena.bytes(),
            of_library: self.link.lock().agent.metadata()?,
        };
        Ok(metadata.to_bytes())
    }

    /// The agent that has given out this [`metadata`](Self::metadata). Both sides add each other; what the other one has sent before it is added here is received all the same. One that has begun anew under its old
    /// name takes the place of the old one, which must have ended (one that lives may be added again, and then goes by its new [`Peer`] alone): room that it was given and may not have filled is free for other trees from here on. Receives that wait for a tree of the old one
    /// end with [`Error::UnknownPeer`]. Trees go to the new one by the [`Peer`] that this
    /// returns, and not by that of before.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] for other bytes, and those of another version of this crate; [`Error::NotAdded`]; [`Error::Nixl`].
    pub fn add_peer(&self, metadata: &[u8]) -> Result<Peer> {
        self.link.check_here()?;
        let metadata = Metadata::from_bytes(metadata)?;
        if metadata.name == self.name {
            let (peer, reason) =
                (metadata.name.to_string_lossy().into_owned(), "it has the name of this agent");
            return Err(Error::NotAdded { peer, reason });
        }
        let added = self.link.add(metadata.name.clone(), &metadata.of_library)?;
        Ok(Peer { metadata: Arc::new(metadata), added })
    }

    /// Starts to send the tensors of `tree`, from whatever devices they are on. It is done when the peer has all of them; the peer has so long.
    ///
    /// They are packed into registered memory by a thread of this transfer, a piece at a time, and written from there to where the peer has room. Trees to one
    /// peer arrive in the order of these calls. A tree that shows the paths, types and shapes of one of the last four in the same order is compared with that, and not planned. The tensors are held until it has ended and the program has asked for that ([`Transfer`]), or has dropped it.
    ///
    /// # Errors
    ///
    /// [`Error::ArenaFull`]; [`Error::UnknownPeer`]; [`Error::Transship`], if the tree cannot be shown for instance; [`Error::System`]. Later ones come out of the transfer:
    /// [`Error::Refused`], if the peer has other tensors for instance, or does not receive the 256 trees that wait there; [`Error::ManifestTooLong`]; [`Error::TimedOut`]; [`Error::DeviceLate`];
    /// [`Error::Broken`].
    pub fn start_send<S: TensorTree + ?Sized>(
        &self,
        tree: &S,
        peer: &Peer,
        limit: Duration,
    ) -> Result<Transfer<()>> {
        self.link.check_here()?;
        let deadline = Deadline::after(limit);
        let Packed { packing, tensors } = self.sent.pack(tree)?;
        // It has room before it is cut: views may have more bytes than there are.
        let mut send = Sending::new(Arc::clone(&self.link), peer.clone(), packing)?;
        let parts = parts(tensors, send.pieces())?;
        Transfer::start(deadline, Claim::default(), move || {
            let result = send.run(&parts, deadline);
            Ended { result, held: Some(Box::new(parts)), last: send.end() }
        })
    }

    /// Starts to receive the next tree of `peer`, whatever it has, into registered memory. It has to be there, all of it, within `limit`; so long it waits for
    /// room as well. A tree that the peer gives up before it has told that any of it is there is none: the one behind it is the next. Each receive has a thread of its own until it ends.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`]; [`Error::System`]. Later ones come out of the transfer: [`Error::Protocol`], [`Error::Broken`], [`Error::TimedOut`]; [`Error::Withdrawn`], if the peer gives up a
    /// tree of which it has told that some is there, or if no other one came behind such as it has given up; [`Error::ArenaFull`], at once for a tree that is larger than all the registered memory, else by the deadline; [`Error::UnknownPeer`] if the peer is added anew while its tree
    /// is waited for.
    pub fn start_receive(&self, peer: &Peer, limit: Duration) -> Result<Transfer<Received>> {
        let receive = self.receive(peer, limit)?;
        Transfer::start(receive.deadline, receive.claim.clone(), move || receive.fresh().into())
    }

    /// Starts to receive the next tree of `peer` into the tensors of `tree`, on whatever devices they are: nothing is allocated, and addresses stay what they are.
    /// Nobody else holds their memory, as with [`start_copy_into`](transship::start_copy_into).
    ///
    /// # Errors
    ///
    /// As [`start_receive`](Self::start_receive), with the tree; later [`ManifestMismatch`](transship::Error::ManifestMismatch) with the first tensor that differs,
    /// before anything was moved, and [`Error::DeviceLate`]: the peer hears of it as well.
    pub fn start_receive_into<S: TensorTree>(
        &self,
        tree: S,
        peer: &Peer,
        limit: Duration,
    ) -> Result<TransferInto<S>, Failed<S>> {
        let receive = match self.receive(peer, limit) {
            Ok(receive) => receive,
            Err(error) => return Err(Failed { error: Box::new(error), value: Some(tree) }),
        };
        let tree::Taken { tree, tensors, manifest } = tree::take(tree)?;
        let (deadline, claim) = (receive.deadline, receive.claim.clone());
        let started = Transfer::start(deadline, claim, move || Ok(receive.into(tensors, &manifest)).into());
        match started {
            Ok(transfer) => Ok(TransferInto::new(transfer, tree)),
            Err(error) => Err(Failed { error: Box::new(error), value: None }),
        }
    }

    /// How its registered memory is used. In a process that was forked from that of the agent there is none.
    pub fn usage(&self) -> Usage {
        self.link.usage()
    }

    fn receive(&self, peer: &Peer, limit: Duration) -> Result<Receive> {
        self.link.check_here()?;
        let turn = self.link.next_id();
        self.link.lock().mail.begin_receive(turn, peer.name(), peer.added())?;
        let (link, peer) = (Arc::clone(&self.link), peer.clone());
        Ok(Receive { link, peer, turn, deadline: Deadline::after(limit), claim: Claim::default() })
    }
}

impl Peer {
    pub(crate) fn name(&self) -> &CStr {
        &self.metadata.name
    }

    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// Where its arena lies.
    pub(crate) fn place(&self) -> Place {
        self.metadata.place
    }

    pub(crate) fn arena_start(&self) -> usize {
        self.metadata.arena_start
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.metadata.arena_bytes
    }
}

/// Memory of the host is taken by every backend.
fn not_registered(error: Error, device: &Device, bytes: usize) -> Error {
    match error {
        Error::Nixl { call: "nixl_capi_register_mem", code } if !device.is_host() => {
            Error::NotRegistered { device: device.id(), bytes, code }
        }
        other => other,
    }
}

fn text(what: &'static str, text: &str) -> Result<CString> {
    let unsuited = || Error::UnsuitedText { what, text: text.to_owned() };
    CString::new(text).ok().filter(|text| !text.is_empty()).ok_or_else(unsuited)
}

/// Its name.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.metadata.name.to_string_lossy())
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.metadata.name).finish()
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("name", &self.name).finish_non_exhaustive()
    }
}
