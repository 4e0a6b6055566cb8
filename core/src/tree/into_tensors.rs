//! Structures of vectors and arrays, and what they are with tensors in the place of these.

use crate::error::Refused;
use crate::tree::tensor_tree::TensorTree;

/// A structure of the host, with vectors and arrays in it, that becomes a structure of tensors, and back.
///
/// Derive it: that makes the other structure as well, which is on any device what this one is on the host.
///
/// | | becomes |
/// |---|---|
/// | `Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `Arc<Vec<T>>` of [elements](crate::Element) | a [`Tensor`](crate::Tensor) of rank 1 |
/// | `Vec<[T; N]>`, `Box<[[T; N]]>` of elements | a tensor of rank 2 |
/// | `Array`, `ArcArray`, `Arc<Array>` of `ndarray` (feature `ndarray`) | a tensor of the same shape |
/// | `Vec<V>`, `Box<[V]>`, `Box<V>`, `Option<V>`, maps and tuples of such | the same of what `V` becomes |
/// | a type that derives it | the type that it names |
/// | `Tensor`, `Value`, `String` | itself |
///
/// Nothing is copied on the way in, but for arrays with negative strides, and those with gaps that others share.
///
/// ```
/// use transship_core::{IntoTensors, Tensor};
///
/// let samples = vec![(String::from("a"), vec![1.0_f32, 2.0]), (String::from("b"), vec![3.0])];
/// let address = samples[0].1.as_ptr();
/// let tensors: Vec<(String, Tensor)> = samples.into_tensors();
/// assert_eq!(tensors[0].1.shape(), [2]);
///
/// let samples = Vec::<(String, Vec<f32>)>::from_tensors(tensors)?;
/// assert_eq!(samples[0].1.as_ptr(), address);
/// # Ok::<(), transship_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not become tensors",
    label = "neither an array of elements, nor a structure of such",
    note = "elements are bool, the integers of 8 to 64 bits, f16, bf16, f32, f64 and complex numbers, in a `Vec`, `Box<[T]>`, `Arc<[T]>` or, \
            with the feature `ndarray`, an `Array`; usize has the size of the machine, and one number is no array",
    note = "derive it for a type of your own with `#[derive(IntoTensors)]`; a field that stays as it is gets no `#[tensor_tree(tensors)]`"
)]
pub trait IntoTensors: Sized {
    /// The same with tensors in the place of arrays.
    type Tensors: TensorTree;

    /// Makes tensors of the arrays, on the host, in place.
    fn into_tensors(self) -> Self::Tensors;

    /// Makes arrays of the tensors, which are on the host and ready. A tensor that is alone and is all of a vector becomes that vector again,
    /// as after a copy that has failed; all others are copied, such as results that came packed, and what others share.
    ///
    /// # Errors
    ///
    /// The structure comes back with each, with all of its tensors: [`Error::NotOnHost`](crate::Error::NotOnHost);
    /// [`Error::WrongDType`](crate::Error::WrongDType), where the copy has cast, for instance;
    /// [`Error::WrongRank`](crate::Error::WrongRank) and [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for a tensor that was
    /// reshaped; and what reading it returns ([`Tensor::to_vec`](crate::Tensor::to_vec)).
    fn from_tensors(tensors: Self::Tensors) -> Result<Self, Refused<Self::Tensors>>;
}

/// What a list that becomes tensors is made of: elements, and all of the list is one tensor, or structures that become tensors each.
///
/// Nobody implements it: every [`IntoTensors`] is one.
pub trait TensorItem: Sized {
    /// What a list of them becomes.
    type List: TensorTree;

    /// Makes one of a list.
    fn into_list(items: Vec<Self>) -> Self::List;

    /// As [`IntoTensors::from_tensors`].
    ///
    /// # Errors
    ///
    /// As there.
    fn from_list(list: Self::List) -> Result<Vec<Self>, Refused<Self::List>>;
}
