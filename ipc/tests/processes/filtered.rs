//! Threads whose calls of the system fail on demand: the system itself refuses them (seccomp), and whoever has none of it does not notice.

use std::ffi::c_ulong;
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_DATA,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, c_long, seccomp_data, seccomp_notif, seccomp_notif_resp,
    sock_filter, sock_fprog,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::support::LONG;

/// Calls that are refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) call: c_long,
    /// Only with more than that, below 4 GiB, as the argument of this number.
    pub(crate) above: Option<(usize, u32)>,
}

/// What `work` gives on a thread that is told `errno` by these calls.
pub(crate) fn refusing<T: Send + 'static>(
    refused: &[Refused],
    errno: Errno,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let refuse = SECCOMP_RET_ERRNO | errno.raw_os_error() as u32 & SECCOMP_RET_DATA;
    let program: Vec<_> = refused.iter().flat_map(|refused| program(*refused, refuse)).collect();
    let (sender, result) = channel();
    thread::spawn(move || {
        filter(program, 0);
        let _ = sender.send(work());
    });
    result.recv_timeout(LONG).expect("it ends")
}

/// What `work` gives on a thread that is interrupted by a signal in its first such call, as it seems to it. The further ones are made.
pub(crate) fn interrupted_once<T: Send + 'static>(
    call: c_long,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (listener, heard) = channel();
    let thread = thread::spawn(move || {
        let watch = program(Refused { call, above: None }, SECCOMP_RET_USER_NOTIF);
        listen_to(watch.collect(), &listener);
        work()
    });
    let listener = heard.recv_timeout(LONG).unwrap();
    assert!(answer(&listener, -libc::EINTR, 0), "there was no call");
    while answer(&listener, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32) {}
    thread.join().unwrap()
}

/// Answers the next call; `false` where there are no more.
fn answer(listener: &OwnedFd, error: i32, flags: u32) -> bool {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::try_from(LONG).unwrap())).unwrap();
    if !polled[0].revents().contains(PollFlags::IN) {
        return false;
    }
    // SAFETY: both are plain numbers, and are there while the system reads or writes them.
    unsafe {
        let mut heard: seccomp_notif = zeroed();
        let receive = libc::_IOWR::<seccomp_notif>(u32::from(b'!'), 0);
        assert_eq!(libc::ioctl(listener.as_raw_fd(), receive, &raw mut heard), 0);
        let mut told = seccomp_notif_resp { id: heard.id, val: 0, error, flags };
        let send = libc::_IOWR::<seccomp_notif_resp>(u32::from(b'!'), 1);
        assert_eq!(libc::ioctl(listener.as_raw_fd(), send, &raw mut told), 0);
    }
    true
}

fn listen_to(program: Vec<sock_filter>, listener: &Sender<OwnedFd>) {
    let descriptor = filter(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: it is new, and nobody else's.
    listener.send(unsafe { OwnedFd::from_raw_fd(i32::try_from(descriptor).unwrap()) }).unwrap();
}

/// Filters what this thread calls from now on.
fn filter(mut program: Vec<sock_filter>, flags: c_ulong) -> c_long {
    program.push(step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0));
    let all = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is there while the system copies it, and ends with a verdict.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const all);
        assert!(set >= 0, "{}", std::io::Error::last_os_error());
        set
    }
}

/// Comes to a verdict on such calls, and goes on with others.
fn program(Refused { call, above }: Refused, verdict: u32) -> impl Iterator<Item = sock_filter> {
    let argument = above.map(|(number, limit)| {
        // The low half: a machine of Linux on which the high one comes first is not tested on.
        let at = offset_of!(seccomp_data, args) + 8 * number;
        [step(BPF_LD | BPF_W | BPF_ABS, at as u32, 0), step(BPF_JMP | BPF_JGT | BPF_K, limit, 1)]
    });
    let behind = if above.is_some() { 3 } else { 1 };
    let number = [
        step(BPF_LD | BPF_W | BPF_ABS, offset_of!(seccomp_data, nr) as u32, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, call as u32, behind),
    ];
    number.into_iter().chain(argument.into_iter().flatten()).chain([step(BPF_RET | BPF_K, verdict, 0)])
}

/// A step that leaves so many behind it out where it compares and finds otherwise.
fn step(code: u32, value: u32, otherwise: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: otherwise, k: value }
}
