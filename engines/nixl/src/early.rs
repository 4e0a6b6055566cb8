//! What agents say that are not known yet: of two that exchange their metadata one knows the other first, and may send at once.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};

use crate::inbox::{MOST_MANIFEST_BYTES, MOST_WAITING};
use crate::wire::Message;

/// Notifications of agents until they are added, as much as one peer may have offered.
#[derive(Default)]
pub(crate) struct Early(VecDeque<(CString, Vec<u8>)>);

impl Early {
    /// Keeps it, unless there is too much already, or it is an answer: such an agent was asked nothing. Whether it is kept.
    pub(crate) fn keep(&mut self, agent: &CStr, message: &Message<'_>, bytes: &[u8]) -> bool {
        let is_first = matches!(message, Message::Offer { .. } | Message::Withdrawn { .. });
        let kept = self.0.iter().map(|(agent, bytes)| agent.count_bytes() + bytes.len()).sum::<usize>();
        let is_too_much = kept + agent.count_bytes() + bytes.len() > MOST_MANIFEST_BYTES;
        if !is_first || is_too_much || self.0.len() >= MOST_WAITING {
            return false;
        }
        self.0.push_back((agent.to_owned(), bytes.to_vec()));
        true
    }

    /// What this one has said, in its order.
    pub(crate) fn take(&mut self, agent: &CStr) -> Vec<Vec<u8>> {
        let (own, others): (VecDeque<_>, _) =
            self.0.drain(..).partition(|(name, _)| name.as_c_str() == agent);
        self.0 = others;
        own.into_iter().map(|(_, bytes)| bytes).collect()
    }
}
