//! Visiting the tensors of any value, in place.

use crate::error::Error;
use crate::tensor::tensor::Tensor;
use crate::tree::outline::Part;
use crate::tree::pair::Pairs;
use crate::tree::paths::Paths;
use crate::tree::stack_growth;
use crate::tree::stack_growth::StackMark;
use crate::tree::step::Step;

/// The most levels of nesting that a visit goes down; more is [`Error::TooDeep`]. Boxes and types that hold themselves go so far
/// down on any stack; what is nested by hand should use [`Visitor::recursive`] for that.
pub const MAX_DEPTH: usize = 1024;

/// A value that holds tensors, somewhere.
///
/// A visit shows the same tensors each time, each once, in any order: a copy visits once to take the tensors and once more to
/// put their copies in, and every tensor knows which one it is. A visit that shows others is an [error](Error::TreeChanged),
/// never unsafe.
///
/// There is no `Box<dyn TensorTree>`: [`pair`](TensorTree::pair) takes a second structure of the same type. Instead, an enum that derives it holds one of several types, a
/// [`Value`](crate::Value) holds what is known only at run time, and functions for all structures are generic. Handles of several types go into one list as
/// `Box<dyn` [`PendingCopy`](crate::PendingCopy)`>`.
///
/// Derive it. By hand:
///
/// ```
/// use transship_core::{Stop, Tensor, TensorTree, Visitor};
///
/// struct Camera {
///     boxes: Tensor,
///     depths: Vec<Tensor>,
///     name: String,
/// }
///
/// impl TensorTree for Camera {
///     fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
///         visitor.nested(|visitor| {
///             self.boxes.visit(visitor)?;
///             self.depths.visit(visitor)
///         })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `TensorTree`",
    label = "transship cannot look for tensors in `{Self}`",
    note = "derive it with `#[derive(TensorTree)]`, or mark a field that holds no tensor with `#[tensor_tree(skip)]`",
    note = "a structure of arrays that derives `IntoTensors` is copied as the tensors that it becomes: `.into_tensors()`; a field of it is \
            marked with `#[tensor_tree(tensors)]`"
)]
pub trait TensorTree {
    /// `false` where values of this type can never hold a tensor: containers of them are not even looked into.
    const MAY_HOLD_TENSORS: bool = true;

    /// Shows every tensor of `self` to `visitor`.
    ///
    /// # Errors
    ///
    /// Passes on what the visitor returns.
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop>;

    /// Shows the tensors of `self` and those of `into`, which a [copy](crate::start_copy_into) fills, to `pairs`: each with the
    /// one in the same place.
    ///
    /// Derived, fields are paired by name and variants must agree; items of lists by index, entries of maps by key. An
    /// implementation by hand says it itself: nobody else knows whether the order of its visits means anything.
    ///
    /// # Errors
    ///
    /// Passes on what `pairs` returns: where the two differ, with the path to it. Unless it is implemented,
    /// [`Error::Unpaired`].
    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        let _ = (into, pairs);
        Err(Stop::new(Error::Unpaired { path: String::new(), type_name: std::any::type_name::<Self>() }))
    }

    /// Shows every tensor of `self` to `paths`, which knows the way to each: for saving, counting and printing them. It shows the
    /// same tensors as [`visit`](TensorTree::visit), and takes each by the steps that [`pair`](TensorTree::pair) takes.
    ///
    /// # Errors
    ///
    /// Passes on what `paths` returns. Unless it is implemented, [`Error::NotShown`].
    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        let _ = paths;
        if !Self::MAY_HOLD_TENSORS {
            return Ok(());
        }
        Err(Stop::new(Error::NotShown { path: String::new(), type_name: std::any::type_name::<Self>() }))
    }
}

/// Goes through a [`TensorTree`]; counts the depth, so that nesting ends in an error and not at the end of the stack.
pub struct Visitor<'a> {
    pub(crate) descent: Descent,
    pub(crate) sink: &'a mut dyn FnMut(&mut Tensor) -> Result<(), Stop>,
    /// What structures that are paired in order must have in common.
    pub(crate) outline: Option<&'a mut Vec<Part>>,
}

/// How far down in a structure somebody is.
pub(crate) struct Descent {
    pub(crate) depth: usize,
    pub(crate) stack: StackMark,
}

/// A visit was stopped. Pass it on with `?`.
#[derive(Debug)]
pub struct Stop(Box<Stopped>);

#[derive(Debug)]
struct Stopped {
    reason: Error,
    /// Where, as far as it is known: each level that passes it on adds its step in front.
    path: String,
}

impl<'a> Visitor<'a> {
    /// A visitor that shows every tensor to `sink`.
    pub fn new(sink: &'a mut dyn FnMut(&mut Tensor) -> Result<(), Stop>) -> Self {
        Self { descent: Descent::here(), sink, outline: None }
    }

    /// Shows one tensor.
    ///
    /// # Errors
    ///
    /// What the sink returns.
    #[inline]
    pub fn tensor(&mut self, tensor: &mut Tensor) -> Result<(), Stop> {
        (self.sink)(tensor)
    }

    /// Goes one level down. Every type that holds others visits them through this.
    ///
    /// # Errors
    ///
    /// Below [`MAX_DEPTH`] levels or where the stack of the thread comes to its end, and what `inside` returns.
    #[inline]
    pub fn nested(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.descent.down()?;
        let result = inside(self);
        self.descent.up();
        result
    }

    /// The same for types that may hold values of their own type, such as the nodes of a tree: where the stack of the thread
    /// comes to its end, `inside` runs on more of it.
    ///
    /// # Errors
    ///
    /// Below [`MAX_DEPTH`] levels, and what `inside` returns.
    #[inline]
    pub fn recursive(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.on_enough_stack(|visitor| visitor.nested(inside))
    }

    /// The same on this level.
    #[inline]
    pub(crate) fn on_enough_stack(
        &mut self,
        inside: impl FnOnce(&mut Self) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if self.descent.stack.is_close() { self.on_more_stack(inside) } else { inside(self) }
    }

    #[cold]
    fn on_more_stack(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        stack_growth::with_enough(|stack| {
            let outer = std::mem::replace(&mut self.descent.stack, stack);
            let result = inside(self);
            self.descent.stack = outer;
            result
        })
    }

    /// Says which variant of an enum is visited, for structures that are [paired in order](Pairs::in_order). Costs nothing
    /// otherwise.
    #[inline]
    pub fn variant(&mut self, name: &'static str) {
        self.note(|| Part::Variant(name));
    }

    #[inline]
    pub(crate) fn note(&mut self, part: impl FnOnce() -> Part) {
        if let Some(outline) = &mut self.outline {
            outline.push(part());
        }
    }
}

impl Descent {
    #[inline]
    pub(crate) fn here() -> Self {
        Self { depth: 0, stack: StackMark::here() }
    }

    #[inline]
    pub(crate) fn down(&mut self) -> Result<(), Stop> {
        if self.depth == MAX_DEPTH {
            return Err(Stop::new(Error::TooDeep { limit: MAX_DEPTH }));
        }
        if self.stack.is_passed() {
            let limit = self.depth;
            self.stack = self.stack.renewed().ok_or_else(|| Stop::new(Error::TooDeep { limit }))?;
        }
        self.depth += 1;
        Ok(())
    }

    #[inline]
    pub(crate) fn up(&mut self) {
        self.depth -= 1;
    }
}

impl Stop {
    /// Stops a visit for a reason.
    #[cold]
    pub fn new(reason: Error) -> Self {
        Self(Box::new(Stopped { reason, path: String::new() }))
    }

    /// The reason, with the path to where it was found if it has room for one.
    pub fn into_reason(self) -> Error {
        let Stopped { reason, path } = *self.0;
        reason.at(path)
    }

    /// The same, found one step down from here.
    pub(crate) fn below(mut self, step: Step<'_>) -> Self {
        self.0.path.insert_str(0, &step.to_string());
        self
    }
}

/// Shows every tensor of `tree` to `look`, in the order of a copy.
///
/// # Errors
///
/// [`Error::TooDeep`], and what `look` returns.
pub fn for_each_tensor<S: TensorTree + ?Sized>(
    tree: &mut S,
    mut look: impl FnMut(&mut Tensor) -> crate::error::Result<()>,
) -> crate::error::Result<()> {
    let mut sink = |tensor: &mut Tensor| look(tensor).map_err(Stop::new);
    tree.visit(&mut Visitor::new(&mut sink)).map_err(Stop::into_reason)
}

impl TensorTree for Tensor {
    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.tensor(self)
    }

    #[inline]
    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        pairs.tensors(self, into)
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        paths.tensor(self)
    }
}
