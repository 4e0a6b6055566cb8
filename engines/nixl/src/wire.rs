//! What agents tell each other, in notifications of the library. Whoever sends one may be anybody.

/// What each begins with: a name and a version.
const HEAD: [u8; 5] = *b"TSNX\x02";

const OFFER: u8 = 1;
const ACCEPTED: u8 = 2;
const WRITTEN: u8 = 3;
const DONE: u8 = 4;
const REFUSED: u8 = 5;
const WITHDRAWN: u8 = 6;

/// The longest reason that is told to a peer, or taken from one.
const LONGEST_REASON: usize = 4096;

/// One notification. `id` is the number that the sending agent has given the tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// The sender has a tree of so many bytes.
    Offer { id: u64, bytes: usize, manifest: &'a [u8] },
    /// The receiver has room for it, from here on in its arena.
    Accepted { id: u64, offset: usize },
    /// So many of its bytes, from the first one on, lie there.
    Written { id: u64, bytes: usize },
    /// The receiver has all of it.
    Done { id: u64 },
    /// The receiver does not want it, or no more of it.
    Refused { id: u64, reason: String },
    /// The sender writes no more of it: nothing is under way.
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
            Self::Offer { id, bytes, manifest } => put(OFFER, *id, &[*bytes], manifest),
            Self::Accepted { id, offset } => put(ACCEPTED, *id, &[*offset], &[]),
            Self::Written { id, bytes } => put(WRITTEN, *id, &[*bytes], &[]),
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
            OFFER => Self::Offer { id, bytes: size(&mut rest)?, manifest: std::mem::take(&mut rest) },
            ACCEPTED => Self::Accepted { id, offset: size(&mut rest)? },
            WRITTEN => Self::Written { id, bytes: size(&mut rest)? },
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
            Message::Offer { id: 1, bytes: 70, manifest: b"TSMF" },
            Message::Accepted { id: 5, offset: 4096 },
            Message::Written { id: u64::MAX, bytes: 1 << 40 },
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
        bytes[4] = 1;
        assert_eq!(Message::from_bytes(&bytes), Err("it is no message of this version"));
        bytes[4..6].copy_from_slice(&[2, 9]);
        assert_eq!(Message::from_bytes(&bytes), Err("there is no message of this kind"));
        bytes[5] = DONE;
        bytes.push(0);
        assert_eq!(Message::from_bytes(&bytes), Err("there are bytes behind its end"));
        let long = Message::Refused { id: 0, reason: "x".repeat(1 << 20) }.to_bytes();
        assert_eq!(long.len(), 14 + LONGEST_REASON);
    }
}
