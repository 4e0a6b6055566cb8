//! The NUMA nodes of the machine, and which processors each of them has.

use std::ffi::OsStr;
use std::path::Path;
// The same in every execution of a model, which must not switch threads while a device is opened.
use std::sync::OnceLock;

/// The variable that leaves everything where the system puts it, unless it is empty or 0.
const DISABLE: &str = "TRANSSHIP_DISABLE_NUMA";
/// Numbers of processors and nodes are below that. Linux has no more nodes, and its own set of processors no more room.
pub(crate) const MOST: usize = 1024;

/// The nodes that have processors, of a machine with several. Elsewhere nothing can be placed, and none is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    nodes: Vec<Node>,
}

/// One of several nodes.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    number: usize,
    processors: Vec<usize>,
}

impl Topology {
    /// That of this machine. The first question reads some files.
    pub(crate) fn of_machine() -> &'static Self {
        static KNOWN: OnceLock<Topology> = OnceLock::new();
        KNOWN.get_or_init(|| Self::unless(std::env::var_os(DISABLE).as_deref(), Path::new("/")))
    }

    /// That of the machine whose files lie below `root`, unless `disable` says so.
    fn unless(disable: Option<&OsStr>, root: &Path) -> Self {
        let is_disabled = disable.is_some_and(|value| !value.is_empty() && value != "0");
        if is_disabled { Self::default() } else { Self::read(root) }
    }

    /// That of the machine whose files lie below `root`.
    pub(crate) fn read(root: &Path) -> Self {
        if cfg!(any(not(target_os = "linux"), miri, shuttle)) {
            return Self::default();
        }
        let folder = root.join("sys/devices/system/node");
        let list = |file: &str| {
            let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
            text.trim().split(',').filter_map(range).flatten().collect::<Vec<_>>()
        };
        let node = |number| Node { number, processors: list(&format!("node{number}/cpulist")) };
        let nodes = list("online").into_iter().map(node);
        // Memory of a GPU or behind a switch may be a node without processors: a device is plugged in at none of these.
        let nodes: Vec<_> = nodes.filter(|node| !node.processors.is_empty()).collect();
        if nodes.len() > 1 { Self { nodes } } else { Self::default() }
    }

    /// Whether there are several nodes.
    pub(crate) fn has_choice(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// The node with this number, if it is one of several.
    pub(crate) fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| u32::try_from(node.number) == Ok(number))
    }
}

impl Node {
    #[cfg(all(test, target_os = "linux", not(any(miri, shuttle))))]
    pub(crate) fn new(number: usize, processors: Vec<usize>) -> Self {
        Self { number, processors }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Those of `allowed` that it has; `None` if that is none, or all.
    pub(crate) fn processors_among(&self, allowed: &[usize]) -> Option<Vec<usize>> {
        let near = allowed.iter().copied().filter(|processor| self.processors.contains(processor));
        let near: Vec<usize> = near.collect();
        (!near.is_empty() && near.len() < allowed.len()).then_some(near)
    }
}

/// `3` or `0-3`.
fn range(text: &str) -> Option<std::ops::Range<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    Some(first..last.saturating_add(1).min(MOST))
}

#[cfg(all(test, target_os = "linux", not(any(miri, shuttle))))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A folder with these files, which goes with it.
    struct Root(PathBuf);

    impl Root {
        fn new(nodes: &[(&str, &str)]) -> Self {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("transship-topology-{}-{number}", std::process::id());
            let root = Self(std::env::temp_dir().join(name));
            for (file, text) in nodes {
                let path = root.0.join("sys/devices/system/node").join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            root
        }

        fn numbers(&self) -> Vec<usize> {
            Topology::read(&self.0).nodes.iter().map(Node::number).collect()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn two() -> Root {
        Root::new(&[("online", "0-1\n"), ("node0/cpulist", "0-1,4\n"), ("node1/cpulist", "2-3,5-6\n")])
    }

    #[test]
    fn each_node_has_its_processors() {
        let root = two();
        let topology = Topology::read(&root.0);
        let processors = |number| topology.node(number).map(|node| node.processors.clone());
        assert_eq!(processors(0), Some(vec![0, 1, 4]));
        assert_eq!(processors(1), Some(vec![2, 3, 5, 6]));
        assert_eq!((processors(2), processors(u32::MAX)), (None, None));
        assert!(topology.has_choice());
    }

    #[test]
    fn one_node_is_no_choice() {
        assert!(!Topology::read(&Root::new(&[]).0).has_choice());
        assert!(Root::new(&[("online", "0\n"), ("node0/cpulist", "0-63\n")]).numbers().is_empty());
        let memory_alone = [
            ("online", "0-2\n"),
            ("node0/cpulist", "0-71\n"),
            ("node1/cpulist", "\n"),
            ("node2/cpulist", ""),
        ];
        assert!(Root::new(&memory_alone).numbers().is_empty());
    }

    #[test]
    fn nodes_without_processors_do_not_count() {
        let root = Root::new(&[
            ("online", "0,2-4\n"),
            ("node0/cpulist", "0\n"),
            ("node2/cpulist", "1\n"),
            ("node3/cpulist", "\n"),
        ]);
        assert_eq!(root.numbers(), [0, 2]);
    }

    #[test]
    fn nonsense_is_no_node() {
        let root = Root::new(&[
            ("online", "0-1,x,-,7-3,99999999999999999999\n"),
            ("node0/cpulist", "0-18446744073709551615\n"),
            ("node1/cpulist", "-1,2000\n"),
        ]);
        assert!(root.numbers().is_empty());
    }

    /// Mutant: it does not (408).
    #[test]
    fn the_variable_switches_it_off() {
        let root = two();
        let has_choice = |value: Option<&str>| Topology::unless(value.map(OsStr::new), &root.0).has_choice();
        assert_eq!(
            [None, Some(""), Some("0"), Some("1"), Some("true")].map(has_choice),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn threads_keep_within_what_is_allowed() {
        let node = Node::new(1, vec![2, 3, 5]);
        assert_eq!(node.processors_among(&[0, 1, 2, 3, 4, 5]), Some(vec![2, 3, 5]));
        assert_eq!(node.processors_among(&[1, 3]), Some(vec![3]));
        // None of its own, or no others: they stay where they are.
        assert_eq!(node.processors_among(&[0, 1]), None);
        assert_eq!(node.processors_among(&[2, 5]), None);
        assert_eq!(node.processors_among(&[]), None);
    }
}
