//! `#[derive(TensorTree)]` for `transship`.

mod attributes;
mod bounds;
mod expand;
mod into_tensors;

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

/// Implements `IntoTensors`, and makes the type that it becomes: the same fields, with tensors in the place of arrays.
///
/// ```
/// use std::sync::Arc;
/// use transship_core::{CopyOptions, Device, IntoTensors, start_copy};
/// # use transship_derive::IntoTensors;
///
/// #[derive(IntoTensors)]
/// #[tensor_tree(tensors = DeviceCamera)]
/// # #[tensor_tree(crate = "transship_core")]
/// struct Camera {
///     #[tensor_tree(tensors)]
///     boxes: Vec<[f32; 4]>,
///     name: String,
/// }
///
/// #[derive(IntoTensors)]
/// #[tensor_tree(tensors = DeviceBatch)]
/// # #[tensor_tree(crate = "transship_core")]
/// struct Batch {
///     #[tensor_tree(tensors)]
///     cameras: Vec<Camera>,
///     #[tensor_tree(tensors)]
///     priors: Arc<[f32]>,
///     id: u64,
///     jpeg: Vec<u8>, // stays a vector, on the host
/// }
///
/// let camera = Camera { boxes: vec![[0.0, 0.0, 1.0, 1.0]; 3], name: "front".into() };
/// let batch = Batch { cameras: vec![camera], priors: Arc::from([0.5; 8]), id: 7, jpeg: vec![0xFF, 0xD8] };
///
/// let device = Device::best()?;
/// let batch: DeviceBatch = start_copy(batch.into_tensors(), &device, CopyOptions::default())?.wait()?;
/// assert_eq!((batch.cameras[0].boxes.shape(), batch.priors.shape(), batch.id), (&[3, 4][..], &[8][..], 7));
///
/// let batch = start_copy(batch, &Device::host(), CopyOptions::default())?.wait()?;
/// let batch = Batch::from_tensors(batch)?;
/// assert_eq!((batch.cameras[0].boxes[2], &batch.jpeg[..]), ([0.0, 0.0, 1.0, 1.0], &[0xFF, 0xD8][..]));
/// # Ok::<(), transship_core::Error>(())
/// ```
///
/// The type that is made has the visibility and the generics of this one, its fields theirs, and their documentation. It is a
/// `TensorTree`. This one is not: copied as it is, its arrays would stay where they are.
///
/// # Attributes of the type
///
/// - `#[tensor_tree(tensors = Name)]`: the name of the type that is made.
/// - `#[tensor_tree(derive(Debug, Clone))]`: what that type derives.
/// - `#[tensor_tree(crate = "path")]`: as of `TensorTree`.
/// - `#[tensor_tree(bound = "Vec<T>: IntoTensors")]`: the bounds of the type that is made and of the implementations. If it is not given,
///   each field with type parameters that becomes tensors is `IntoTensors`, and the parameters of other fields are `TensorTree`.
///
/// # Attributes of a field
///
/// - `#[tensor_tree(tensors)]`: becomes what the `IntoTensors` of its type says. Other fields keep their types, and are visited: tensors in
///   them are copied, and all else stays untouched.
/// - `#[tensor_tree(skip)]`: keeps its type and is not looked into, so that this need not be a `TensorTree`. Of a variant, too.
///
/// # What is refused
///
/// A field that has no elements of a tensor (a `usize` has the size of the machine):
///
/// ```compile_fail,E0277
/// # use transship_derive::IntoTensors;
/// #[derive(IntoTensors)]
/// #[tensor_tree(tensors = DeviceBatch)]
/// # #[tensor_tree(crate = "transship_core")]
/// struct Batch {
///     #[tensor_tree(tensors)]
///     lengths: Vec<usize>,
/// }
/// ```
///
/// A list of structs that become tensors, without the attribute: they would stay on the host.
///
/// ```compile_fail,E0277
/// # use transship_derive::IntoTensors;
/// #[derive(IntoTensors)]
/// #[tensor_tree(tensors = DeviceCamera)]
/// # #[tensor_tree(crate = "transship_core")]
/// struct Camera {
///     #[tensor_tree(tensors)]
///     boxes: Vec<[f32; 4]>,
/// }
///
/// #[derive(IntoTensors)]
/// #[tensor_tree(tensors = DeviceBatch)]
/// # #[tensor_tree(crate = "transship_core")]
/// struct Batch {
///     cameras: Vec<Camera>,
///     #[tensor_tree(tensors)]
///     priors: Vec<f32>,
/// }
/// ```
///
/// A copy of the structure as it is:
///
/// ```compile_fail,E0277
/// # use transship_core::{CopyOptions, Device, start_copy};
/// # use transship_derive::IntoTensors;
/// #[derive(IntoTensors)]
/// #[tensor_tree(tensors = DeviceBatch)]
/// # #[tensor_tree(crate = "transship_core")]
/// struct Batch {
///     #[tensor_tree(tensors)]
///     priors: Vec<f32>,
/// }
///
/// let _ = start_copy(Batch { priors: vec![0.5] }, &Device::host(), CopyOptions::default());
/// ```
#[proc_macro_derive(IntoTensors, attributes(tensor_tree))]
pub fn derive_into_tensors(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    into_tensors::into_tensors(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

#[cfg(test)]
mod tests {
    use syn::{DeriveInput, Result, parse_quote};

    use crate::{expand, into_tensors};

    fn refused<T>(expanded: Result<T>) -> String {
        expanded.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_a_visit_does_not_know_is_refused() {
        let tree = |input: &DeriveInput| refused(expand::tensor_tree(input));
        let unknown = tree(&parse_quote!(
            struct A {
                #[tensor_tree(ignore)]
                id: u64,
            }
        ));
        assert_eq!(unknown, "unknown attribute of a field or variant; there is `skip`");
        let foreign = "this belongs to `#[derive(IntoTensors)]`; derive that in the place of `TensorTree`, which the type that it makes has";
        assert_eq!(
            tree(&parse_quote!(
                struct A {
                    #[tensor_tree(tensors)]
                    boxes: Vec<f32>,
                }
            )),
            foreign
        );
        assert_eq!(
            tree(&parse_quote!(
                #[tensor_tree(tensors = B)]
                struct A {
                    boxes: Tensor,
                }
            )),
            foreign
        );
        assert_eq!(
            tree(&parse_quote!(
                #[tensor_tree(derive(Debug))]
                struct A {
                    boxes: Tensor,
                }
            )),
            foreign
        );
        let twice = tree(&parse_quote!(
            struct A {
                #[tensor_tree(skip, skip)]
                id: u64,
            }
        ));
        assert_eq!(twice, "given twice");
        assert!(
            tree(&parse_quote!(union A { id: u64 })).starts_with("TensorTree cannot be derived for a union")
        );
    }

    #[test]
    fn what_makes_no_type_of_tensors_is_refused() {
        let arrays = |input: &DeriveInput| refused(into_tensors::into_tensors(input));
        assert_eq!(
            arrays(&parse_quote!(
                struct A {
                    #[tensor_tree(tensors)]
                    boxes: Vec<f32>,
                }
            )),
            "IntoTensors makes a type: name it, as in `#[tensor_tree(tensors = DeviceBatch)]`"
        );
        assert_eq!(
            arrays(&parse_quote!(
                #[tensor_tree(tensors = B)]
                struct A {
                    boxes: Vec<f32>,
                }
            )),
            "no field becomes tensors: mark each that does with `#[tensor_tree(tensors)]`"
        );
        assert_eq!(
            arrays(&parse_quote!(
                #[tensor_tree(tensors = B)]
                struct A {
                    #[tensor_tree(tensors, skip)]
                    boxes: Vec<f32>,
                }
            )),
            "a field becomes `tensors`, or a copy is to `skip` it"
        );
        assert_eq!(
            arrays(&parse_quote!(
                #[tensor_tree(tensors = B)]
                enum A {
                    #[tensor_tree(skip)]
                    V(#[tensor_tree(tensors)] Vec<f32>),
                }
            )),
            "a field becomes `tensors`, or a copy is to `skip` its variant"
        );
        assert_eq!(
            arrays(&parse_quote!(
                #[tensor_tree(tensors = B)]
                enum A {
                    #[tensor_tree(tensors)]
                    V(Vec<f32>),
                }
            )),
            "a variant has no `tensors`; mark its fields"
        );
        assert_eq!(
            arrays(&parse_quote!(
                #[tensor_tree(tensors = B)]
                struct A {
                    #[tensor_tree(tensor)]
                    boxes: Vec<f32>,
                }
            )),
            "unknown attribute of a field; there are `tensors` and `skip`"
        );
        let unknown = arrays(&parse_quote!(
            #[tensor_tree(device = B)]
            struct A {
                #[tensor_tree(tensors)]
                boxes: Vec<f32>,
            }
        ));
        assert!(unknown.starts_with("unknown attribute of a type; there are `tensors = Name`"), "{unknown}");
        let union =
            arrays(&parse_quote!(#[tensor_tree(tensors = B)] union A { #[tensor_tree(tensors)] id: u64 }));
        assert!(union.starts_with("IntoTensors cannot be derived for a union"), "{union}");
    }
}
