//! A peer that means harm: it has the library, and says what it likes.

use std::ffi::CString;
use std::time::Duration;

use transship::{Alignment, Manifest, Tensor};
use transship_nixl::{Error, Peer};

use crate::nixl::agent::RawAgent;
use crate::nixl::library::Nixl;
use crate::pair::{AMPLE, Pair, bytes, hex, parameters};
use crate::trees::{assert_is, batch, empty_batch};

/// What the memory of the hostile peer has, and what it says that it has.
const REGISTERED: usize = 1 << 20;
const CLAIMED: usize = 1 << 30;

/// Number, offset, bytes, how many are ready, manifest: and the error that this is, or none.
type Lie = (u64, u64, u64, Vec<u8>, Option<&'static str>);

fn lies() -> Vec<Lie> {
    let tree = vec![Tensor::from(vec![1_u8; 100])];
    let manifest = Manifest::packed(&tree, Alignment::ONE).unwrap().to_bytes().to_vec();
    let two = Manifest::of(&vec![Tensor::from(vec![1_u8; 60]), Tensor::from(vec![1_u8; 40])]).unwrap();
    let mut changed = manifest.clone();
    changed[8] ^= 1;
    vec![
        (0, 100, 100, b"TSMF".to_vec(), Some("manifest")),
        (0, 100, 100, changed, Some("manifest")),
        (0, 99, 99, manifest.clone(), Some("another size")),
        (0, u64::MAX, 100, manifest.clone(), Some("another size")),
        (u64::MAX - 10, 100, 100, manifest.clone(), Some("does not lie")),
        (CLAIMED as u64 - 50, 100, 100, manifest.clone(), Some("does not lie")),
        (0, 100, 100, two.to_bytes().to_vec(), Some("one chunk")),
        // It claims memory that is not there.
        (CLAIMED as u64 / 2, 100, 100, manifest.clone(), Some("NIXL")),
        // It never fills it.
        (0, 100, 0, manifest.clone(), Some("was not done within")),
        // More than there is is ready: these are its own bytes.
        (0, 100, u64::MAX, manifest, None),
    ]
}

/// Deliberate bugs: a lie is believed, hangs the agent, or spoils what honest peers send.
pub(crate) fn receive(pair: &mut Pair) {
    pair.other.say(&hex(&pair.agent.metadata().unwrap()));
    let liar = pair.agent.add_peer(&bytes(&pair.other.hear())).unwrap();
    for (number, (.., expected)) in lies().into_iter().enumerate() {
        pair.other.say("lie");
        let limit = if expected == Some("was not done within") { Duration::from_millis(300) } else { AMPLE };
        let received = pair.agent.start_receive(&liar, limit).unwrap().wait();
        match (received, expected) {
            (Ok(received), None) => assert_eq!(received.manifest().len(), 1),
            (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{number}: {error}"),
            (received, _) => unreachable!("{number}: {received:?}"),
        }
    }
    let before = pair.agent.usage();
    assert_eq!((before.free, before.ignored), (before.registered, 0));
    pair.other.say("flood");
    pair.other.hear();
    honest(pair, &liar);
    assert_eq!(pair.agent.usage().free, before.registered);
    assert!(pair.agent.usage().ignored >= 3000);
}

fn honest(pair: &Pair, liar: &Peer) {
    let held = pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap().wait().unwrap();
    assert_is(&held, 4);
    // Of the flood no more is kept than may wait.
    let refused = pair.agent.start_receive(liar, AMPLE).unwrap().wait().unwrap_err();
    assert!(matches!(refused, Error::Transship(_)), "{refused}");
}

pub(crate) fn offer(pair: &mut Pair) {
    let mut memory = vec![7_u8; REGISTERED];
    // SAFETY: the loader's own library, which the agent of this process has loaded already.
    let nixl = unsafe { Nixl::open("libnixl_capi.so") }.unwrap();
    let text = |text: &str| CString::new(text).unwrap();
    let parameters: Vec<_> =
        parameters(&pair.transport).iter().map(|(key, value)| (text(key), text(value))).collect();
    let mut liar = RawAgent::new(nixl, c"liar", c"UCX", &parameters).unwrap();
    let address = memory.as_mut_ptr().expose_provenance();
    // SAFETY: the memory lives as long as the agent does, which is declared behind it.
    unsafe { liar.register(address, REGISTERED) }.unwrap();
    let mut metadata = b"TSNA\x01".to_vec();
    [address, CLAIMED, 4]
        .into_iter()
        .for_each(|number| metadata.extend_from_slice(&(number as u64).to_le_bytes()));
    metadata.extend_from_slice(b"liar");
    metadata.extend_from_slice(&liar.metadata().unwrap());
    // What the library wants of the parent lies behind its name.
    let parent = bytes(&pair.other.hear());
    assert_eq!(liar.load(&parent[5 + 24 + "parent".len()..]).unwrap(), *c"parent");
    pair.other.say(&hex(&metadata));
    for (id, (offset, bytes, ready, manifest, _)) in lies().into_iter().enumerate() {
        assert_eq!(pair.other.hear(), "lie");
        liar.notify(c"parent", &message(id as u64, [offset, bytes, ready], &manifest)).unwrap();
    }
    assert_eq!(pair.other.hear(), "flood");
    for id in 0..1000 {
        liar.notify(c"parent", &message(1000 + id, [0, 1 << 40, 0], b"flood")).unwrap();
        let garbage = [&b"GET / HTTP/1.1"[..], b"TSNX\x02\x01", b"TSNX\x01\x03aaaaaaaa"];
        garbage.into_iter().for_each(|bytes| liar.notify(c"parent", bytes).unwrap());
    }
    pair.other.say("flooded");
    pair.agent.start_send(&batch(4), &pair.peer, AMPLE).unwrap().wait().unwrap();
    pair.other.hear();
}

fn message(id: u64, numbers: [u64; 3], manifest: &[u8]) -> Vec<u8> {
    let mut bytes = b"TSNX\x01\x01".to_vec();
    bytes.extend_from_slice(&id.to_le_bytes());
    numbers.into_iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    bytes.extend_from_slice(manifest);
    bytes
}
