//! A peer that has the library alone, and says and does what it likes.

use std::ffi::CString;
use std::time::{Duration, Instant};

use transship::{Alignment, Device, Manifest, Tensor};

use crate::nixl::agent::{RawAgent, Request, Status};
use crate::nixl::library::Nixl;
use crate::nixl::place::{Home, Place};
use crate::pair::{AMPLE, parameters};

pub(crate) const OFFER: u8 = 1;
pub(crate) const ACCEPTED: u8 = 2;
pub(crate) const WRITTEN: u8 = 3;
pub(crate) const DONE: u8 = 4;
pub(crate) const REFUSED: u8 = 5;
pub(crate) const WITHDRAWN: u8 = 6;

/// What metadata and messages begin with, up to the number of a tree.
const METADATA: &[u8] = b"TSNA\x04";
const MESSAGE: &[u8] = b"TSNX\x02";

pub(crate) struct ByHand {
    agent: RawAgent,
    /// Goes behind the agent.
    memory: Vec<u8>,
    name: &'static str,
    parent: CString,
    heard: Vec<Heard>,
}

/// Kind, number of the tree, the first number of what follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heard {
    pub(crate) kind: u8,
    pub(crate) id: u64,
    pub(crate) number: u64,
}

impl ByHand {
    pub(crate) fn new(name: &'static str, transport: &str, bytes: usize) -> Self {
        // SAFETY: the loader's own library, which `Nixl::load` takes as well.
        let nixl = unsafe { Nixl::open("libnixl_capi.so") }.unwrap();
        let text = |text: &str| CString::new(text).unwrap();
        let parameters: Vec<_> =
            parameters(transport).iter().map(|(key, value)| (text(key), text(value))).collect();
        let agent =
            RawAgent::new(nixl, Home::new(&Device::host()), &text(name), c"UCX", &parameters).unwrap();
        let mut by_hand =
            Self { agent, memory: vec![7; bytes], name, parent: CString::default(), heard: Vec::new() };
        // SAFETY: the memory lives as long as the agent does, which is declared before it.
        unsafe { by_hand.agent.register(Place::Host, by_hand.address(), bytes) }.unwrap();
        by_hand
    }

    fn address(&self) -> usize {
        self.memory.as_ptr().expose_provenance()
    }

    /// What it says of itself, with an arena of so many bytes.
    pub(crate) fn metadata(&mut self, claimed: usize) -> Vec<u8> {
        let mut metadata = METADATA.to_vec();
        // In memory of the host.
        [0, 0, self.address(), claimed, self.name.len()]
            .into_iter()
            .for_each(|number| metadata.extend_from_slice(&(number as u64).to_le_bytes()));
        metadata.extend_from_slice(self.name.as_bytes());
        let of_library = self.agent.metadata().unwrap();
        metadata.extend_from_slice(&(of_library.len() as u64).to_le_bytes());
        metadata.extend_from_slice(&of_library);
        let sum = checksum(&metadata);
        metadata.extend_from_slice(&sum.to_le_bytes());
        metadata
    }

    /// Takes the metadata of the other side. Where its arena begins.
    pub(crate) fn meet(&mut self, metadata: &[u8]) -> usize {
        // What the library wants lies behind the name and its own length, before the sum.
        let of_library = 45 + number(metadata, 37) + 8..metadata.len() - 8;
        self.parent = self.agent.load(&metadata[of_library]).unwrap();
        arena_of(metadata)
    }

    pub(crate) fn say(&mut self, kind: u8, id: u64, numbers: &[u64], rest: &[u8]) {
        let mut bytes = [MESSAGE, &[kind]].concat();
        bytes.extend_from_slice(&id.to_le_bytes());
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes.extend_from_slice(rest);
        self.say_bytes(&bytes);
    }

    pub(crate) fn say_bytes(&mut self, bytes: &[u8]) {
        self.agent.notify(&self.parent, bytes).unwrap();
    }

    /// The next message of this kind, of those that were not asked for; `None` if there is none in that time.
    pub(crate) fn hear_within(&mut self, kind: u8, limit: Duration) -> Option<Heard> {
        let begun = Instant::now();
        loop {
            let heard = &mut self.heard;
            self.agent.notifications(|_, bytes| heard.extend(read(bytes))).unwrap();
            if let Some(at) = self.heard.iter().position(|heard| heard.kind == kind) {
                return Some(self.heard.remove(at));
            }
            if begun.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// What was said of this tree meanwhile, in any kind of message; what was said of others is forgotten.
    pub(crate) fn heard_of(&mut self, id: u64) -> Vec<Heard> {
        let heard = &mut self.heard;
        self.agent.notifications(|_, bytes| heard.extend(read(bytes))).unwrap();
        heard.drain(..).filter(|heard| heard.id == id).collect()
    }

    pub(crate) fn hear(&mut self, kind: u8) -> Heard {
        self.hear_within(kind, AMPLE).unwrap()
    }

    /// Its bytes are none of those of a [`tree`] again.
    pub(crate) fn clear(&mut self) {
        self.memory.fill(7);
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        // SAFETY: it is a byte of the vector, which others write meanwhile: it is read once, and nothing but looked at.
        unsafe { self.memory.as_ptr().add(at).read_volatile() }
    }

    /// Begins to write so many bytes of its own to an address of the other side.
    pub(crate) fn write(&mut self, to: usize, bytes: usize) -> Request {
        let (from, parent) = (self.address(), self.parent.clone());
        let request = self.agent.write_request(&parent, from, (Place::Host, to), bytes).unwrap();
        // SAFETY: the memory lives as long as the agent, and nobody writes there.
        assert!(!matches!(unsafe { self.agent.post(&request) }, Status::Failed(_)));
        request
    }

    pub(crate) fn has_ended(&mut self, request: &Request) -> bool {
        self.agent.status(request) != Status::UnderWay
    }
}

/// Where the arena of an agent begins.
pub(crate) fn arena_of(metadata: &[u8]) -> usize {
    number(metadata, 21)
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn number(metadata: &[u8], at: usize) -> usize {
    u64::from_le_bytes(metadata[at..at + 8].try_into().unwrap()) as usize
}

/// A tensor of so many bytes, with the manifest of a tree of it.
pub(crate) fn tree(bytes: usize) -> (Vec<Tensor>, Vec<u8>) {
    let tree = vec![Tensor::from(vec![1_u8; bytes])];
    let manifest = Manifest::packed(&tree, Alignment::ONE).unwrap().to_bytes().to_vec();
    (tree, manifest)
}

fn read(bytes: &[u8]) -> Option<Heard> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().unwrap()));
    Some(Heard { kind: *bytes.get(5)?, id: number(6)?, number: number(14).unwrap_or(0) })
}
