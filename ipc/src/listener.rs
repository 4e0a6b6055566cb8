//! The socket that loaders and importers connect to: the user's own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use rustix::fs::{Mode, chmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, getpid};

use crate::deadline::Deadline;
use crate::error::{IpcError, Named};
use crate::socket::check_user;

const BACKLOG: i32 = 128;

const IS_THERE: &str = "binding a socket to its path, where a file is (if no process listens there, one was killed: remove the file)";

/// A socket that has a path until this is dropped.
pub(crate) struct Listener {
    socket: OwnedFd,
    /// An absolute one: the process may work elsewhere by then.
    path: PathBuf,
    /// Which file that is.
    file: (u64, u64),
    process: Pid,
}

impl Listener {
    /// Nobody connects before `listen`, and so not before the mode is set.
    pub(crate) fn new(path: &Path) -> Result<Self, IpcError> {
        let given = path;
        let path =
            absolute(given).map_err(|error| IpcError::System { what: "the path of a socket", error })?;
        let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        // As it was given: an address has 108 bytes.
        match bind(&socket, &address(given)?) {
            Err(Errno::ADDRINUSE) => Err(Errno::ADDRINUSE).named(IS_THERE),
            bound => bound.named("binding a socket to its path"),
        }?;
        let file = file(&path).inspect_err(|_| {
            let _ = unlink(&path);
        });
        let file = file.named("looking at a socket")?;
        let listener = Self { socket, path, file, process: getpid() };
        chmod(&listener.path, Mode::RWXU).named("setting the mode of a socket")?;
        listen(&listener.socket, BACKLOG).named("listening on a socket")?;
        Ok(listener)
    }

    /// Whether this process has made it, and was not forked from the one that has.
    pub(crate) fn is_own(&self) -> bool {
        self.process == getpid()
    }

    /// The next connection of a process of the same user, `None` if there is none now. Others are sent away.
    pub(crate) fn accept(&self) -> Result<Option<OwnedFd>, IpcError> {
        loop {
            return match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) if check_user(&socket).is_ok() => Ok(Some(socket)),
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => Ok(None),
                Err(errno) => Err(errno).named("accepting a connection"),
            };
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The open socket keeps its file: no other one has these numbers.
        if self.is_own() && file(&self.path) == Ok(self.file) {
            let _ = unlink(&self.path);
        }
    }
}

/// The device and the number of a file.
fn file(path: &Path) -> rustix::io::Result<(u64, u64)> {
    lstat(path).map(|file| (file.st_dev, file.st_ino))
}

/// A connection to who listens at `path`, whose process must be of the same user. Waits while more have connected there than the system keeps for it.
pub(crate) fn connect_to(path: &Path, deadline: Deadline) -> Result<OwnedFd, IpcError> {
    let socket = new_socket(SocketFlags::CLOEXEC)?;
    let address = address(path)?;
    loop {
        // The system's zero is no limit.
        let left = deadline.left().map(|left| left.max(Duration::from_millis(1)));
        set_socket_timeout(&socket, Timeout::Send, left).named("limiting how long a connection takes")?;
        match connect(&socket, &address) {
            // Only sockets of networks go on without their caller: this one has not begun.
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                return Err(deadline.missed("nobody has accepted those who connected before"));
            }
            connected => break connected.named("connecting to a socket")?,
        }
    }
    check_user(&socket)?;
    Ok(socket)
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, IpcError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).named("making a socket")
}

fn address(path: &Path) -> Result<SocketAddrUnix, IpcError> {
    SocketAddrUnix::new(path).named("the path of a socket")
}
