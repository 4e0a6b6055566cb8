//! Containers of what becomes tensors.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash};

use indexmap::IndexMap;

use crate::error::Refused;
use crate::tree::into_tensors::{IntoTensors, TensorItem};
use crate::tree::tensor_tree::TensorTree;

impl<T: IntoTensors> TensorItem for T {
    type List = Vec<T::Tensors>;

    fn into_list(items: Vec<Self>) -> Self::List {
        items.into_iter().map(T::into_tensors).collect()
    }

    /// All items, or none: those before one that is refused become tensors again.
    fn from_list(list: Self::List) -> Result<Vec<Self>, Refused<Self::List>> {
        let mut done = Vec::with_capacity(list.len());
        let mut items = list.into_iter();
        while let Some(item) = items.next() {
            match T::from_tensors(item) {
                Ok(item) => done.push(item),
                Err(refused) => {
                    let before = done.into_iter().map(T::into_tensors);
                    return Err(refused.map(|item| before.chain([item]).chain(items).collect()));
                }
            }
        }
        Ok(done)
    }
}

impl<T: IntoTensors> IntoTensors for Option<T> {
    type Tensors = Option<T::Tensors>;

    fn into_tensors(self) -> Self::Tensors {
        self.map(T::into_tensors)
    }

    fn from_tensors(tensors: Self::Tensors) -> Result<Self, Refused<Self::Tensors>> {
        tensors.map(T::from_tensors).transpose().map_err(|refused| refused.map(Some))
    }
}

impl<T: IntoTensors> IntoTensors for Box<T> {
    type Tensors = Box<T::Tensors>;

    fn into_tensors(self) -> Self::Tensors {
        Box::new((*self).into_tensors())
    }

    fn from_tensors(tensors: Self::Tensors) -> Result<Self, Refused<Self::Tensors>> {
        T::from_tensors(*tensors).map(Box::new).map_err(|refused| refused.map(Box::new))
    }
}

/// Keys stay.
macro_rules! maps {
    ($([$($key:tt)*] [$($hasher:ident)?] $map:ident;)*) => {$(
        impl<K: $($key)*, V: IntoTensors $(, $hasher: BuildHasher + Default)?> IntoTensors for $map<K, V $(, $hasher)?>
        where
            $map<K, V::Tensors $(, $hasher)?>: TensorTree,
        {
            type Tensors = $map<K, V::Tensors $(, $hasher)?>;

            fn into_tensors(self) -> Self::Tensors {
                self.into_iter().map(|(key, value)| (key, value.into_tensors())).collect()
            }

            fn from_tensors(tensors: Self::Tensors) -> Result<Self, Refused<Self::Tensors>> {
                let (keys, values): (Vec<K>, Vec<_>) = tensors.into_iter().unzip();
                match V::from_list(values) {
                    Ok(values) => Ok(keys.into_iter().zip(values).collect()),
                    Err(refused) => Err(refused.map(|values| keys.into_iter().zip(values).collect())),
                }
            }
        }
    )*};
}

maps! {
    [Ord + Debug] [] BTreeMap;
    [Eq + Hash + Debug] [S] HashMap;
    [Eq + Hash + Debug] [S] IndexMap;
}

/// The last item by itself, and those before it as the shorter tuple that they are.
macro_rules! tuples {
    ($(($($item:ident)*; $last:ident))*) => {$(
        #[allow(non_snake_case, reason = "each item is named like its type")]
        impl<$($item: IntoTensors,)* $last: IntoTensors> IntoTensors for ($($item,)* $last,) {
            type Tensors = ($($item::Tensors,)* $last::Tensors,);

            fn into_tensors(self) -> Self::Tensors {
                let ($($item,)* $last,) = self;
                ($($item.into_tensors(),)* $last.into_tensors(),)
            }

            fn from_tensors(tensors: Self::Tensors) -> Result<Self, Refused<Self::Tensors>> {
                let ($($item,)* $last,) = tensors;
                let before = match <($($item,)*)>::from_tensors(($($item,)*)) {
                    Ok(before) => before,
                    Err(refused) => return Err(refused.map(|($($item,)*)| ($($item,)* $last,))),
                };
                match <$last>::from_tensors($last) {
                    Ok($last) => {
                        let ($($item,)*) = before;
                        Ok(($($item,)* $last,))
                    }
                    Err(refused) => {
                        let ($($item,)*) = before.into_tensors();
                        Err(refused.map(|$last| ($($item,)* $last,)))
                    }
                }
            }
        }
    )*};
}

tuples! {
    (; A)
    (A; B)
    (A B; C)
    (A B C; D)
    (A B C D; E)
    (A B C D E; F)
    (A B C D E F; G)
    (A B C D E F G; H)
    (A B C D E F G H; I)
    (A B C D E F G H I; J)
    (A B C D E F G H I J; K)
    (A B C D E F G H I J K; L)
}

/// No items, which tuples of one begin with.
impl IntoTensors for () {
    type Tensors = ();

    fn into_tensors(self) {}

    fn from_tensors((): ()) -> Result<Self, Refused<()>> {
        Ok(())
    }
}
