//! Memory that a graph uses: it is kept until the graph has gone, and everything that was made of it.

use std::sync::Arc;

use crate::runtime::sync::Mutex;
use crate::runtime::workers;

/// What a graph does with memory. It is a use and no owner: whoever holds the memory may have it filled again.
pub(crate) struct GraphUse(Mutex<Option<Vec<Kept>>>);

/// Memory that goes on when it is dropped.
type Kept = Box<dyn Send>;

/// What the graph holds. It is dropped by the driver, when nothing of the graph is left and none of its launches runs.
pub(crate) struct GraphShare(Arc<GraphUse>);

impl GraphUse {
    /// The use, and the share that ends it.
    pub(crate) fn begin() -> (Arc<Self>, GraphShare) {
        let using = Arc::new(Self(Mutex::new(Some(Vec::new()))));
        (using.clone(), GraphShare(using))
    }

    /// Whether the graph has gone.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().is_none()
    }

    /// Drops `memory` when the graph has gone, on a worker; at once if it has.
    pub(crate) fn keep(&self, memory: impl Send + 'static) {
        let mut kept = self.0.lock();
        if let Some(kept) = &mut *kept {
            return kept.push(Box::new(memory));
        }
        drop(kept);
        drop(memory);
    }
}

/// On a thread of the driver, which may neither call the driver there nor wait.
impl Drop for GraphShare {
    fn drop(&mut self) {
        let kept = self.0.0.lock().take();
        if let Some(kept) = kept.filter(|kept| !kept.is_empty()) {
            workers::dispose(kept);
        }
    }
}
