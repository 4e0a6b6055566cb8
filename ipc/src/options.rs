//! How a feed is set up.

use std::time::Duration;

/// How a [`Feed`](crate::Feed) deals with its loaders.
#[derive(Debug, Clone)]
pub struct FeedOptions {
    pub(crate) slot_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) most_loaders: usize,
    pub(crate) attempts: u32,
    pub(crate) patience: Duration,
    pub(crate) largest_manifest: usize,
}

impl FeedOptions {
    /// Slots of `slot_bytes` bytes, rounded up to whole pages: for the largest batch, whose tensors begin at multiples of 64 bytes, and its manifest, about
    /// 40 bytes for each tensor.
    pub fn new(slot_bytes: usize) -> Self {
        Self {
            slot_bytes,
            slots: 3,
            most_loaders: 64,
            attempts: 3,
            patience: Duration::from_secs(300),
            largest_manifest: 1 << 20,
        }
    }

    /// How many slots each loader has: 3 unless told otherwise, at least 1 and at most 128. It is ahead by so many batches. Reasons why there is none, and
    /// batches of loaders that have gone, count as if they had the slots of those that there are, and may be as many again.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots.clamp(1, crate::wire::MOST_SLOTS);
        self
    }

    /// How many loaders there may be at a time, 64 unless told otherwise. Each has page-locked memory for all of its slots; further ones are sent away, and hear
    /// [`PeerGone`](crate::IpcError::PeerGone) when they connect, as where the feed has gone: connect again once a loader has ended. The memory of one that has gone stays with its batches until they are dropped.
    #[must_use]
    pub fn most_loaders(mut self, loaders: usize) -> Self {
        self.most_loaders = loaders.max(1);
        self
    }

    /// How many loaders may die over a batch before it is given up, 3 unless told otherwise. A loader makes its batches one after the other: one that dies is
    /// counted for the first that it has not made, and for no other. What has failed goes to loaders that have made something, where there are such with a slot.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// How long a loader may take for a batch before its connection is ended, 300 s unless told otherwise: since the feed has heard of the one before, or has
    /// given it work while it had none. Looked at while the feed is asked for a batch, and after what the loader has sent.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The largest manifest of a batch in bytes, 1 MiB unless told otherwise: that of some 80,000 tensors in a list, or of 25,000 with names such as `model.layers.7.self_attn.q_proj.weight`.
    /// Loaders are told, and a batch of more fails there ([`ManifestTooLarge`](crate::IpcError::ManifestTooLarge)).
    #[must_use]
    pub fn largest_manifest(mut self, bytes: usize) -> Self {
        self.largest_manifest = bytes;
        self
    }
}
