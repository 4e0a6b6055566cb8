//! Sending and receiving whole messages, one of them with a descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};
use rustix::process::geteuid;

use crate::error::{IpcError, Named, broken};
use crate::wire::{BYTES, Message};

/// Who takes no more may be about to close: an importer gives back what it has not looked at before that.
const CLOSING: Duration = Duration::from_millis(10);

/// Fails unless the process at the other end runs as this user.
pub(crate) fn check_user(socket: impl AsFd) -> Result<(), IpcError> {
    let user = socket_peercred(socket).named("asking who is connected")?.uid.as_raw();
    let own = geteuid().as_raw();
    if user == own { Ok(()) } else { Err(IpcError::OtherUser { user, own }) }
}

/// Sends without waiting: what a peer does not read is never more than its slots, and one with more has ended.
pub(crate) fn tell(socket: impl AsFd, message: Message) -> Result<(), IpcError> {
    match send(socket, &message.to_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Ok(()),
        Err(_) => Err(IpcError::PeerGone),
    }
}

/// The same with a descriptor.
pub(crate) fn tell_with(socket: impl AsFd, message: Message, descriptor: &OwnedFd) -> Result<(), IpcError> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(broken("a message has no room for a descriptor"));
    }
    let bytes = message.to_bytes();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags) {
        Ok(_) => Ok(()),
        // Of this user: so many are on their way, to whomever.
        Err(Errno::TOOMANYREFS) => Err(Errno::TOOMANYREFS).named("sending shared memory"),
        Err(_) => Err(IpcError::PeerGone),
    }
}

/// Whether the other end, which takes no more, is closed: it says nothing more, but for what is still to be heard.
pub(crate) fn is_closed(socket: impl AsFd) -> bool {
    let mut polled = PollFd::new(&socket, PollFlags::empty());
    let asked = poll(std::slice::from_mut(&mut polled), Timespec::try_from(CLOSING).ok().as_ref());
    asked.is_ok() && polled.revents().contains(PollFlags::HUP)
}

/// The next message, `None` if there is none yet. There is no room for descriptors: the system closes those that come.
pub(crate) fn hear_now(socket: impl AsFd) -> Result<Option<Message>, IpcError> {
    let mut bytes = [0; BYTES];
    loop {
        return match recv(&socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, 0)) => Err(IpcError::PeerGone),
            Ok((_, length)) => Message::from_bytes(&bytes, length).map(Some),
            // A reset is said once, before what is still in the queue.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(Errno::AGAIN) => Ok(None),
            Err(_) => Err(IpcError::PeerGone),
        };
    }
}

/// What came with a message.
pub(crate) enum Sent {
    Nothing,
    Descriptor(OwnedFd),
    /// A descriptor that this process had no room for.
    Lost,
}

/// The next message and the one descriptor that comes with it; `None` if there is none yet.
pub(crate) fn hear_with_descriptor(socket: impl AsFd) -> Result<Option<(Message, OwnedFd)>, IpcError> {
    match hear_all_now(socket)? {
        Some((message, Sent::Descriptor(descriptor))) => Ok(Some((message, descriptor))),
        Some((_, Sent::Nothing)) => Err(broken("the ring comes with no descriptor")),
        Some((_, Sent::Lost)) => Err(no_room_for_descriptors()),
        None => Ok(None),
    }
}

/// The process has as many descriptors as it may have.
pub(crate) fn no_room_for_descriptors() -> IpcError {
    IpcError::System { what: "receiving shared memory", error: Errno::MFILE.into() }
}

/// The next message, with what came with it; `None` if there is none yet.
pub(crate) fn hear_all_now(socket: impl AsFd) -> Result<Option<(Message, Sent)>, IpcError> {
    let (mut bytes, mut space) = ([0; BYTES], [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    let (length, is_cut) = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut parts, &mut control, flags) {
            Ok(received) if received.bytes > 0 => {
                break (received.bytes, received.flags.contains(ReturnFlags::CTRUNC));
            }
            // A reset is said once, before what is still in the queue.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return Ok(None),
            _ => return Err(IpcError::PeerGone),
        }
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    let message = Message::from_bytes(&bytes, length)?;
    let sent = match descriptors.pop() {
        Some(descriptor) => Sent::Descriptor(descriptor),
        None if is_cut => Sent::Lost,
        None => Sent::Nothing,
    };
    match descriptors.is_empty() {
        true => Ok(Some((message, sent))),
        false => Err(broken("a message comes with several descriptors")),
    }
}
