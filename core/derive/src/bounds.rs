//! Which bounds an implementation needs.

use std::collections::HashSet;

use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Generics, Ident, Path, Type, TypePath, WherePredicate, parse_quote};

/// `T: TensorTree` for each type parameter that is part of `fields`, and for each of their associated types.
///
/// The types of the fields themselves would be more exact, but a recursive type would then need itself.
pub(crate) fn of_fields<'a>(
    generics: &Generics,
    fields: impl Iterator<Item = &'a Type>,
    krate: &Path,
) -> Vec<WherePredicate> {
    let parameters = generics.type_params().map(|parameter| &parameter.ident).collect();
    let mut search = Search { parameters, found: Vec::new(), known: HashSet::new() };
    fields.for_each(|field| search.visit_type(field));
    search.found.iter().map(|bounded| parse_quote!(#bounded: #krate::TensorTree)).collect()
}

struct Search<'a> {
    parameters: HashSet<&'a Ident>,
    found: Vec<TypePath>,
    known: HashSet<String>,
}

impl Search<'_> {
    fn add(&mut self, bounded: &TypePath) {
        if self.known.insert(bounded.to_token_stream().to_string()) {
            self.found.push(bounded.clone());
        }
    }

    /// Whether it is `T`, `T::Item` or `<T as Trait>::Item`.
    fn is_of_parameter(&self, path: &TypePath) -> bool {
        match &path.qself {
            Some(of) => matches!(&*of.ty, Type::Path(of) if self.is_of_parameter(of)),
            None => {
                path.path.leading_colon.is_none()
                    && path.path.segments.first().is_some_and(|first| self.parameters.contains(&first.ident))
            }
        }
    }
}

impl<'t> Visit<'t> for Search<'_> {
    fn visit_type_path(&mut self, path: &'t TypePath) {
        if self.is_of_parameter(path) {
            self.add(path);
        } else if !is_phantom(path) {
            visit::visit_type_path(self, path);
        }
    }
}

fn is_phantom(path: &TypePath) -> bool {
    path.path.segments.last().is_some_and(|last| last.ident == "PhantomData")
}
