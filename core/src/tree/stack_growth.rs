//! How much stack a visit has, and more of it where that ends.

/// Every visit is trusted with so much: what goes no further asks for nothing.
const TRUSTED: usize = 16 << 10;
/// From one level to the next a visit needs less than this: structs of 60 tensors take 20 KiB in a debug build.
const ENOUGH: usize = 128 << 10;
/// Where there is so little, recursive types go on with more.
#[cfg(not(any(miri, shuttle)))]
const SHORT: usize = 2 * ENOUGH;
/// So much more.
#[cfg(not(any(miri, shuttle)))]
const SEGMENT: usize = 4 << 20;

/// The address below which a visit must look how much stack is left; odd as long as it has not looked. One word, and passed
/// by value: a visit whose visitor stays in registers takes 15 % fewer instructions for many small tensors.
#[derive(Clone, Copy)]
pub(crate) struct StackMark(usize);

impl StackMark {
    /// For what begins here.
    #[inline]
    pub(crate) fn here() -> Self {
        Self(address().saturating_sub(TRUSTED) | 1)
    }

    #[inline(always)]
    pub(crate) fn is_passed(self) -> bool {
        address() < self.0
    }

    /// Whether a recursive type comes close to it, or nobody has looked yet.
    #[inline]
    pub(crate) fn is_close(self) -> bool {
        address() < self.0.saturating_add(ENOUGH)
    }

    /// A mark to go on with; `None` if this one is where the stack ends.
    #[cold]
    #[inline(never)]
    pub(crate) fn renewed(self) -> Option<Self> {
        (self.0 & 1 != 0).then(|| Self::with(stack_left()))
    }

    /// Where so much stack is left. A thread with little stack keeps a part of that.
    fn with(left: usize) -> Self {
        Self(address().saturating_sub(left - ENOUGH.min(left / 4)) & !1)
    }
}

/// Where the stack is now, about.
#[inline(always)]
fn address() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// Runs `work` with a mark for this stack, or for more of it where there is little left.
#[cfg(not(any(miri, shuttle)))]
pub(crate) fn with_enough<R>(work: impl FnOnce(StackMark) -> R) -> R {
    match stack_left() {
        left if left > SHORT => work(StackMark::with(left)),
        _ => stacker::grow(SEGMENT, || work(StackMark::with(stack_left()))),
    }
}

/// Where the system does not say, the depth alone ends a visit. The stack of a coroutine may be taken for that of its thread: then
/// there seems to be none, and recursive types go on with more; or a lot, and the depth alone counts as well.
#[cfg(not(any(miri, shuttle)))]
fn stack_left() -> usize {
    stacker::remaining_stack().filter(|left| *left > 0).unwrap_or(usize::MAX)
}

/// Neither Miri nor the model checker has stacks that could be asked for or changed; both bring enough for our tests.
#[cfg(any(miri, shuttle))]
pub(crate) fn with_enough<R>(work: impl FnOnce(StackMark) -> R) -> R {
    work(StackMark::with(stack_left()))
}

#[cfg(any(miri, shuttle))]
fn stack_left() -> usize {
    usize::MAX
}
