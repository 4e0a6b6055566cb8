//! `#[tensor_tree(...)]`.

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{Attribute, LitStr, Path, Result, Token, WherePredicate, parse_quote_spanned};

/// What is written on the type.
pub(crate) struct TypeAttributes {
    /// Where the items of transship are found.
    pub(crate) krate: Path,
    /// The bounds of the implementation, if they are given.
    pub(crate) bound: Option<Vec<WherePredicate>>,
}

impl TypeAttributes {
    pub(crate) fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut krate = None;
        let mut bound = None;
        for_each_entry(attributes, |entry| {
            if entry.path.is_ident("crate") {
                let path = entry.value()?.parse::<LitStr>()?.parse_with(Path::parse_mod_style)?;
                set_once(&mut krate, path, &entry)
            } else if entry.path.is_ident("bound") {
                let predicates = Punctuated::<WherePredicate, Token![,]>::parse_terminated;
                let predicates = entry.value()?.parse::<LitStr>()?.parse_with(predicates)?;
                set_once(&mut bound, predicates.into_iter().collect(), &entry)
            } else {
                Err(entry.error(
                    "unknown attribute of a type; there are `crate = \"path\"` and `bound = \"T: Trait\"`",
                ))
            }
        })?;
        Ok(Self { krate: krate.unwrap_or_else(default_crate), bound })
    }
}

/// Whether a field or a variant is to be skipped.
pub(crate) fn is_skipped(attributes: &[Attribute]) -> Result<bool> {
    let mut skip = None;
    for_each_entry(attributes, |entry| {
        if entry.path.is_ident("skip") {
            set_once(&mut skip, (), &entry)
        } else {
            Err(entry.error("unknown attribute of a field or variant; there is `skip`"))
        }
    })?;
    Ok(skip.is_some())
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
        .filter(|attribute| attribute.path().is_ident("tensor_tree"))
        .try_for_each(|attribute| attribute.parse_nested_meta(&mut read))
}

fn set_once<T>(slot: &mut Option<T>, value: T, entry: &ParseNestedMeta<'_>) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(entry.error("given twice")),
    }
}
