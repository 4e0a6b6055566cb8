//! Two structures of one type, gone through side by side.

use std::fmt;

use crate::error::{Error, count};
use crate::tensor::tensor::Tensor;
use crate::tree::outline::{Part, difference};
use crate::tree::stack_growth;
use crate::tree::step::Step;
use crate::tree::tensor_tree::{Descent, Stop, TensorTree, Visitor};

/// Goes through two structures side by side: one to copy, and one to copy it into.
///
/// ```
/// use transship_core::{Pairs, Step, Stop, Tensor, TensorTree, Visitor};
///
/// struct Camera {
///     boxes: Tensor,
///     depths: Vec<Tensor>,
/// }
///
/// impl TensorTree for Camera {
///     fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
///         visitor.nested(|visitor| {
///             self.boxes.visit(visitor)?;
///             self.depths.visit(visitor)
///         })
///     }
///
///     fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
///         pairs.nested(|pairs| {
///             pairs.part(Step::Field("boxes"), &mut self.boxes, &mut into.boxes)?;
///             pairs.part(Step::Field("depths"), &mut self.depths, &mut into.depths)
///         })
///     }
/// }
/// ```
pub struct Pairs<'a> {
    descent: Descent,
    sink: &'a mut dyn PairSink,
}

/// What is shown the tensors of both structures: of each pair the one to copy into first, but not always right before the other.
pub(crate) trait PairSink {
    /// Takes the next tensor to copy into.
    fn destination(&mut self, tensor: &mut Tensor) -> Result<(), Stop>;

    /// Takes the next tensor to copy.
    fn source(&mut self, tensor: &mut Tensor) -> Result<(), Stop>;
}

impl<'a> Pairs<'a> {
    pub(crate) fn new(sink: &'a mut dyn PairSink) -> Self {
        Self { descent: Descent::here(), sink }
    }

    /// Goes one level down. Every type that holds others pairs them through this. Where the stack of the thread comes to its end,
    /// `inside` runs on more of it.
    ///
    /// # Errors
    ///
    /// Below [`MAX_DEPTH`](crate::MAX_DEPTH) levels, and what `inside` returns.
    #[inline]
    pub fn nested(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        if self.descent.stack.is_close() { self.on_more_stack(inside) } else { self.one_down(inside) }
    }

    #[inline]
    fn one_down(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.descent.down()?;
        let result = inside(self);
        self.descent.up();
        result
    }

    #[cold]
    fn on_more_stack(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        stack_growth::with_enough(|stack| {
            let outer = std::mem::replace(&mut self.descent.stack, stack);
            let result = self.one_down(inside);
            self.descent.stack = outer;
            result
        })
    }

    /// Pairs a part of a structure with the part of the other one in the same place.
    ///
    /// # Errors
    ///
    /// What pairing them returns, with `step` in front of its path.
    #[inline]
    pub fn part<T: TensorTree + ?Sized>(
        &mut self,
        step: Step<'_>,
        value: &mut T,
        into: &mut T,
    ) -> Result<(), Stop> {
        match T::MAY_HOLD_TENSORS {
            true => value.pair(into, self).map_err(|stop| stop.below(step)),
            false => Ok(()),
        }
    }

    /// Pairs the tensors of both in the order in which visits show them.
    ///
    /// # Errors
    ///
    /// If the visits show another number of tensors, or lists, options or variants that differ; or if they go through a map,
    /// whose order says nothing: implement [`TensorTree::pair`] by [`part`](Pairs::part) then.
    pub fn in_order<T: TensorTree + ?Sized>(&mut self, value: &mut T, into: &mut T) -> Result<(), Stop> {
        let (mut sources, mut destinations) = (0_usize, 0_usize);
        let (mut outline, mut into_outline) = (Vec::new(), Vec::new());
        self.visit(into, &mut into_outline, |sink, tensor| {
            destinations += 1;
            sink.destination(tensor)
        })?;
        self.visit(value, &mut outline, |sink, tensor| {
            sources += 1;
            // Behind the last there is nothing to pair it with, and an error follows.
            if sources > destinations { Ok(()) } else { sink.source(tensor) }
        })?;
        let counts =
            || (sources != destinations).then(|| (count(sources, "tensor"), count(destinations, "tensor")));
        let differing = difference(&outline, &into_outline).or_else(counts);
        differing.map_or(Ok(()), |(value, into)| Err(self.differ(value, into)))
    }

    /// Where two structures differ: what each of them has in this place.
    #[cold]
    pub fn differ(&self, value: impl Into<String>, into: impl Into<String>) -> Stop {
        let (value, into) = (value.into(), into.into());
        Stop::new(Error::StructureMismatch { path: String::new(), value, into })
    }

    #[inline]
    pub(crate) fn tensors(&mut self, value: &mut Tensor, into: &mut Tensor) -> Result<(), Stop> {
        self.sink.destination(into)?;
        self.sink.source(value)
    }

    /// Pairs items by index.
    #[inline]
    pub(crate) fn items<'t, T: TensorTree + 't>(
        &mut self,
        value: impl ExactSizeIterator<Item = &'t mut T>,
        into: impl ExactSizeIterator<Item = &'t mut T>,
    ) -> Result<(), Stop> {
        if value.len() != into.len() {
            return Err(self.differ(count(value.len(), "item"), count(into.len(), "item")));
        }
        self.nested(|pairs| {
            let mut both = value.zip(into).enumerate();
            both.try_for_each(|(index, (value, into))| pairs.part(Step::Index(index), value, into))
        })
    }

    /// A key that only the map to copy has, or only the one to copy into.
    #[cold]
    pub(crate) fn lonely(&self, key: &dyn fmt::Debug, is_to_copy: bool) -> Stop {
        let (value, into) = if is_to_copy { ("an entry", "none") } else { ("no entry", "one") };
        self.differ(value, into).below(Step::Key(key))
    }

    fn visit<T: TensorTree + ?Sized>(
        &mut self,
        tree: &mut T,
        outline: &mut Vec<Part>,
        mut show: impl FnMut(&mut dyn PairSink, &mut Tensor) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let Self { descent: Descent { depth, stack }, sink } = self;
        let mut tensors = |tensor: &mut Tensor| show(&mut **sink, tensor);
        let descent = Descent { depth: *depth, stack: *stack };
        tree.visit(&mut Visitor { descent, sink: &mut tensors, outline: Some(outline) })
    }
}
