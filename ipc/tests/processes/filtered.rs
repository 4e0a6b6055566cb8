//! Threads whose calls of the system fail on demand: the system itself refuses them (seccomp), and whoever has none of it does not notice.

use std::mem::offset_of;
use std::sync::mpsc::channel;
use std::thread;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_DATA,
    SECCOMP_RET_ERRNO, c_long, seccomp_data, sock_filter, sock_fprog,
};
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
        filter(program);
        let _ = sender.send(work());
    });
    result.recv_timeout(LONG).expect("it ends")
}

/// Filters what this thread calls from now on.
fn filter(mut program: Vec<sock_filter>) {
    program.push(step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0));
    let all = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is there while the system copies it, and ends with a verdict.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const all);
        assert!(set >= 0, "{}", std::io::Error::last_os_error());
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
