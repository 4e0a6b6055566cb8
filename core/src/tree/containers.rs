//! [`TensorTree`] for the types of the standard library and of the crates that batches are made with.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use half::{bf16, f16};
use indexmap::{IndexMap, IndexSet};
use num_complex::Complex;

use crate::device_id::DeviceId;
use crate::dtype::DType;
use crate::tree::outline::Part;
use crate::tree::pair::Pairs;
use crate::tree::paths::Paths;
use crate::tree::step::Step;
use crate::tree::tensor_tree::{Stop, TensorTree, Visitor};

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
    items: impl ExactSizeIterator<Item = &'t mut T>,
    visitor: &mut Visitor<'_>,
    part: impl FnOnce(usize) -> Part,
) -> Result<(), Stop> {
    if !T::MAY_HOLD_TENSORS {
        return Ok(());
    }
    visitor.note(|| part(items.len()));
    visitor.nested(|visitor| { items }.try_for_each(|item| item.visit(visitor)))
}

/// Lists: each is gone through by index.
macro_rules! lists {
    ($([$($generics:tt)*] $list:ty;)*) => {$(
        impl<$($generics)*> TensorTree for $list {
            const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

            #[inline]
            fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
                visit_all(self.iter_mut(), visitor, Part::Items)
            }

            fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
                pairs.items(self.iter_mut(), into.iter_mut())
            }

            fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
                paths.items(self.iter())
            }
        }
    )*};
}

lists! {
    [T: TensorTree] [T];
    [T: TensorTree, const N: usize] [T; N];
    [T: TensorTree] Vec<T>;
    [T: TensorTree] VecDeque<T>;
}

/// Maps: the tensors are in their values, and those of two maps belong together by their keys.
macro_rules! maps {
    ($([$($generics:tt)*] $map:ty;)*) => {$(
        impl<$($generics)*, V: TensorTree> TensorTree for $map {
            const MAY_HOLD_TENSORS: bool = V::MAY_HOLD_TENSORS;

            #[inline]
            fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
                visit_all(self.values_mut(), visitor, Part::Entries)
            }

            fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
                pairs.nested(|pairs| {
                    for (key, value) in self.iter_mut() {
                        match into.get_mut(key) {
                            Some(into) => pairs.part(Step::Key(key), value, into)?,
                            None => return Err(pairs.lonely(key, true)),
                        }
                    }
                    let further = || into.keys().find(|key| !self.contains_key(*key));
                    let further = if into.len() > self.len() { further() } else { None };
                    further.map_or(Ok(()), |key| Err(pairs.lonely(key, false)))
                })
            }

            fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
                paths.entries(self.iter())
            }
        }
    )*};
}

maps! {
    [K: Ord + Debug] BTreeMap<K, V>;
    [K: Eq + Hash + Debug, S: BuildHasher] HashMap<K, V, S>;
    [K: Eq + Hash + Debug, S: BuildHasher] IndexMap<K, V, S>;
}

impl<T: TensorTree> TensorTree for Option<T> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visit_all(self.iter_mut(), visitor, Part::Items)
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        match (self, into) {
            (Some(value), Some(into)) => pairs.nested(|pairs| value.pair(into, pairs)),
            (None, None) => Ok(()),
            (Some(_), None) => Err(pairs.differ("Some", "None")),
            (None, Some(_)) => Err(pairs.differ("None", "Some")),
        }
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        self.as_ref().map_or(Ok(()), |value| paths.nested(|paths| value.show(paths)))
    }
}

impl<T: TensorTree + ?Sized> TensorTree for Box<T> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        if !Self::MAY_HOLD_TENSORS {
            return Ok(());
        }
        visitor.recursive(|visitor| (**self).visit(visitor))
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        pairs.nested(|pairs| (**self).pair(into, pairs))
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        paths.nested(|paths| (**self).show(paths))
    }
}

/// A structure that others may share. What is visited becomes this owner's own: where somebody else holds the structure, it is cloned
/// ([`Arc::make_mut`]), and the others keep the tensors that it has. Clones of a tensor lie in the same memory, so that a copy finds them
/// equal and copies that memory once; but two owners of one structure have two structures afterwards, equal ones.
impl<T: TensorTree + Clone> TensorTree for Arc<T> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS;

    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        if !Self::MAY_HOLD_TENSORS {
            return Ok(());
        }
        visitor.recursive(|visitor| Self::make_mut(self).visit(visitor))
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        pairs.nested(|pairs| Self::make_mut(self).pair(Self::make_mut(into), pairs))
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        paths.nested(|paths| (**self).show(paths))
    }
}

impl<T: TensorTree, E: TensorTree> TensorTree for Result<T, E> {
    const MAY_HOLD_TENSORS: bool = T::MAY_HOLD_TENSORS || E::MAY_HOLD_TENSORS;

    #[inline]
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        if !Self::MAY_HOLD_TENSORS {
            return Ok(());
        }
        visitor.variant(if self.is_ok() { "Ok" } else { "Err" });
        visitor.nested(|visitor| match self {
            Ok(value) => value.visit(visitor),
            Err(error) => error.visit(visitor),
        })
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        pairs.nested(|pairs| match (self, into) {
            (Ok(value), Ok(into)) => value.pair(into, pairs),
            (Err(value), Err(into)) => value.pair(into, pairs),
            (Ok(_), Err(_)) => Err(pairs.differ("Ok", "Err")),
            (Err(_), Ok(_)) => Err(pairs.differ("Err", "Ok")),
        })
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        paths.nested(|paths| match self {
            Ok(value) => value.show(paths),
            Err(error) => error.show(paths),
        })
    }
}

macro_rules! tuples {
    ($(($($item:ident $into:ident $number:literal)+))*) => {$(
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

            #[allow(non_snake_case, reason = "each item is named like its type")]
            fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
                pairs.nested(|pairs| {
                    let ($($item,)+) = self;
                    let ($($into,)+) = into;
                    $(pairs.part(Step::Field($number), $item, $into)?;)+
                    Ok(())
                })
            }

            #[allow(non_snake_case, reason = "each item is named like its type")]
            fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
                paths.nested(|paths| {
                    let ($($item,)+) = self;
                    $(paths.part(Step::Field($number), $item)?;)+
                    Ok(())
                })
            }
        }
    )*};
}

tuples! {
    (A a "0")
    (A a "0" B b "1")
    (A a "0" B b "1" C c "2")
    (A a "0" B b "1" C c "2" D d "3")
    (A a "0" B b "1" C c "2" D d "3" E e "4")
    (A a "0" B b "1" C c "2" D d "3" E e "4" F f "5")
    (A a "0" B b "1" C c "2" D d "3" E e "4" F f "5" G g "6")
    (A a "0" B b "1" C c "2" D d "3" E e "4" F f "5" G g "6" H h "7")
    (A a "0" B b "1" C c "2" D d "3" E e "4" F f "5" G g "6" H h "7" I i "8")
    (A a "0" B b "1" C c "2" D d "3" E e "4" F f "5" G g "6" H h "7" I i "8" J j "9")
    (A a "0" B b "1" C c "2" D d "3" E e "4" F f "5" G g "6" H h "7" I i "8" J j "9" K k "10")
    (A a "0" B b "1" C c "2" D d "3" E e "4" F f "5" G g "6" H h "7" I i "8" J j "9" K k "10" L l "11")
}
