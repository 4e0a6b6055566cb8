//! What was sent belongs to the program alone again once its transfer has ended.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use transship::{CopyOptions, DType, Tensor, start_copy_into};
use transship_nixl::Agent;

use crate::pair::{AMPLE, Pair};

/// How often memory is sent, and wanted back at once.
const ROUNDS: u32 = 20;

/// Memory of the program, which says where it was let go of.
struct Owner {
    bytes: Vec<u8>,
    agent: Agent,
    dropped: Arc<Mutex<Option<ThreadId>>>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Waits for ever where the lock of the agent is held.
        self.agent.usage();
        *self.dropped.lock().unwrap() = Some(thread::current().id());
    }
}

/// Deliberate bugs: what was sent is let go of when the program has been told that it is through, or by a thread of the transfer.
pub(crate) fn send_and_want_back(pair: &mut Pair) {
    let mut held = vec![Tensor::from(vec![0.0_f32; 1000])];
    for round in 0..ROUNDS {
        pair.agent.start_send(&held, &pair.peer, AMPLE).unwrap().wait().unwrap();
        let fresh = vec![Tensor::from(vec![round as f32 + 1.0; 1000])];
        held = start_copy_into(fresh, held, CopyOptions::default()).unwrap().wait().unwrap();
    }
    let send = pair.agent.start_send(&held, &pair.peer, AMPLE).unwrap();
    futures::executor::block_on(send).unwrap();
    assert_eq!(held.remove(0).into_vec::<f32>().unwrap(), [ROUNDS as f32; 1000]);
    // One that has nobody else; it arrives, and then is refused.
    for ends_well in [true, false] {
        let dropped = Arc::new(Mutex::new(None));
        let (agent, bytes) = (pair.agent.clone(), if ends_well { vec![0; 4000] } else { vec![0; 4] });
        let elements = bytes.len() / 4;
        let owner = Owner { bytes, agent, dropped: Arc::clone(&dropped) };
        let tree = vec![Tensor::from_owner(owner, DType::F32, &[elements]).unwrap()];
        let send = pair.agent.start_send(&tree, &pair.peer, AMPLE).unwrap();
        drop(tree);
        assert_eq!(send.wait().is_ok(), ends_well);
        assert_eq!(*dropped.lock().unwrap(), Some(thread::current().id()));
    }
}

pub(crate) fn receive_into_held(pair: &mut Pair) {
    let mut held = vec![Tensor::from(vec![0.0_f32; 1000])];
    for round in 0..ROUNDS + 2 {
        held = pair.agent.start_receive_into(held, &pair.peer, AMPLE).unwrap().wait().unwrap();
        let expected = if round > ROUNDS { 0.0 } else { round as f32 };
        assert_eq!(held[0].as_slice::<f32>().unwrap(), [expected; 1000]);
    }
    let failed = pair.agent.start_receive_into(held, &pair.peer, AMPLE).unwrap().wait().unwrap_err();
    assert!(failed.value.is_some(), "{failed}");
}
