//! Structures of burn's tensors.

use burn_dispatch::DispatchTensor;
use burn_tensor::Tensor;
use burn_tensor::kind::Basic;

/// What [`SharedDevice::from_burn`](crate::SharedDevice::from_burn) takes: a tensor of burn, of any rank and kind, and tuples, arrays,
/// `Vec` and `Option` of what it takes.
pub trait Lend: sealed::Sealed + Sized {
    /// The same structure of transship's tensors.
    type Lent;
    /// The structure without its tensors.
    #[doc(hidden)]
    type Frame;

    /// Appends the tensors to `tensors`.
    #[doc(hidden)]
    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame;

    /// The structure with the next ones of `lent`; `None` if these are too few.
    #[doc(hidden)]
    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Lent>;

    /// Where tensor number `*number` is; if that is behind these, `*number` is less by them.
    #[doc(hidden)]
    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String>;
}

impl<const D: usize, K: Basic> sealed::Sealed for Tensor<D, K> {}

impl<const D: usize, K: Basic> Lend for Tensor<D, K> {
    type Lent = transship::Tensor;
    type Frame = ();

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

impl<T: Lend> sealed::Sealed for Option<T> {}

impl<T: Lend> Lend for Option<T> {
    type Lent = Option<T::Lent>;
    type Frame = Option<T::Frame>;

    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
        self.map(|inner| inner.take(tensors))
    }

    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Lent> {
        match frame {
            Some(inner) => T::put(inner, lent).map(Some),
            None => Some(None),
        }
    }

    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String> {
        frame.as_ref().and_then(|inner| T::path(inner, number))
    }
}

impl<T: Lend> sealed::Sealed for Vec<T> {}

impl<T: Lend> Lend for Vec<T> {
    type Lent = Vec<T::Lent>;
    type Frame = Vec<T::Frame>;

    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
        self.into_iter().map(|item| item.take(tensors)).collect()
    }

    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Lent> {
        frame.into_iter().map(|item| T::put(item, lent)).collect()
    }

    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String> {
        path_of_item::<T>(frame, number)
    }
}

impl<T: Lend, const N: usize> sealed::Sealed for [T; N] {}

impl<T: Lend, const N: usize> Lend for [T; N] {
    type Lent = [T::Lent; N];
    type Frame = [T::Frame; N];

    fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
        self.map(|item| item.take(tensors))
    }

    fn put(frame: Self::Frame, lent: &mut dyn Iterator<Item = transship::Tensor>) -> Option<Self::Lent> {
        let items: Option<Vec<_>> = frame.into_iter().map(|item| T::put(item, lent)).collect();
        items?.try_into().ok()
    }

    fn path(frame: &Self::Frame, number: &mut usize) -> Option<String> {
        path_of_item::<T>(frame, number)
    }
}

fn path_of_item<T: Lend>(items: &[T::Frame], number: &mut usize) -> Option<String> {
    let paths = items.iter().enumerate();
    { paths }.find_map(|(index, item)| T::path(item, number).map(|path| format!("[{index}]{path}")))
}

macro_rules! tuples {
    ($($($T:ident $index:tt),+;)*) => {$(
        impl<$($T: Lend),+> sealed::Sealed for ($($T,)+) {}

        impl<$($T: Lend),+> Lend for ($($T,)+) {
            type Lent = ($($T::Lent,)+);
            type Frame = ($($T::Frame,)+);

            fn take(self, tensors: &mut Vec<DispatchTensor>) -> Self::Frame {
                ($(self.$index.take(tensors),)+)
            }

            fn put(
                frame: Self::Frame,
                lent: &mut dyn Iterator<Item = transship::Tensor>,
            ) -> Option<Self::Lent> {
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
