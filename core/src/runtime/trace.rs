//! Spans of `tracing`, with the feature of that name. Without it nothing of this is compiled in.
//!
//! A subscriber is the program's code, so it is called where no lock of ours is held (`foreign::observe`). The crate of files has spans as well, by what is
//! public here.

#[cfg(not(feature = "tracing"))]
pub use off::*;
#[cfg(feature = "tracing")]
pub use on::*;

/// Enters a span, which ends when what this returns is dropped: a name, and fields as `tracing` has them. `in` names the
/// [`Parent`] where that is not the span of this thread.
#[cfg(feature = "tracing")]
macro_rules! span {
    (in $parent:expr, $name:literal) => {
        $crate::runtime::trace::enter_in(
            &$parent,
            |parent| tracing::debug_span!(target: "transship", parent: parent, $name),
        )
    };
    ($name:literal $($fields:tt)*) => {
        $crate::runtime::trace::enter(|| tracing::debug_span!(target: "transship", $name $($fields)*))
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    (in $parent:expr, $($span:tt)*) => {{
        let _ = &$parent;
        $crate::runtime::trace::Entered
    }};
    ($($span:tt)*) => {
        $crate::runtime::trace::Entered
    };
}

pub(crate) use span;

#[cfg(feature = "tracing")]
mod on {
    use std::sync::Arc;

    use tracing::dispatcher::{DefaultGuard, Dispatch, get_default, set_default};
    use tracing::level_filters::LevelFilter;
    use tracing::span::{EnteredSpan, Id, Span};
    use tracing::subscriber::NoSubscriber;
    use tracing::{Level, Value};

    use super::super::foreign;
    use super::super::foreign::Place;

    /// A span that this thread is in.
    pub struct Entered(Option<EnteredSpan>);

    /// The same on a thread of ours, with the subscriber of the parent.
    pub struct EnteredIn {
        // Left before the subscriber is.
        _span: Entered,
        _scope: Scope,
    }

    /// The subscriber of this thread, until it is dropped.
    struct Scope(Option<DefaultGuard>);

    /// The span that work on other threads belongs to. Clones are one.
    #[derive(Clone)]
    pub struct Parent(Option<Arc<Held>>);

    struct Held(Option<(Span, Dispatch)>);

    /// Whether somebody may look on.
    #[inline]
    fn is_watched() -> bool {
        Level::DEBUG <= LevelFilter::current()
    }

    /// Enters a span.
    #[inline]
    pub fn enter(make: impl FnOnce() -> Span) -> Entered {
        // What who looks on copies is not shown.
        let is_shown = is_watched() && !foreign::is_observed();
        Entered(if is_shown { foreign::observe(|| make().entered()) } else { None })
    }

    /// Enters a span on a thread of ours, within `parent`.
    #[inline]
    pub fn enter_in(parent: &Parent, make: impl FnOnce(Id) -> Span) -> EnteredIn {
        enter_with(parent, may_change_subscriber, make)
    }

    /// The same on a thread that another crate has started for a call, where nobody is being called yet.
    pub fn enter_on_new_thread(parent: &Parent, make: impl FnOnce(Id) -> Span) -> EnteredIn {
        enter_with(parent, || true, make)
    }

    #[inline]
    fn enter_with(
        parent: &Parent,
        may_change_subscriber: impl FnOnce() -> bool,
        make: impl FnOnce(Id) -> Span,
    ) -> EnteredIn {
        let held = parent.0.as_deref().and_then(|held| held.0.as_ref());
        let Some((id, subscriber)) = held.and_then(|(span, subscriber)| Some((span.id()?, subscriber)))
        else {
            return EnteredIn { _span: Entered(None), _scope: Scope(None) };
        };
        let scope =
            Scope(may_change_subscriber().then(|| foreign::observe(|| set_default(subscriber))).flatten());
        EnteredIn { _span: enter(|| make(id)), _scope: scope }
    }

    /// Whether the subscriber of this thread can be another one for a while: not while it is being called, by us or by the program. A
    /// thread of the program shows that, or that it has none, by having none now.
    fn may_change_subscriber() -> bool {
        let has_one =
            || foreign::observe(|| get_default(|current| !current.is::<NoSubscriber>())) == Some(true);
        !foreign::is_observed() && (foreign::place() == Place::Ours || has_one())
    }

    impl Entered {
        /// No span.
        pub fn none() -> Self {
            Self(None)
        }

        /// Leaves it.
        #[inline]
        pub fn end(self) {}

        /// For what other threads do.
        #[inline]
        pub fn as_parent(&self) -> Parent {
            let held = |span: &EnteredSpan| {
                let subscriber = span.with_subscriber(|(_, subscriber)| subscriber.clone())?;
                Some(Arc::new(Held(Some(((**span).clone(), subscriber)))))
            };
            Parent(self.0.as_ref().and_then(|span| foreign::observe(|| held(span)).flatten()))
        }

        /// Gives a field, declared empty, its value.
        #[inline]
        pub fn record<V: Value>(&self, field: &'static str, value: impl FnOnce() -> V) {
            if let Some(span) = &self.0 {
                foreign::observe(|| span.record(field, value()));
            }
        }
    }

    impl Drop for Entered {
        #[inline]
        fn drop(&mut self) {
            if let Some(span) = self.0.take() {
                foreign::observe(|| drop(span));
            }
        }
    }

    impl Drop for Scope {
        #[inline]
        fn drop(&mut self) {
            if let Some(scope) = self.0.take() {
                foreign::observe(|| drop(scope));
            }
        }
    }

    impl Parent {
        /// No parent.
        pub fn none() -> Self {
            Self(None)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            if let Some(held) = self.0.take() {
                foreign::observe(|| drop(held));
            }
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    /// No span.
    pub struct Entered;

    /// No parent.
    #[derive(Clone)]
    pub struct Parent;

    impl Parent {
        /// No parent.
        pub fn none() -> Self {
            Self
        }
    }

    impl Entered {
        /// No span.
        #[inline(always)]
        pub fn none() -> Self {
            Self
        }

        /// Nothing.
        #[inline(always)]
        pub fn end(self) {}

        /// No parent.
        #[inline(always)]
        pub fn as_parent(&self) -> Parent {
            Parent
        }

        /// Nothing.
        #[inline(always)]
        pub fn record<V>(&self, _: &'static str, _: impl FnOnce() -> V) {}
    }
}
