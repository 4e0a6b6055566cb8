//! Structures of burn's tensors.

use burn_cubecl::Cube;
use burn_dispatch::DispatchTensor;
use burn_tensor::Tensor;

use crate::element::Kind;
use crate::error::Error;
use crate::loan::Refused;
use crate::primitive::Primitive;
use crate::to_burn::Wanted;

/// What [`SharedDevice::to_burn_all`](crate::SharedDevice::to_burn_all) makes and [`SharedDevice::from_burn`](crate::SharedDevice::from_burn)
/// takes: a tensor of burn, of any rank and [`Kind`], and tuples, arrays, `Vec` and `Option` of such.
pub trait BurnTree: sealed::Sealed + Sized {
    /// The same structure of transship's tensors.
    type Tree;
    /// The structure without its tensors.
    #[doc(hidden)]
    type Frame;

    /// Appends to `wanted` what the tensors of `tree` are to become.
    #[doc(hidden)]
    fn list<'a>(tree: &'a Self::Tree, wanted: &mut Vec<Wanted<'a>>) -> Self::Frame;

    /// The structure with the next ones of `made`; `None` if these are too few.
    #[doc(hidden)]
    fn fill(frame: Self::Frame, made: &mut dyn Iterator<Item = Primitive>) -> Option<Self>;

    /// Appends the tensors to `tensors`.
    #[doc(hidden)]
    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame;

    /// transship's structure with the next ones of `lent`; `None` if these are too few.
    #[doc(hidden)]
    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Tree>;

    /// Where tensor number `*number` is; if that is behind these, `*number` is less by them.
    #[doc(hidden)]
    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String>;
}

/// With the place in the structure.
pub(crate) fn located<T: BurnTree>(frame: &T::Frame, Refused { number, error }: Refused) -> Error {
    match number.and_then(|mut number| T::path(frame, &mut number)) {
        Some(path) if !path.is_empty() => Error::InStructure { path, error: Box::new(error) },
        _ => error,
    }
}

impl<const D: usize, K: Kind> sealed::Sealed for Tensor<D, K> {}

impl<const D: usize, K: Kind> BurnTree for Tensor<D, K> {
    type Tree = transship::Tensor;
    type Frame = ();

    fn list<'a>(tree: &'a transship::Tensor, wanted: &mut Vec<Wanted<'a>>) {
        wanted.push(Wanted::of::<D, K>(tree));
    }

    fn fill((): (), made: &mut dyn Iterator<Item = Primitive>) -> Option<Self> {
        made.next().map(Self::from_primitive::<Cube>)
    }

    fn take(self, tensors: &mut Vec<DispatchTensor>) {
        tensors.push(self.into_dispatch());
    }

    fn put((): (), lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<transship::Tensor> {
        lent.next()
    }

    fn path((): &(), number: &mut usize) -> Option<String> {
        let is_here = *number == 0;
        *number = number.saturating_sub(1);
        is_here.then(String::new)
    }
}

impl<T: BurnTree> sealed::Sealed for Option<T> {}

impl<T: BurnTree> BurnTree for Option<T> {
    type Tree = Option<T::Tree>;
    type Frame = Option<T::Frame>;

    fn list<'a>(tree: &'a Self::Tree, wanted: &mut Vec<Wanted<'a>>) -> Self::Frame {
        tree.as_ref().map(|inner| T::list(inner, wanted))
    }

    fn fill(frame: Self::Frame, made: &mut dyn Iterator<Item = Primitive>) -> Option<Self> {
        match frame {
            Some(inner) => T::fill(inner, made).map(Some),
            None => Some(None),
        }
    }

    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
        self.map(|inner| inner.take(tensors))
    }

    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Tree> {
        match frame {
            Some(inner) => T::put(inner, lent).map(Some),
            None => Some(None),
        }
    }

    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String> {
        frame.as_ref().and_then(|inner| T::path(inner, number))
    }
}

impl<T: BurnTree> sealed::Sealed for Vec<T> {}

impl<T: BurnTree> BurnTree for Vec<T> {
    type Tree = Vec<T::Tree>;
    type Frame = Vec<T::Frame>;

    fn list<'a>(tree: &'a Self::Tree, wanted: &mut Vec<Wanted<'a>>) -> Self::Frame {
        tree.iter().map(|item| T::list(item, wanted)).collect()
    }

    fn fill(frame: Self::Frame, made: &mut dyn Iterator<Item = Primitive>) -> Option<Self> {
        frame.into_iter().map(|item| T::fill(item, made)).collect()
    }

    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
        self.into_iter().map(|item| item.take(tensors)).collect()
    }

    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Tree> {
        frame.into_iter().map(|item| T::put(item, lent)).collect()
    }

    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String> {
        path_of_item::<T>(frame, number)
    }
}

impl<T: BurnTree, const N: usize> sealed::Sealed for [T; N] {}

impl<T: BurnTree, const N: usize> BurnTree for [T; N] {
    type Tree = [T::Tree; N];
    type Frame = [T::Frame; N];

    fn list<'a>(tree: &'a Self::Tree, wanted: &mut Vec<Wanted<'a>>) -> Self::Frame {
        tree.each_ref().map(|item| T::list(item, wanted))
    }

    fn fill(frame: Self::Frame, made: &mut dyn Iterator<Item = Primitive>) -> Option<Self> {
        let items: Option<Vec<_>> = frame.into_iter().map(|item| T::fill(item, made)).collect();
        items?.try_into().ok()
    }

    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
        self.map(|item| item.take(tensors))
    }

    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Tree> {
        let items: Option<Vec<_>> = frame.into_iter().map(|item| T::put(item, lent)).collect();
        items?.try_into().ok()
    }

    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String> {
        path_of_item::<T>(frame, number)
    }
}

fn path_of_item<T: BurnTree>(items: &[T::Frame], number: &mut usize) -> Option<String> {
    let paths = items.iter().enumerate();
    { paths }.find_map(|(index, item)| T::path(item, number).map(|path| format!("[{index}]{path}")))
}

macro_rules! tuples {
    ($($($T:ident $index:tt),+;)*) => {$(
        impl<$($T: BurnTree),+> sealed::Sealed for ($($T,)+) {}

        impl<$($T: BurnTree),+> BurnTree for ($($T,)+) {
            type Tree = ($($T::Tree,)+);
            type Frame = ($($T::Frame,)+);

            fn list<'a>(tree: &'a Self::Tree, wanted: &mut Vec<Wanted<'a>>) -> Self::Frame {
                ($($T::list(&tree.$index, wanted),)+)
            }

            fn fill(frame: Self::Frame, made: &mut dyn Iterator<Item = Primitive>) -> Option<Self> {
                Some(($($T::fill(frame.$index, made)?,)+))
            }

            fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
                ($(self.$index.take(tensors),)+)
            }

            fn put(
                frame: Self::Frame,
                lent: &mut dyn Iterator<Item = transship::Tensor>,
            ) -> Option<Self::Tree> {
                Some(($($T::put(frame.$index, lent)?,)+))
            }

            fn path(frame: &Self::Frame, number: &mut usize) -> Option<String> {
                $(if let Some(path) = $T::path(&frame.$index, number) {
                    return Some(format!(concat!(".", $index, "{}"), path));
                })+
                None
            }
        }
    )*};
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11;
}

mod sealed {
    pub trait Sealed {}
}

#[cfg(test)]
mod tests {
    use burn_tensor::Int;

    use super::*;

    type Structure = (
        burn_tensor::Tensor<1>,
        [Vec<burn_tensor::Tensor<3, Int>>; 2],
        Option<burn_tensor::Tensor<2>>,
        (burn_tensor::Tensor<1>,),
    );

    fn located_at(number: usize) -> String {
        let frame = ((), [vec![(), ()], vec![()]], None, ((),));
        let error = Error::NotCopied { dtype: "QFloat".to_owned() };
        match located::<Structure>(&frame, Refused::at(number, error)) {
            Error::InStructure { path, error } if matches!(*error, Error::NotCopied { .. }) => path,
            other => format!("{other:?}"),
        }
    }

    /// Deliberate bug: what an item has of the tensors is not counted.
    #[test]
    fn an_error_says_which_tensor_it_is() {
        assert_eq!([0, 1, 2, 3, 4].map(located_at), [".0", ".1[0][0]", ".1[0][1]", ".1[1][0]", ".3.0"]);
    }

    #[test]
    fn an_error_of_one_tensor_or_of_all_has_no_place() {
        let error = || Error::NotCopied { dtype: "QFloat".to_owned() };
        let one = located::<burn_tensor::Tensor<2>>(&(), Refused::at(0, error()));
        let all = located::<Vec<burn_tensor::Tensor<2>>>(&vec![()], error().into());
        assert!([one, all].iter().all(|error| matches!(error, Error::NotCopied { .. })));
    }
}
