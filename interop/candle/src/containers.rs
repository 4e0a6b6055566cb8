//! [`TensorTree`] for candle's tensors and the types of the standard library.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use candle_core::Tensor;
use transship::Step;

use crate::tree::{Paths, Stop, TensorTree, Visitor};

impl TensorTree for Tensor {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.tensor(self)
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        paths.tensor(self);
        Ok(())
    }
}

/// Types without tensors.
macro_rules! leaves {
    ($($leaf:ty),+) => {$(
        impl TensorTree for $leaf {
            const MAY_HOLD_TENSORS: bool = false;

            fn visit(&mut self, _: &mut Visitor<'_>) -> Result<(), Stop> {
                Ok(())
            }
        }
    )+};
}

leaves!((), bool, char, f32, f64, i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);
leaves!(&str, String, PathBuf, Duration, candle_core::DType);

/// Lists: each is gone through by index.
macro_rules! lists {
    ($([$($generics:tt)*] $list:ty;)*) => {$(
        impl<$($generics)*> TensorTree for $list {
            const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

            fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
                if !T::MAY_HOLD_TENSORS {
                    return Ok(());
                }
                visitor.nested(|visitor| self.iter_mut().try_for_each(|item| item.visit(visitor)))
            }

            fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
                let show = |paths: &mut Paths<'_>| {
                    self.iter().enumerate().try_for_each(|(index, item)| paths.part(Step::Index(index), item))
                };
                if T::MAY_HOLD_TENSORS { paths.nested(show) } else { Ok(()) }
            }
        }
    )*};
}

lists! {
    [T: TensorTree, const N: usize] [T; N];
    [T: TensorTree] Vec<T>;
    [T: TensorTree] VecDeque<T>;
}

/// Maps: the tensors are in their values.
macro_rules! maps {
    ($([$($generics:tt)*] $map:ty;)*) => {$(
        impl<$($generics)*, V: TensorTree> TensorTree for $map {
            const MAY_HOLD_TENSORS: bool = V::MAY_HOLD_TENSORS;

            fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
                if !V::MAY_HOLD_TENSORS {
                    return Ok(());
                }
                visitor.nested(|visitor| self.values_mut().try_for_each(|value| value.visit(visitor)))
            }

            fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
                let show = |paths: &mut Paths<'_>| {
                    self.iter().try_for_each(|(key, value)| paths.part(Step::Key(key), value))
                };
                if V::MAY_HOLD_TENSORS { paths.nested(show) } else { Ok(()) }
            }
        }
    )*};
}

maps! {
    [K: Debug] BTreeMap<K, V>;
    [K: Debug, S] HashMap<K, V, S>;
}

impl<T: TensorTree> TensorTree for Option<T> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.as_mut().map_or(Ok(()), |value| visitor.nested(|visitor| value.visit(visitor)))
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        self.as_ref().map_or(Ok(()), |value| paths.nested(|paths| value.show(paths)))
    }
}

impl<T: TensorTree + ?Sized> TensorTree for Box<T> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.nested(|visitor| (**self).visit(visitor))
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        paths.nested(|paths| (**self).show(paths))
    }
}

macro_rules! tuples {
    ($(($($part:ident $name:literal),+))+) => {$(
        impl<$($part: TensorTree),+> TensorTree for ($($part,)+) {
            const MAY_HOLD_TENSORS: bool = $($part::MAY_HOLD_TENSORS)||+;

            #[allow(non_snake_case)]
            fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
                let ($($part,)+) = self;
                visitor.nested(|visitor| {
                    $($part.visit(visitor)?;)+
                    Ok(())
                })
            }

            #[allow(non_snake_case)]
            fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
                let ($($part,)+) = self;
                paths.nested(|paths| {
                    $(paths.part(Step::Field($name), $part)?;)+
                    Ok(())
                })
            }
        }
    )+};
}

tuples! {
    (A "0")
    (A "0", B "1")
    (A "0", B "1", C "2")
    (A "0", B "1", C "2", D "3")
    (A "0", B "1", C "2", D "3", E "4")
    (A "0", B "1", C "2", D "3", E "4", F "5")
}
