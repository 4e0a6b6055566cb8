//! [`TensorTree`] for the types of the standard library and of the crates that batches are made with.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::marker::PhantomData;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use half::{bf16, f16};
use indexmap::{IndexMap, IndexSet};
use num_complex::Complex;

use super::{Stop, TensorTree, Visitor};
use crate::{DType, DeviceId};

/// A type without tensors: it stays where it is and costs nothing.
macro_rules! leaf {
    ([$($generics:tt)*] $leaf:ty) => {
        impl<$($generics)*> TensorTree for $leaf {
            const MAY_HOLD_TENSORS: bool = false;

            #[inline]
            fn visit(&mut self, _: &mut Visitor<'_>) -> Result<(), Stop> {
                Ok(())
            }
        }
    };
}

macro_rules! leaves {
    ($($leaf:ty),+) => {$(
        leaf!([] $leaf);
    )+};
}

leaves!((), bool, char, f32, f64, f16, bf16, Complex<f32>, Complex<f64>);
leaves!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, Range<usize>);
leaves!(NonZero<i8>, NonZero<i16>, NonZero<i32>, NonZero<i64>, NonZero<i128>, NonZero<isize>);
leaves!(NonZero<u8>, NonZero<u16>, NonZero<u32>, NonZero<u64>, NonZero<u128>, NonZero<usize>);
leaves!(str, String, Arc<str>, OsString, PathBuf, Duration, Instant, SystemTime, DType, DeviceId);
leaf!(['a] &'a str);
leaf!(['a] Cow<'a, str>);
leaf!([T: ?Sized] PhantomData<T>);
// What is in a set cannot be replaced, and a tensor is no key.
leaf!([K] BTreeSet<K>);
leaf!([K, S] HashSet<K, S>);
leaf!([K, S] IndexSet<K, S>);

/// Shows the tensors of all `items`, one level down; does not look at one of them if they hold none.
#[inline]
fn visit_all<'t, T: TensorTree + 't>(
    items: impl IntoIterator<Item = &'t mut T>,
    visitor: &mut Visitor<'_>,
) -> Result<(), Stop> {
    if !T::MAY_HOLD_TENSORS {
        return Ok(());
    }
    visitor.nested(|visitor| items.into_iter().try_for_each(|item| item.visit(visitor)))
}

/// Collections: each gives an iterator over the items that may hold tensors.
macro_rules! collections {
    ($([$($generics:tt)*] $collection:ty, $item:ident, $items:ident;)*) => {$(
        impl<$($generics)*> TensorTree for $collection {
            const MAY_HOLD_TENSORS: bool = $item::MAY_HOLD_TENSORS;

            #[inline]
            fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
                visit_all(self.$items(), visitor)
            }
        }
    )*};
}

collections! {
    [T: TensorTree] [T], T, iter_mut;
    [T: TensorTree, const N: usize] [T; N], T, iter_mut;
    [T: TensorTree] Vec<T>, T, iter_mut;
    [T: TensorTree] VecDeque<T>, T, iter_mut;
    [T: TensorTree] Option<T>, T, iter_mut;
    [K, V: TensorTree] BTreeMap<K, V>, V, values_mut;
    [K, V: TensorTree, S] HashMap<K, V, S>, V, values_mut;
    [K, V: TensorTree, S] IndexMap<K, V, S>, V, values_mut;
}

impl<T: TensorTree + ?Sized> TensorTree for Box<T> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        if !Self::MAY_HOLD_TENSORS {
            return Ok(());
        }
        visitor.nested(|visitor| (**self).visit(visitor))
    }
}

impl<T: TensorTree, E: TensorTree> TensorTree for Result<T, E> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS || E::MAY_HOLD_TENSORS;

    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        match self {
            Ok(value) => visit_all([value], visitor),
            Err(error) => visit_all([error], visitor),
        }
    }
}

macro_rules! tuples {
    ($(($($item:ident)+))*) => {$(
        impl<$($item: TensorTree),+> TensorTree for ($($item,)+) {
            const MAY_HOLD_TENSORS: bool = $($item::MAY_HOLD_TENSORS)||+;

            #[inline]
            fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
                if !Self::MAY_HOLD_TENSORS {
                    return Ok(());
                }
                #[allow(non_snake_case, reason = "each item is named like its type")]
                visitor.nested(|visitor| {
                    let ($($item,)+) = self;
                    $($item.visit(visitor)?;)+
                    Ok(())
                })
            }
        }
    )*};
}

tuples! {
    (A)
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E F)
    (A B C D E F G)
    (A B C D E F G H)
    (A B C D E F G H I)
    (A B C D E F G H I J)
    (A B C D E F G H I J K)
    (A B C D E F G H I J K L)
}
