//! `#[derive(TensorTree)]` for `transship`.

mod attributes;
mod bounds;
mod expand;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `TensorTree`: a visit goes through the fields in the order in which they are written. Two values are paired field by
/// field, for `start_copy_into`; of an enum both must be the same variant. Fields are shown by name, whatever the variant.
///
/// ```
/// use transship_core::{Tensor, TensorTree, for_each_tensor};
/// # use transship_derive::TensorTree;
///
/// #[derive(TensorTree)]
/// # #[tensor_tree(crate = "transship_core")]
/// struct Camera {
///     boxes: Tensor,
///     depths: Option<Tensor>,
///     name: String,
/// }
///
/// #[derive(TensorTree)]
/// # #[tensor_tree(crate = "transship_core")]
/// enum Sample {
///     Empty,
///     Cameras(Vec<Camera>),
///     Raw { bytes: Tensor },
/// }
///
/// let tensor = || Tensor::from_vec(vec![0.0_f32; 4], &[4]);
/// let camera = Camera { boxes: tensor()?, depths: Some(tensor()?), name: "front".into() };
/// let mut batch = vec![Sample::Cameras(vec![camera]), Sample::Empty, Sample::Raw { bytes: tensor()? }];
///
/// let mut tensors = 0;
/// for_each_tensor(&mut batch, |_| Ok(tensors += 1))?;
/// assert_eq!(tensors, 3);
/// # Ok::<(), transship_core::Error>(())
/// ```
///
/// # Attributes of a field or a variant
///
/// - `#[tensor_tree(skip)]`: is not looked into, so that its types need not be a `TensorTree`. Tensors in there stay
///   where they are.
///
/// # Attributes of the type
///
/// - `#[tensor_tree(crate = "path")]`: where to find `TensorTree` and what belongs to it; `::transship` if not given.
/// - `#[tensor_tree(bound = "T: TensorTree")]`: the bounds of the implementation, in place of `T: TensorTree` for each
///   type parameter that is part of a field. A map with generic keys needs it: the keys are compared, and written in errors, but
///   not visited.
///
/// ```
/// use std::collections::HashMap;
/// use std::fmt::Debug;
/// use std::hash::Hash;
/// use transship_core::TensorTree;
/// # use transship_derive::TensorTree;
///
/// #[derive(TensorTree)]
/// #[tensor_tree(crate = "transship_core", bound = "K: Eq + Hash + Debug, V: TensorTree")]
/// struct Lookup<K, V> {
///     by_key: HashMap<K, V>,
///     #[tensor_tree(skip)]
///     on_miss: Option<fn(K) -> V>,
/// }
/// ```
///
/// # What is refused
///
/// A field that is no `TensorTree`:
///
/// ```compile_fail,E0277
/// # use transship_derive::TensorTree;
/// struct Opaque;
///
/// #[derive(TensorTree)]
/// #[tensor_tree(crate = "transship_core")]
/// struct Sample {
///     opaque: Opaque,
/// }
/// ```
///
/// A union, of which nobody knows what it holds:
///
/// ```compile_fail
/// # use transship_derive::TensorTree;
/// #[derive(TensorTree)]
/// #[tensor_tree(crate = "transship_core")]
/// union Either {
///     number: u32,
///     float: f32,
/// }
/// ```
///
/// Attributes that do not exist:
///
/// ```compile_fail
/// # use transship_derive::TensorTree;
/// #[derive(TensorTree)]
/// #[tensor_tree(crate = "transship_core")]
/// struct Sample {
///     #[tensor_tree(ignore)]
///     id: u64,
/// }
/// ```
#[proc_macro_derive(TensorTree, attributes(tensor_tree))]
pub fn derive_tensor_tree(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::tensor_tree(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
