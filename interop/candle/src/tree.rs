//! Finds candle's tensors in any structure.
//!
//! The names are those of `transship`, so that its derive writes the implementations: `#[tensor_tree(crate = "transship_candle")]`.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::marker::PhantomData;

use candle_core::Tensor;
use transship::Step;

use crate::error::Error;

/// The most levels of nesting that a visit goes down; more is [`Error::TooDeep`].
pub const MAX_DEPTH: usize = 128;

/// A value that holds tensors of candle, somewhere: `Vec`, `Option`, arrays, tuples, maps by their values, boxes, and structs and
/// enums by derive. What is no tensor stays untouched.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use transship_candle::TensorTree;
///
/// #[derive(TensorTree)]
/// #[tensor_tree(crate = "transship_candle")]
/// struct Batch {
///     images: Tensor,
///     boxes: Vec<Option<Tensor>>,
///     epoch: usize,
/// }
///
/// let images = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)?;
/// let batch = Batch { images, boxes: vec![None], epoch: 3 };
/// let batch = transship_candle::start_copy(batch, &Device::Cpu)?.wait()?;
/// assert_eq!(batch.epoch, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `transship_candle::TensorTree`",
    label = "transship-candle cannot look for tensors in `{Self}`",
    note = "derive it with `#[derive(TensorTree)] #[tensor_tree(crate = \"transship_candle\")]`, or mark a field that holds no \
            tensor with `#[tensor_tree(skip)]`"
)]
pub trait TensorTree {
    /// `false` where values of this type can never hold a tensor: containers of them are not even looked into.
    const MAY_HOLD_TENSORS: bool = true;

    /// Shows every tensor of `self` to `visitor`: the same ones each time, each once, in the same order. A place that is shown twice is
    /// [`Error::TreeChanged`] where the copies are put, since it has its copy by then; clones in two places are two tensors.
    ///
    /// # Errors
    ///
    /// Passes on what the visitor returns.
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop>;

    /// Shows the same tensors with the steps to each, for errors that say where a tensor is.
    ///
    /// # Errors
    ///
    /// Passes on what `paths` returns.
    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        let _ = paths;
        Ok(())
    }

    /// What the derive writes for `transship`'s copies into held memory. Nothing calls it here: no value of [`Pairs`] exists.
    ///
    /// # Errors
    ///
    /// None.
    #[doc(hidden)]
    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        let _ = into;
        match pairs.never {}
    }
}

/// Goes through a [`TensorTree`], and counts the depth: nesting ends in an error and not at the end of the stack.
pub struct Visitor<'a> {
    depth: usize,
    sink: &'a mut dyn FnMut(&mut Tensor) -> Result<(), Stop>,
}

impl<'a> Visitor<'a> {
    pub(crate) fn new(sink: &'a mut dyn FnMut(&mut Tensor) -> Result<(), Stop>) -> Self {
        Self { depth: 0, sink }
    }

    /// Shows one tensor.
    ///
    /// # Errors
    ///
    /// Why the visit stops.
    pub fn tensor(&mut self, tensor: &mut Tensor) -> Result<(), Stop> {
        (self.sink)(tensor)
    }

    /// Goes one level down. Every type that holds others visits them through this.
    ///
    /// # Errors
    ///
    /// Below [`MAX_DEPTH`] levels, and what `inside` returns.
    pub fn nested(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.depth = one_down(self.depth)?;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    /// As [`nested`](Self::nested): what the derive calls for a type that holds values of its own type.
    ///
    /// # Errors
    ///
    /// As [`nested`](Self::nested).
    pub fn recursive(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.nested(inside)
    }

    /// What the derive calls for a variant of an enum. Nothing here asks for it.
    pub fn variant(&mut self, name: &'static str) {
        let _ = name;
    }
}

/// Goes through a structure without changing it, and knows the way to where it is.
pub struct Paths<'a> {
    depth: usize,
    path: String,
    sink: &'a mut dyn FnMut(&str, &Tensor),
}

impl Paths<'_> {
    /// Shows one tensor.
    pub fn tensor(&mut self, tensor: &Tensor) {
        (self.sink)(&self.path, tensor);
    }

    /// Goes one level down.
    ///
    /// # Errors
    ///
    /// Below [`MAX_DEPTH`] levels, and what `inside` returns.
    pub fn nested(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.depth = one_down(self.depth)?;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    /// Shows the tensors of a part of a structure.
    ///
    /// # Errors
    ///
    /// What showing them returns.
    pub fn part<T: TensorTree + ?Sized>(&mut self, step: Step<'_>, value: &T) -> Result<(), Stop> {
        let length = self.path.len();
        // Writing to a string does not fail.
        let _ = write!(self.path, "{step}");
        let result = value.show(self);
        self.path.truncate(length);
        result
    }
}

/// Nothing: see [`TensorTree::pair`].
#[doc(hidden)]
pub struct Pairs<'a> {
    never: Infallible,
    lifetime: PhantomData<&'a ()>,
}

#[doc(hidden)]
impl Pairs<'_> {
    pub fn nested(&mut self, _: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        let _ = self.lifetime;
        match self.never {}
    }

    pub fn part<T: ?Sized>(&mut self, _: Step<'_>, _: &mut T, _: &mut T) -> Result<(), Stop> {
        match self.never {}
    }

    pub fn differ(&mut self, _: &str, _: &str) -> Stop {
        match self.never {}
    }
}

/// A visit was stopped. Pass it on with `?`.
#[derive(Debug)]
pub struct Stop(Box<Error>);

impl Stop {
    /// Stops a visit for a reason.
    pub fn new(reason: Error) -> Self {
        Self(Box::new(reason))
    }

    /// The reason.
    pub fn into_reason(self) -> Error {
        *self.0
    }
}

/// Shows every tensor of `tree` to `look`, in the order of its visits.
pub(crate) fn for_each_tensor<S: TensorTree + ?Sized>(
    tree: &mut S,
    mut look: impl FnMut(&mut Tensor) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut sink = |tensor: &mut Tensor| look(tensor).map_err(Stop::new);
    tree.visit(&mut Visitor::new(&mut sink)).map_err(Stop::into_reason)
}

/// Where `wanted` is in `tree`; empty if that is all of it, or the tree does not tell.
pub(crate) fn path_to<S: TensorTree + ?Sized>(tree: &S, wanted: &Tensor) -> String {
    let mut found = None;
    let mut sink = |path: &str, tensor: &Tensor| {
        if found.is_none() && tensor.id() == wanted.id() {
            found = Some(path.to_owned());
        }
    };
    // One that stops shows what comes before that.
    let _ = tree.show(&mut Paths { depth: 0, path: String::new(), sink: &mut sink });
    found.unwrap_or_default()
}

fn one_down(depth: usize) -> Result<usize, Stop> {
    if depth == MAX_DEPTH { Err(Stop::new(Error::TooDeep { limit: MAX_DEPTH })) } else { Ok(depth + 1) }
}
