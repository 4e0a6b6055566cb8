//! What agents tell each other, in notifications of the library. Whoever sends one may be anybody.

/// What each begins with: a name and a version.
const HEAD: [u8; 5] = *b"TSNX\x01";

const OFFER: u8 = 1;
const READY: u8 = 2;
const DONE: u8 = 3;
const REFUSED: u8 = 4;
const WITHDRAWN: u8 = 5;

/// The longest reason that is told to a peer, or taken from one.
const LONGEST_REASON: usize = 4096;

/// One notification. `id` is the number that the sending agent has given the tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A tree lies in the sender's arena, of which so many bytes are filled.
    Offer { id: u64, offset: usize, bytes: usize, ready: usize, manifest: &'a [u8] },
    /// So many bytes of it are filled now.
    Ready { id: u64, ready: usize },
    /// It was read.
    Done { id: u64 },
    /// It will not be read any more.
    Refused { id: u64, reason: String },
    /// It is not to be read any more.
    Withdrawn { id: u64 },
}

impl<'a> Message<'a> {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = HEAD.to_vec();
        let mut put = |kind: u8, id: u64, numbers: &[usize], rest: &[u8]| {
            bytes.push(kind);
            bytes.extend_from_slice(&id.to_le_bytes());
            numbers.iter().for_each(|number| bytes.extend_from_slice(&(*number as u64).to_le_bytes()));
            bytes.extend_from_slice(rest);
        };
        match self {
            Self::Offer { id, offset, bytes, ready, manifest } => {
                put(OFFER, *id, &[*offset, *bytes, *ready], manifest);
            }
            Self::Ready { id, ready } => put(READY, *id, &[*ready], &[]),
            Self::Done { id } => put(DONE, *id, &[], &[]),
            Self::Refused { id, reason } => {
                let reason = reason.as_bytes();
                put(REFUSED, *id, &[], &reason[..reason.len().min(LONGEST_REASON)]);
            }
            Self::Withdrawn { id } => put(WITHDRAWN, *id, &[], &[]),
        }
        bytes
    }

    /// # Errors
    ///
    /// What is wrong with the bytes.
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let Some((head, rest)) = bytes.split_first_chunk::<5>() else { return Err("it is too short") };
        if *head != HEAD {
            return Err("it is no message of this version");
        }
        let Some((kind, mut rest)) = rest.split_first() else { return Err("it is too short") };
        let id = word(&mut rest)?;
        let message = match *kind {
            OFFER => {
                let (offset, bytes, ready) = (size(&mut rest)?, size(&mut rest)?, size(&mut rest)?);
                Self::Offer { id, offset, bytes, ready, manifest: std::mem::take(&mut rest) }
            }
            READY => Self::Ready { id, ready: size(&mut rest)? },
            DONE => Self::Done { id },
            REFUSED => {
                let reason = std::mem::take(&mut rest);
                let reason =
                    String::from_utf8_lossy(&reason[..reason.len().min(LONGEST_REASON)]).into_owned();
                Self::Refused { id, reason }
            }
            WITHDRAWN => Self::Withdrawn { id },
            _ => return Err("there is no message of this kind"),
        };
        if rest.is_empty() { Ok(message) } else { Err("there are bytes behind its end") }
    }
}

fn word(rest: &mut &[u8]) -> Result<u64, &'static str> {
    let (word, behind) = rest.split_first_chunk::<8>().ok_or("it is too short")?;
    *rest = behind;
    Ok(u64::from_le_bytes(*word))
}

fn size(rest: &mut &[u8]) -> Result<usize, &'static str> {
    usize::try_from(word(rest)?).map_err(|_| "a number is larger than a machine word")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    /// Deliberate bug: a field is left out, or read in another order.
    #[test]
    fn messages_come_as_they_were_and_cut_ones_are_refused() {
        for message in [
            Message::Offer { id: 1, offset: 4096, bytes: 70, ready: 3, manifest: b"TSMF" },
            Message::Ready { id: u64::MAX, ready: 1 << 40 },
            Message::Done { id: 2 },
            Message::Refused { id: 3, reason: "w: f32 [2]".to_owned() },
            Message::Withdrawn { id: 4 },
        ] {
            let bytes = message.to_bytes();
            assert_eq!(Message::from_bytes(&bytes).unwrap(), message);
            // The head, the kind and the number.
            (0..14).for_each(|end| assert!(Message::from_bytes(&bytes[..end]).is_err(), "{message:?} {end}"));
        }
    }

    #[test]
    fn another_version_kind_or_length_is_refused() {
        let mut bytes = Message::Done { id: 2 }.to_bytes();
        bytes[4] = 2;
        assert_eq!(Message::from_bytes(&bytes), Err("it is no message of this version"));
        bytes[4..6].copy_from_slice(&[1, 9]);
        assert_eq!(Message::from_bytes(&bytes), Err("there is no message of this kind"));
        bytes[5] = DONE;
        bytes.push(0);
        assert_eq!(Message::from_bytes(&bytes), Err("there are bytes behind its end"));
        let long = Message::Refused { id: 0, reason: "x".repeat(1 << 20) }.to_bytes();
        assert_eq!(long.len(), 14 + LONGEST_REASON);
    }
}
