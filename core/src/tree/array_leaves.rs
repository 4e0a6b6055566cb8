//! What becomes one tensor.

use std::sync::Arc;

use half::{bf16, f16};
use num_complex::Complex;

use crate::element::{Element, each_element};
use crate::error::{Refused, Result};
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::into_tensors::{IntoTensors, TensorItem};
use crate::tree::value::Value;

/// Lists of them are one tensor.
macro_rules! elements {
    ($($element:ty => $dtype:ident,)*) => {$(
        impl TensorItem for $element {
            type List = Tensor;

            fn into_list(items: Vec<Self>) -> Tensor {
                Tensor::from(items)
            }

            fn from_list(list: Tensor) -> Result<Vec<Self>, Refused<Tensor>> {
                elements_of(list)
            }
        }
    )*};
}

each_element!(elements);

/// Points, boxes, pixels: lists of them are one tensor of rank 2. They come back as a copy.
impl<T: Element, const N: usize> TensorItem for [T; N] {
    type List = Tensor;

    fn into_list(items: Vec<Self>) -> Tensor {
        let shape = [items.len(), N];
        Tensor::from_elements(items.into_flattened(), &shape)
    }

    fn from_list(list: Tensor) -> Result<Vec<Self>, Refused<Tensor>> {
        rows_of(&list).map_err(|error| Refused::new(error, list))
    }
}

impl<T: TensorItem> IntoTensors for Vec<T> {
    type Tensors = T::List;

    fn into_tensors(self) -> T::List {
        T::into_list(self)
    }

    fn from_tensors(tensors: T::List) -> Result<Self, Refused<T::List>> {
        T::from_list(tensors)
    }
}

impl<T: TensorItem> IntoTensors for Box<[T]> {
    type Tensors = T::List;

    fn into_tensors(self) -> T::List {
        T::into_list(self.into_vec())
    }

    fn from_tensors(tensors: T::List) -> Result<Self, Refused<T::List>> {
        T::from_list(tensors).map(Vec::into_boxed_slice)
    }
}

impl<T: Element> IntoTensors for Arc<[T]> {
    type Tensors = Tensor;

    fn into_tensors(self) -> Tensor {
        Tensor::from(self)
    }

    fn from_tensors(tensor: Tensor) -> Result<Self, Refused<Tensor>> {
        elements_of(tensor).map(Self::from)
    }
}

impl<T: Element> IntoTensors for Arc<Vec<T>> {
    type Tensors = Tensor;

    fn into_tensors(self) -> Tensor {
        Tensor::from(self)
    }

    fn from_tensors(tensor: Tensor) -> Result<Self, Refused<Tensor>> {
        elements_of(tensor).map(Self::new)
    }
}

/// Arrays of any rank, whoever owns them.
#[cfg(feature = "ndarray")]
macro_rules! arrays {
    ($($array:ty, $of:expr;)*) => {$(
        impl<T: Element, D: ndarray::Dimension + 'static> IntoTensors for $array {
            type Tensors = Tensor;

            fn into_tensors(self) -> Tensor {
                Tensor::from(self)
            }

            fn from_tensors(tensor: Tensor) -> Result<Self, Refused<Tensor>> {
                tensor.into_array::<T, D>().map($of)
            }
        }
    )*};
}

#[cfg(feature = "ndarray")]
arrays! {
    ndarray::Array<T, D>, |array| array;
    ndarray::ArcArray<T, D>, ndarray::Array::into_shared;
    Arc<ndarray::Array<T, D>>, Arc::new;
}

/// What has no array in it, or is tensors already.
macro_rules! unchanged {
    ($($unchanged:ty),*) => {$(
        impl IntoTensors for $unchanged {
            type Tensors = Self;

            fn into_tensors(self) -> Self {
                self
            }

            fn from_tensors(tensors: Self) -> Result<Self, Refused<Self>> {
                Ok(tensors)
            }
        }
    )*};
}

unchanged!(Tensor, Value, String);

fn elements_of<T: Element>(tensor: Tensor) -> Result<Vec<T>, Refused<Tensor>> {
    match tensor.rank() {
        1 => tensor.into_vec_or_copy(),
        _ => Err(Refused::new(tensor.layout().wrong_rank(1), tensor)),
    }
}

fn rows_of<T: Element, const N: usize>(tensor: &Tensor) -> Result<Vec<[T; N]>> {
    let &[count, columns] = tensor.shape() else { return Err(tensor.layout().wrong_rank(2)) };
    if columns != N {
        return Err(Layout::contiguous(tensor.dtype(), &[count, N])?.shape_mismatch(tensor.nbytes()));
    }
    let elements = tensor.to_vec::<T>()?;
    Ok((0..count).filter_map(|row| elements[row * N..][..N].try_into().ok()).collect())
}
