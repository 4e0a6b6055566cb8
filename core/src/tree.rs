//! Visiting the tensors of any value, in place.

mod impls;
mod value;

pub use value::{Key, Nested, OtherKey, Value};

use crate::{Error, Tensor};

/// The most levels of nesting that a visit goes down; more is [`Error::TooDeep`].
pub const MAX_DEPTH: usize = 1024;

/// A value that holds tensors, somewhere.
///
/// A visit shows every [`Tensor`] to the visitor, in an order that depends on the value alone: a copy visits once to
/// take the tensors and once more to put their copies in. A visit that breaks this is an
/// [error](Error::TreeChanged), never unsafe.
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
    note = "derive it with `#[derive(TensorTree)]`, or mark a field that holds no tensor with `#[tensor_tree(skip)]`"
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
}

/// Goes through a [`TensorTree`]; counts the depth, so that nesting ends in an error and not at the end of the stack.
pub struct Visitor<'a> {
    depth: usize,
    sink: &'a mut dyn FnMut(&mut Tensor) -> Result<(), Stop>,
}

/// A visit was stopped. Pass it on with `?`.
#[derive(Debug)]
pub struct Stop(pub(crate) Error);

impl<'a> Visitor<'a> {
    /// A visitor that shows every tensor to `sink`.
    pub fn new(sink: &'a mut dyn FnMut(&mut Tensor) -> Result<(), Stop>) -> Self {
        Self { depth: 0, sink }
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
    /// Below [`MAX_DEPTH`] levels, and what `inside` returns.
    #[inline]
    pub fn nested(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        if self.depth == MAX_DEPTH {
            return Err(Stop(Error::TooDeep { limit: MAX_DEPTH }));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }
}

impl Stop {
    /// Stops a visit for a reason.
    pub fn new(reason: Error) -> Self {
        Self(reason)
    }

    /// The reason.
    pub fn into_reason(self) -> Error {
        self.0
    }
}

/// Shows every tensor of `tree` to `look`, in the order of a copy.
///
/// # Errors
///
/// [`Error::TooDeep`], and what `look` returns.
pub fn for_each_tensor<S: TensorTree + ?Sized>(
    tree: &mut S,
    mut look: impl FnMut(&mut Tensor) -> crate::Result<()>,
) -> crate::Result<()> {
    let mut sink = |tensor: &mut Tensor| look(tensor).map_err(Stop);
    tree.visit(&mut Visitor::new(&mut sink)).map_err(Stop::into_reason)
}

impl TensorTree for Tensor {
    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.tensor(self)
    }
}
