//! Visits of wide and deep types on small stacks. Here a failure ends the process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is a panic")]

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::thread;

use transship_core::{
    CopyOptions, CopyPolicy, Device, Error, MAX_DEPTH, Stop, Tensor, TensorTree, Visitor, for_each_tensor,
    start_copy,
};
use transship_derive::TensorTree;

/// A struct with many fields, the last of which holds the next one: a visit of it takes much stack.
macro_rules! wide {
    ($name:ident, $next:ty, $end:expr, $wrap:expr, { $($field:ident),+ }) => {
        #[derive(TensorTree)]
        #[tensor_tree(crate = "transship_core")]
        struct $name {
            $($field: Tensor,)+
            next: $next,
        }

        impl $name {
            const TENSORS: usize = [$(stringify!($field)),+].len();

            /// So many, one within the other; the shapes of the tensors say which is which.
            fn chain(length: usize) -> Box<Self> {
                let wide = |number, next| Box::new(Self { $($field: numbered(number),)+ next });
                (0..length - 1).rev().fold(wide(length - 1, $end), |next, number| wide(number, $wrap(next)))
            }
        }
    };
    ($name:ident, $next:ty, $end:expr, $wrap:expr) => {
        wide!($name, $next, $end, $wrap, {
            a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, c0, c1, c2, c3, c4, c5, c6, c7,
            c8, c9, d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, e0, e1, e2, e3, e4, e5, e6, e7, e8, e9, f0, f1, f2, f3, f4, f5,
            f6, f7, f8, f9
        });
    };
}

wide!(Boxed, Option<Box<Boxed>>, None, Some);
wide!(Listed, Vec<Self>, Vec::new(), |next: Box<Self>| vec![*next]);

/// An empty tensor whose shape has `number` in it.
fn numbered(number: usize) -> Tensor {
    Tensor::from_vec(Vec::<f32>::new(), &[number, 0]).unwrap()
}

const STACKS: [usize; 4] = [128 << 10, 512 << 10, 2 << 20, 8 << 20];

/// Runs `work` on a thread with so much stack.
fn on_stack<R: Send>(bytes: usize, work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        thread::Builder::new().stack_size(bytes).spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

/// Visits a chain of `length` links of `tensors` each.
fn check(tree: &mut impl TensorTree, length: usize, tensors: usize) {
    let mut seen = 0;
    for_each_tensor(tree, |tensor| {
        assert_eq!(tensor.shape(), [seen / tensors, 0]);
        seen += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, tensors * length);
}

/// Deliberate bug: a visit never looks how much stack is left.
#[test]
fn wide_and_deep_types_fit_any_stack() {
    // What there is below the limit on nesting: each is three levels, and a box around the first is one more.
    let length = MAX_DEPTH / 3;
    for stack in STACKS {
        let (mut root, mut longer) = (Boxed::chain(length), Boxed::chain(length + 1));
        on_stack(stack, || check(&mut root, length, Boxed::TENSORS));
        let options = CopyOptions::default().policy(CopyPolicy::Always);
        let copied = on_stack(stack, || start_copy(root, &Device::host(), options).unwrap().wait().unwrap());
        drop(copied);
        let too_deep = on_stack(stack, || for_each_tensor(&mut longer, |_| Ok(())));
        assert!(matches!(too_deep, Err(Error::TooDeep { limit: MAX_DEPTH })), "{too_deep:?}");
    }
}

/// Deliberate bug: the macro does not see that a type holds itself in something else than a box.
#[test]
fn types_that_hold_themselves_in_lists_fit_any_stack() {
    // Each is two levels.
    let length = MAX_DEPTH / 2 - 1;
    for stack in STACKS {
        let mut root = Listed::chain(length);
        on_stack(stack, || check(&mut root, length, Listed::TENSORS));
    }
}

/// Nested by hand, with much stack for each level.
struct ByHand {
    tensor: Tensor,
    next: Vec<ByHand>,
    recursive: bool,
}

impl TensorTree for ByHand {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        let room = black_box([0_u8; 8 << 10]);
        let Self { tensor, next, recursive } = self;
        let inside = |visitor: &mut Visitor<'_>| {
            tensor.visit(visitor)?;
            next.visit(visitor)
        };
        let result = if *recursive { visitor.recursive(inside) } else { visitor.nested(inside) };
        black_box(&room);
        result
    }
}

/// Deliberate bug: as the first one.
#[test]
fn types_that_do_not_say_that_they_are_recursive_are_too_deep_while_there_is_stack_left() {
    let chain = |recursive| {
        let link = |number, next| ByHand { tensor: numbered(number), next, recursive };
        (0..400).rev().fold(Vec::new(), |next, number| vec![link(number, next)])
    };
    for stack in [128 << 10, 512 << 10, 2 << 20] {
        on_stack(stack, || check(&mut chain(true), 400, 1));
        let result = on_stack(stack, || for_each_tensor(&mut chain(false), |_| Ok(())));
        let Err(Error::TooDeep { limit }) = result else {
            unreachable!("{stack} bytes of stack: {result:?}")
        };
        assert!((4..800).contains(&limit), "{limit} levels in {stack} bytes");
    }
    on_stack(16 << 20, || check(&mut chain(false), 400, 1));
}

/// What is trusted without a look, and what small stacks keep, is little enough for ordinary structures.
#[test]
fn ordinary_structures_fit_small_stacks() {
    let mut tree = vec![vec![vec![Some(Box::new((numbered(0), vec![numbered(0)])))]]];
    for stack in [64 << 10, 96 << 10, 128 << 10] {
        on_stack(stack, || check(&mut tree, 1, 2));
    }
}

/// What `visit` and the sink may do, they may do on the stack that was added as well.
#[test]
fn errors_and_panics_come_through_added_stack() {
    let length = MAX_DEPTH / 3;
    let mut root = Boxed::chain(length);
    on_stack(512 << 10, || {
        let is_last = |tensor: &Tensor| tensor.shape()[0] == length - 1;
        let stop = |tensor: &mut Tensor| if is_last(tensor) { Err(Error::NotReady) } else { Ok(()) };
        let stopped = for_each_tensor(&mut root, stop);
        assert!(matches!(stopped, Err(Error::NotReady)), "{stopped:?}");
        let panic = |tensor: &mut Tensor| if is_last(tensor) { panic_any(17_u8) } else { Ok(()) };
        let panicked = catch_unwind(AssertUnwindSafe(|| for_each_tensor(&mut root, panic)));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&17_u8));
        check(&mut root, length, Boxed::TENSORS);
    });
}
