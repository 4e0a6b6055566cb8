//! Memory and threads near a NUMA node. Each of it is a preference: what the system refuses is left as it is.

use std::cell::RefCell;

use crate::runtime::topology::Node;

#[cfg(all(target_os = "linux", not(any(miri, shuttle))))]
use linux as system;
#[cfg(not(all(target_os = "linux", not(any(miri, shuttle)))))]
use nowhere as system;

/// Calls `allocate`, whose new pages are preferably those of `node`: those that drivers get from the system for this thread, and those
/// that it touches first. A policy that the program has given its thread, as `numactl` does, stands.
pub(crate) fn prefer<R>(node: Option<&Node>, allocate: impl FnOnce() -> R) -> R {
    let _until_then = node.and_then(|node| system::Preference::of(node.number()));
    allocate()
}

thread_local! {
    /// What this thread might run on before it was bound to a node: what it starts is not bound for that.
    static UNBOUND: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

/// Which processors a thread runs on that is about to be started.
pub(crate) struct Affinity {
    node: Option<&'static Node>,
    /// What the thread might run on that starts it, if that one is bound to a node.
    unbound: Option<Vec<usize>>,
}

impl Affinity {
    /// Those of `node`, as far as the starting thread might use them; without a node, all that it might use.
    pub(crate) fn near(node: Option<&'static Node>) -> Self {
        Self { node, unbound: UNBOUND.try_with(|unbound| unbound.borrow().clone()).ok().flatten() }
    }

    /// To be called by the new thread, first of all. Costs nothing where nothing is bound.
    pub(crate) fn adopt(self) {
        let Self { node, unbound } = self;
        let is_inherited = unbound.is_some();
        if node.is_none() && !is_inherited {
            return;
        }
        let Some(allowed) = unbound.or_else(system::processors) else { return };
        match node.and_then(|node| node.processors_among(&allowed)) {
            Some(near) if system::run_on(&near) => {
                let _ = UNBOUND.try_with(|unbound| unbound.replace(Some(allowed)));
            }
            _ if is_inherited => {
                system::run_on(&allowed);
            }
            _ => {}
        }
    }
}

#[cfg(all(target_os = "linux", not(any(miri, shuttle))))]
mod linux {
    use std::marker::PhantomData;
    use std::{mem, ptr};

    use libc::{c_int, c_long, c_ulong};

    use crate::runtime::topology::MOST;

    const BITS: usize = c_ulong::BITS as usize;
    /// So many processors have room in the system's own set.
    const PROCESSORS: usize = 8 * size_of::<libc::cpu_set_t>();

    /// While it lives, new pages of this thread are preferably those of one node.
    pub(super) struct Preference {
        /// The policy is that of the thread.
        _not_send: PhantomData<*const ()>,
    }

    impl Preference {
        /// `None` if the thread has a policy already, or the system refuses: containers often may not ask.
        pub(super) fn of(node: usize) -> Option<Self> {
            let mut nodes = [0 as c_ulong; MOST / BITS];
            *nodes.get_mut(node / BITS)? |= 1 << (node % BITS);
            if policy()? != libc::MPOL_DEFAULT || !set_policy(libc::MPOL_PREFERRED, &nodes) {
                return None;
            }
            Some(Self { _not_send: PhantomData })
        }
    }

    impl Drop for Preference {
        fn drop(&mut self) {
            // It cannot fail: this one needs no node, and `of` was allowed to set another.
            set_policy(libc::MPOL_DEFAULT, &[]);
        }
    }

    /// How new pages of this thread are chosen.
    fn policy() -> Option<c_int> {
        let mut policy: c_int = 0;
        // SAFETY: without flags and nodes, only the policy is written, to a local.
        let status = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy,
                ptr::null_mut::<c_ulong>(),
                0 as c_ulong,
                0 as c_ulong,
                0 as c_ulong,
            )
        };
        (status == 0).then_some(policy)
    }

    fn set_policy(policy: c_int, nodes: &[c_ulong]) -> bool {
        let start = if nodes.is_empty() { ptr::null() } else { nodes.as_ptr() };
        // The system takes one bit less than it is told.
        let bits = if nodes.is_empty() { 0 } else { nodes.len() * BITS + 1 };
        // SAFETY: the system reads so many bits of `nodes`, and changes nothing but where new pages of this thread come from.
        let status =
            unsafe { libc::syscall(libc::SYS_set_mempolicy, policy as c_long, start, bits as c_ulong) };
        status == 0
    }

    /// What this thread may run on; `None` if the machine has more processors than fit into the set.
    pub(super) fn processors() -> Option<Vec<usize>> {
        // SAFETY: a set of bits, of which zeros are the empty one.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the set is written to a local of the size given; 0 is this thread.
        let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        // SAFETY: the set has room for numbers below `PROCESSORS`.
        let is_in = |processor: &usize| unsafe { libc::CPU_ISSET(*processor, &set) };
        (status == 0).then(|| (0..PROCESSORS).filter(is_in).collect())
    }

    /// Binds this thread to `processors`; whether the system lets it.
    pub(super) fn run_on(processors: &[usize]) -> bool {
        // SAFETY: a set of bits, of which zeros are the empty one.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        for processor in processors.iter().filter(|processor| **processor < PROCESSORS) {
            // SAFETY: as above.
            unsafe { libc::CPU_SET(*processor, &mut set) };
        }
        // SAFETY: a set of the size given is read; 0 is this thread.
        unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0 }
    }
}

#[cfg(not(all(target_os = "linux", not(any(miri, shuttle)))))]
mod nowhere {
    /// There is none.
    pub(super) enum Preference {}

    impl Preference {
        pub(super) fn of(_: usize) -> Option<Self> {
            None
        }
    }

    pub(super) fn processors() -> Option<Vec<usize>> {
        None
    }

    pub(super) fn run_on(_: &[usize]) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux", not(any(miri, shuttle))))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use std::thread;

    use super::*;

    fn leaked(node: Node) -> &'static Node {
        Box::leak(Box::new(node))
    }

    /// What `then` comes to on a new thread with this affinity.
    fn on_thread<R: Send + 'static>(affinity: Affinity, then: impl FnOnce() -> R + Send + 'static) -> R {
        let work = move || {
            affinity.adopt();
            then()
        };
        thread::spawn(work).join().unwrap()
    }

    /// Where a thread runs that this one starts near `node`.
    fn child_near(node: Option<&'static Node>) -> Vec<usize> {
        on_thread(Affinity::near(node), || system::processors().unwrap())
    }

    /// Mutant: what a bound thread starts is bound as well (407).
    #[test]
    fn what_a_bound_thread_starts_is_not_bound_for_that() {
        let allowed = system::processors().unwrap();
        let (first, others) = allowed.split_first().unwrap();
        let near = leaked(Node::new(0, vec![*first]));
        let far = leaked(Node::new(1, others.to_vec()));
        let there = || (system::processors().unwrap(), child_near(Some(near)), child_near(None));
        assert_eq!(
            on_thread(Affinity::near(Some(near)), there),
            (vec![*first], vec![*first], allowed.clone())
        );
        let expected = if others.is_empty() { allowed.clone() } else { others.to_vec() };
        assert_eq!(on_thread(Affinity::near(Some(near)), || child_near(Some(far))), expected);
        assert_eq!(system::processors().unwrap(), allowed);
    }

    /// Mutant: threads run on all processors of the node, whatever the program was given (404).
    #[test]
    fn a_thread_keeps_within_what_the_one_that_starts_it_may_use() {
        let allowed = system::processors().unwrap();
        let first = allowed[0];
        let near = leaked(Node::new(0, allowed));
        let child = move || system::run_on(&[first]).then(|| child_near(Some(near)));
        assert_eq!(thread::spawn(child).join().unwrap(), Some(vec![first]));
    }

    #[test]
    fn a_thread_that_may_not_run_there_stays_where_it_is() {
        let allowed = system::processors().unwrap();
        assert_eq!(child_near(Some(leaked(Node::new(0, vec![usize::MAX, 1023])))), allowed);
    }
}
