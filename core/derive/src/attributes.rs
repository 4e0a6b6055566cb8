//! `#[tensor_tree(...)]`.

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Ident, LitStr, Path, Result, Token, WherePredicate, parenthesized, parse_quote_spanned,
};

/// Which macro reads them.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Macro {
    TensorTree,
    IntoTensors,
}

/// What is written on the type.
pub(crate) struct TypeAttributes {
    /// Where the items of transship are found.
    pub(crate) krate: Path,
    /// The bounds of the implementation, if they are given.
    pub(crate) bound: Option<Vec<WherePredicate>>,
    /// The name of the type that it becomes.
    pub(crate) tensors: Option<Ident>,
    /// What that type derives.
    pub(crate) derive: Vec<Path>,
}

/// What is written on a field or a variant.
#[derive(Default)]
pub(crate) struct FieldAttributes {
    pub(crate) is_skipped: bool,
    pub(crate) becomes_tensors: bool,
}

impl TypeAttributes {
    pub(crate) fn parse(attributes: &[Attribute], of: Macro) -> Result<Self> {
        let (mut krate, mut bound, mut tensors, mut derive) = (None, None, None, None);
        for_each_entry(attributes, |entry| {
            if entry.path.is_ident("crate") {
                let path = entry.value()?.parse::<LitStr>()?.parse_with(Path::parse_mod_style)?;
                set_once(&mut krate, path, &entry)
            } else if entry.path.is_ident("bound") {
                let predicates = Punctuated::<WherePredicate, Token![,]>::parse_terminated;
                let predicates = entry.value()?.parse::<LitStr>()?.parse_with(predicates)?;
                set_once(&mut bound, predicates.into_iter().collect(), &entry)
            } else if entry.path.is_ident("tensors") {
                check_macro(of, &entry)?;
                set_once(&mut tensors, entry.value()?.parse()?, &entry)
            } else if entry.path.is_ident("derive") {
                check_macro(of, &entry)?;
                let list;
                parenthesized!(list in entry.input);
                let list = Punctuated::<Path, Token![,]>::parse_terminated(&list)?;
                set_once(&mut derive, list.into_iter().collect(), &entry)
            } else {
                Err(entry.error(match of {
                    Macro::TensorTree => {
                        "unknown attribute of a type; there are `crate = \"path\"` and `bound = \"T: Trait\"`"
                    }
                    Macro::IntoTensors => {
                        "unknown attribute of a type; there are `tensors = Name`, `derive(Debug)`, `crate = \"path\"` and \
                         `bound = \"T: Trait\"`"
                    }
                }))
            }
        })?;
        let derive = derive.unwrap_or_default();
        Ok(Self { krate: krate.unwrap_or_else(default_crate), bound, tensors, derive })
    }
}

impl FieldAttributes {
    pub(crate) fn parse(attributes: &[Attribute], of: Macro) -> Result<Self> {
        let (mut skip, mut tensors) = (None, None);
        for_each_entry(attributes, |entry| {
            if entry.path.is_ident("skip") {
                set_once(&mut skip, (), &entry)?;
            } else if entry.path.is_ident("tensors") {
                check_macro(of, &entry)?;
                set_once(&mut tensors, (), &entry)?;
            } else {
                return Err(entry.error(match of {
                    Macro::TensorTree => "unknown attribute of a field or variant; there is `skip`",
                    Macro::IntoTensors => "unknown attribute of a field; there are `tensors` and `skip`",
                }));
            }
            match (skip, tensors) {
                (Some(()), Some(())) => {
                    Err(entry.error("a field becomes `tensors`, or a copy is to `skip` it"))
                }
                _ => Ok(()),
            }
        })?;
        Ok(Self { is_skipped: skip.is_some(), becomes_tensors: tensors.is_some() })
    }
}

/// Whether an attribute is one of `#[tensor_tree(...)]`.
pub(crate) fn is_ours(attribute: &Attribute) -> bool {
    attribute.path().is_ident("tensor_tree")
}

/// Refuses what only `IntoTensors` knows: without it, a vector would stay on the host and nobody would say so.
fn check_macro(of: Macro, entry: &ParseNestedMeta<'_>) -> Result<()> {
    match of {
        Macro::IntoTensors => Ok(()),
        Macro::TensorTree => Err(entry.error(
            "this belongs to `#[derive(IntoTensors)]`; derive that in the place of `TensorTree`, which the type that it makes has",
        )),
    }
}

fn default_crate() -> Path {
    parse_quote_spanned!(Span::mixed_site()=> ::transship)
}

fn for_each_entry(
    attributes: &[Attribute],
    mut read: impl FnMut(ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    attributes
        .iter()
        .filter(|attribute| is_ours(attribute))
        .try_for_each(|attribute| attribute.parse_nested_meta(&mut read))
}

fn set_once<T>(slot: &mut Option<T>, value: T, entry: &ParseNestedMeta<'_>) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(entry.error("given twice")),
    }
}
