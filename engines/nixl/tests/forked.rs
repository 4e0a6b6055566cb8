//! Children of `fork`: the library, its threads and its locks are the parent's.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;
use transship::Tensor;
use transship_nixl::{Agent, AgentOptions, Error, Peer, Received, Transfer};

mod support;

use support::{LIMIT, library, nixl};

fn agent(name: &str) -> Agent {
    Agent::new(&nixl(), name, AgentOptions::default().arena_bytes(1 << 20)).unwrap()
}

fn tree() -> Vec<Tensor> {
    vec![Tensor::from(vec![1_u8; 1000])]
}

fn is_forked<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked))
}

/// What a child finds of each kind of call, by all that the parent has. The first that is wrong, from one on.
fn first_wrong(
    [agent, idle]: [Agent; 2],
    peer: &Peer,
    metadata: &[u8],
    late: [Transfer<Received>; 3],
    received: Received,
) -> i32 {
    // SAFETY: it has no initialisers.
    let fake = unsafe { Library::new(library()) }.unwrap();
    // SAFETY: the function has this prototype.
    let destroyed = || unsafe { fake.get::<extern "C" fn() -> usize>(b"fake_nixl_destroyed").unwrap()() };
    let before = destroyed();
    let [waited, awaited, dropped] = late;
    let found = [
        is_forked(agent.metadata()),
        is_forked(agent.add_peer(metadata)),
        is_forked(agent.start_send(&tree(), peer, LIMIT)),
        is_forked(agent.start_receive(peer, LIMIT)),
        agent
            .start_receive_into(tree(), peer, LIMIT)
            .is_err_and(|failed| matches!(*failed.error, Error::Forked) && failed.value.is_some()),
        agent.usage().registered == 0,
        dropped.is_ready() && format!("{dropped:?}").contains("true"),
        is_forked(waited.wait()),
        is_forked(futures::executor::block_on(awaited)),
        is_forked(received.tensors()) && is_forked(received.put_into(&mut tree())),
        {
            drop((dropped, received, agent, idle));
            destroyed() == before
        },
    ];
    found.iter().position(|is_so| !is_so).map_or(0, |at| at as i32 + 1)
}

/// Deliberate bugs: a child calls the library of its parent, waits for a lock or a thread that has not come along, or destroys an agent.
#[test]
fn a_child_does_not_reach_the_library_of_its_parent() {
    // Nothing but this thread has the third one.
    let (sender, receiver, idle) = (agent("sender"), agent("receiver"), agent("idle"));
    let metadata = sender.metadata().unwrap();
    let to = sender.add_peer(&receiver.metadata().unwrap()).unwrap();
    let from = receiver.add_peer(&metadata).unwrap();
    let send = || sender.start_send(&tree(), &to, LIMIT).unwrap();
    let receive = || receiver.start_receive(&from, LIMIT).unwrap();
    let (sent, received) = (send(), receive());
    let received = received.wait().unwrap();
    sent.wait().unwrap();
    // Their threads have the lock of the agent now and then.
    let late = [receive(), receive(), receive()];
    // SAFETY: the child does what does not need the threads of this process, and ends without a word.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = first_wrong([receiver, idle], &from, &metadata, late, received);
        // SAFETY: nothing is left to be done.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0);
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: it is a child of this process; the status goes to a local.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > LIMIT / 2 {
            // SAFETY: as above, and it has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    // Nothing has happened to the parent.
    assert_eq!(received.tensors().unwrap().len(), 1);
    for late in late {
        let sent = send();
        late.wait().unwrap();
        sent.wait().unwrap();
    }
}
