//! Spans of `tracing`, with the feature of that name, entered as those of copies are. Without it nothing of this is compiled in.

/// Enters a span, which ends when what this returns is dropped: a name, and fields as `tracing` has them. `in` names the parent where
/// that is not the span of this thread, which is a new one then.
#[cfg(feature = "tracing")]
macro_rules! span {
    (in $parent:expr, $name:literal) => {
        transship_core::trace::enter_on_new_thread(
            $parent,
            |parent| tracing::debug_span!(target: "transship", parent: parent, $name),
        )
    };
    ($name:literal $($fields:tt)*) => {
        transship_core::trace::enter(|| tracing::debug_span!(target: "transship", $name $($fields)*))
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    (in $parent:expr, $name:literal) => {{
        let _ = $parent;
        transship_core::trace::Entered::none()
    }};
    ($($span:tt)*) => {
        transship_core::trace::Entered::none()
    };
}

pub(crate) use span;
