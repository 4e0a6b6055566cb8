//! The messages between a feed and its loaders, and between an exporter and its importers: 40 bytes each, whole or not at all (`SOCK_SEQPACKET`). Large things
//! lie in shared memory.

use crate::error::{IpcError, broken};

pub(crate) const BYTES: usize = 40;

/// What a ring may have at most, and how many trees an importer may have at a time: a loader believes no more. A socket takes a message for each slot without waiting (about 270 of them, by the
/// system's own limit), so that one that takes no more is one that has gone wrong.
pub(crate) const MOST_SLOTS: usize = 128;

/// The largest manifest that an importer believes, in bytes: that of more than a million tensors.
pub(crate) const LARGEST_MANIFEST: usize = 64 << 20;

const HEAD: [u8; 5] = *b"TSRG\x03";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// To a loader, first of all, with the descriptor of the ring, and the largest manifest that a batch may have.
    Ring { slots: u64, slot_bytes: u64, largest_manifest: u64 },
    /// To a loader: write the batch of this number to this slot.
    Work { ticket: u64, number: u64, slot: u64 },
    /// To a loader or an importer: there will be no more.
    Over,
    /// From a loader: the batch is there, and its manifest lies in the slot behind it.
    Filled { ticket: u64, slot: u64, manifest_at: u64, manifest_bytes: u64 },
    /// From a loader: there is no such batch. The reason lies at the start of the slot.
    Failed { ticket: u64, slot: u64, text_bytes: u64 },
    /// To an importer, with the descriptor of memory: a tree, and its manifest behind it. If it lasts, other trees of the same manifest come there: the importer keeps it mapped.
    Offer { ticket: u64, chunk_bytes: u64, manifest_bytes: u64, lasts: bool },
    /// From an importer: it has let go of a tree, and of its memory.
    Released { ticket: u64 },
    /// To an importer, with the descriptor of a pool of memory of the device that has this UUID.
    Pool { pool: u64, uuid: [u64; 2] },
    /// To an importer, with the descriptor of memory: the name of memory of a pool that has a tree, and the manifest of that.
    OfferInPool { ticket: u64, pool: u64, chunk_bytes: u64, manifest_bytes: u64, lasts: bool },
    /// To an importer, with the descriptor of memory: a window for it to write, and its manifest behind it.
    Window { ticket: u64, chunk_bytes: u64, manifest_bytes: u64 },
    /// The same in memory of a pool, as `OfferInPool` has it.
    WindowInPool { ticket: u64, pool: u64, chunk_bytes: u64, manifest_bytes: u64 },
    /// From an importer: it has written a window, and does not until it is given it again.
    Written { ticket: u64 },
    /// To an importer: what it has written is not used any more, and it may write again; or the next tree is in memory that lasts.
    Again { ticket: u64 },
    /// To an importer: a window, or memory that lasted, is not wanted any more.
    Close { ticket: u64 },
    /// From an importer: it has let go of the tree in memory that lasts, and has that mapped.
    Back { ticket: u64 },
}

impl Message {
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let (kind, words) = match self {
            Self::Ring { slots, slot_bytes, largest_manifest } => {
                (1, [slots, slot_bytes, largest_manifest, 0])
            }
            Self::Work { ticket, number, slot } => (2, [ticket, number, slot, 0]),
            Self::Over => (3, [0; 4]),
            Self::Filled { ticket, slot, manifest_at, manifest_bytes } => {
                (4, [ticket, slot, manifest_at, manifest_bytes])
            }
            Self::Failed { ticket, slot, text_bytes } => (5, [ticket, slot, text_bytes, 0]),
            Self::Offer { ticket, chunk_bytes, manifest_bytes, lasts } => {
                (if lasts { 15 } else { 6 }, [ticket, chunk_bytes, manifest_bytes, 0])
            }
            Self::Released { ticket } => (7, [ticket, 0, 0, 0]),
            Self::Pool { pool, uuid: [first, second] } => (8, [pool, first, second, 0]),
            Self::OfferInPool { ticket, pool, chunk_bytes, manifest_bytes, lasts } => {
                (if lasts { 16 } else { 9 }, [ticket, pool, chunk_bytes, manifest_bytes])
            }
            Self::Window { ticket, chunk_bytes, manifest_bytes } => {
                (10, [ticket, chunk_bytes, manifest_bytes, 0])
            }
            Self::WindowInPool { ticket, pool, chunk_bytes, manifest_bytes } => {
                (11, [ticket, pool, chunk_bytes, manifest_bytes])
            }
            Self::Written { ticket } => (12, [ticket, 0, 0, 0]),
            Self::Again { ticket } => (13, [ticket, 0, 0, 0]),
            Self::Close { ticket } => (14, [ticket, 0, 0, 0]),
            Self::Back { ticket } => (17, [ticket, 0, 0, 0]),
        };
        let mut bytes = [0; BYTES];
        bytes[..HEAD.len()].copy_from_slice(&HEAD);
        bytes[HEAD.len()] = kind;
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `length`: how many bytes the message had, of which those behind the first 40 are lost.
    pub(crate) fn from_bytes(bytes: &[u8; BYTES], length: usize) -> Result<Self, IpcError> {
        if length != BYTES || bytes[..HEAD.len()] != HEAD {
            return Err(broken("a message is of another kind"));
        }
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(bytes[8..].chunks_exact(8)) {
            *word = place.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let [one, two, three, four] = words;
        let kind = bytes[HEAD.len()];
        Ok(match kind {
            1 => Self::Ring { slots: one, slot_bytes: two, largest_manifest: three },
            2 => Self::Work { ticket: one, number: two, slot: three },
            3 => Self::Over,
            4 => Self::Filled { ticket: one, slot: two, manifest_at: three, manifest_bytes: four },
            5 => Self::Failed { ticket: one, slot: two, text_bytes: three },
            6 | 15 => Self::Offer { ticket: one, chunk_bytes: two, manifest_bytes: three, lasts: kind == 15 },
            7 => Self::Released { ticket: one },
            8 => Self::Pool { pool: one, uuid: [two, three] },
            9 | 16 => {
                let (pool, lasts) = (two, kind == 16);
                Self::OfferInPool { ticket: one, pool, chunk_bytes: three, manifest_bytes: four, lasts }
            }
            10 => Self::Window { ticket: one, chunk_bytes: two, manifest_bytes: three },
            11 => Self::WindowInPool { ticket: one, pool: two, chunk_bytes: three, manifest_bytes: four },
            12 => Self::Written { ticket: one },
            13 => Self::Again { ticket: one },
            14 => Self::Close { ticket: one },
            17 => Self::Back { ticket: one },
            _ => return Err(broken("a message is of another kind")),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    #[test]
    fn messages_come_back_and_others_are_refused() {
        for message in [
            Message::Ring { slots: 3, slot_bytes: u64::MAX, largest_manifest: 34 },
            Message::Work { ticket: 1, number: 1 << 40, slot: 2 },
            Message::Over,
            Message::Filled { ticket: 1, slot: 2, manifest_at: 3, manifest_bytes: 4 },
            Message::Failed { ticket: 5, slot: 6, text_bytes: 7 },
            Message::Offer { ticket: 8, chunk_bytes: 9, manifest_bytes: u64::MAX, lasts: false },
            Message::Offer { ticket: 26, chunk_bytes: 27, manifest_bytes: 28, lasts: true },
            Message::Released { ticket: 10 },
            Message::Pool { pool: 11, uuid: [u64::MAX, 12] },
            Message::OfferInPool { ticket: 13, pool: 14, chunk_bytes: 15, manifest_bytes: 16, lasts: false },
            Message::OfferInPool { ticket: 29, pool: 30, chunk_bytes: 31, manifest_bytes: 32, lasts: true },
            Message::Window { ticket: 17, chunk_bytes: 18, manifest_bytes: u64::MAX },
            Message::WindowInPool { ticket: 19, pool: 20, chunk_bytes: 21, manifest_bytes: 22 },
            Message::Written { ticket: 23 },
            Message::Again { ticket: 24 },
            Message::Close { ticket: 25 },
            Message::Back { ticket: 33 },
        ] {
            let bytes = message.to_bytes();
            assert_eq!(Message::from_bytes(&bytes, BYTES).unwrap(), message);
            assert!(Message::from_bytes(&bytes, BYTES - 1).is_err());
            assert!(Message::from_bytes(&bytes, BYTES + 1).is_err());
            for place in 0..6 {
                let mut other = bytes;
                other[place] ^= 0x40;
                assert!(Message::from_bytes(&other, BYTES).is_err());
            }
        }
    }
}
