//! Files that describe a machine as the system would.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder with such files, which goes with this.
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    /// One with these NUMA nodes, and the processors of each as the system writes them: `0-3,8`.
    pub(crate) fn with_nodes(nodes: &[(u32, &str)]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("transship-machine-{}-{number}", std::process::id()));
        let folder = root.join("sys/devices/system/node");
        fs::create_dir_all(&folder).unwrap();
        let numbers: Vec<_> = nodes.iter().map(|(node, _)| node.to_string()).collect();
        fs::write(folder.join("online"), numbers.join(",") + "\n").unwrap();
        for (node, processors) in nodes {
            let folder = folder.join(format!("node{node}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpulist"), format!("{processors}\n")).unwrap();
        }
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
