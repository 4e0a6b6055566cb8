//! What an agent has to know of another one before they reach each other.

use std::ffi::CString;

use crate::error::{Error, Result};
use crate::nixl::place::Place;

/// What it begins with: a name and a version.
const HEAD: [u8; 5] = *b"TSNA\x04";

/// Kinds of memory.
const HOST: u64 = 0;
const GPU: u64 = 1;

/// Whose arena lies where, and what the library has to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) name: CString,
    pub(crate) place: Place,
    pub(crate) arena_start: usize,
    pub(crate) arena_bytes: usize,
    pub(crate) of_library: Vec<u8>,
}

impl Metadata {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = HEAD.to_vec();
        let (start, length) = (self.arena_start as u64, self.arena_bytes as u64);
        let (kind, device) = match self.place {
            Place::Host => (HOST, 0),
            Place::Gpu(number) => (GPU, number.into()),
        };
        for number in [kind, device, start, length, self.name.as_bytes().len() as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(&(self.of_library.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&self.of_library);
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        bytes
    }

    /// # Errors
    ///
    /// [`Error::Protocol`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refused =
            |reason: &str| Error::Protocol { peer: "an agent".to_owned(), reason: reason.to_owned() };
        let Some(head) = bytes.first_chunk::<5>() else {
            return Err(refused("its metadata is too short"));
        };
        let [own @ .., own_version] = HEAD;
        if head[..own.len()] != own {
            return Err(refused("it is no metadata of an agent, or damaged"));
        }
        let version = head[own.len()];
        if version != own_version {
            return Err(refused(&format!(
                "its metadata is of version {version}; this is version {own_version}"
            )));
        }
        let parts = || {
            let (all, sum) = bytes.split_last_chunk::<8>()?;
            let (kind, rest) = word(all.get(HEAD.len()..)?)?;
            let (device, rest) = word(rest)?;
            let place = match (kind, u32::try_from(device).ok()?) {
                (HOST, 0) => Place::Host,
                (GPU, device) => Place::Gpu(device),
                _ => return None,
            };
            let (start, rest) = number(rest)?;
            let (length, rest) = number(rest)?;
            let (name_bytes, rest) = number(rest)?;
            let (name, rest) = rest.split_at_checked(name_bytes)?;
            let (library_bytes, of_library) = number(rest)?;
            let name = CString::new(name).ok().filter(|name| !name.is_empty())?;
            start.checked_add(length)?;
            if library_bytes != of_library.len() || checksum(all) != u64::from_le_bytes(*sum) {
                return None;
            }
            Some(Self {
                name,
                place,
                arena_start: start,
                arena_bytes: length,
                of_library: of_library.to_vec(),
            })
        };
        parts().ok_or_else(|| refused("its metadata is cut or damaged, or makes no sense"))
    }
}

/// FNV-1a: who cuts or damages it does not mean to.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn number(rest: &[u8]) -> Option<(usize, &[u8])> {
    let (word, behind) = word(rest)?;
    Some((usize::try_from(word).ok()?, behind))
}

fn word(rest: &[u8]) -> Option<(u64, &[u8])> {
    let (word, behind) = rest.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*word), behind))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    /// Deliberate bugs: a length is believed; so is a kind of memory that there is not; what is cut or damaged goes to the library.
    #[test]
    fn it_comes_as_it_was_and_lies_are_refused() {
        for place in [Place::Host, Place::Gpu(3)] {
            let metadata = Metadata {
                name: c"trainer".to_owned(),
                place,
                arena_start: 1 << 40,
                arena_bytes: 1 << 30,
                of_library: b"nixl".to_vec(),
            };
            let bytes = metadata.to_bytes();
            assert_eq!(Metadata::from_bytes(&bytes).unwrap(), metadata);
            (0..bytes.len()).for_each(|end| assert!(Metadata::from_bytes(&bytes[..end]).is_err()));
            assert!(Metadata::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
            (0..bytes.len()).for_each(|at| {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x40;
                assert!(Metadata::from_bytes(&damaged).is_err(), "{at}");
            });
            let lie = |at: usize, with: &[u8]| {
                let mut bytes = bytes.clone();
                bytes[at..at + with.len()].copy_from_slice(with);
                Metadata::from_bytes(&sealed(bytes)).unwrap_err().to_string()
            };
            assert_eq!(Metadata::from_bytes(&sealed(bytes.clone())).unwrap(), metadata);
            assert!(lie(4, &[7]).contains("version 7"), "{}", lie(4, &[7]));
            // Kind, device, start, lengths of the name and of what the library has to know.
            for (at, with) in
                [(5, [2; 8]), (13, [0xff; 8]), (21, [0xff; 8]), (37, [0xff; 8]), (52, [0xff; 8])]
            {
                assert!(lie(at, &with).contains("no sense"), "{at}");
            }
            assert!(lie(45, b"a\0").contains("no sense"));
        }
        let host = Metadata {
            name: c"a".to_owned(),
            place: Place::Host,
            arena_start: 0,
            arena_bytes: 0,
            of_library: Vec::new(),
        };
        let mut second_host = host.to_bytes();
        second_host[13] = 1;
        assert!(Metadata::from_bytes(&sealed(second_host)).is_err());
    }

    /// With the sum that it has now.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.truncate(bytes.len() - 8);
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }
}
