//! The implementation that the macro writes.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{
    Data, DeriveInput, Error, Field, Fields, Generics, Ident, Member, Path, Result, Type, parse_quote,
};

use crate::attributes::{FieldAttributes, Macro, TypeAttributes};
use crate::bounds;

/// `impl TensorTree for` the type.
pub(crate) fn tensor_tree(input: &DeriveInput) -> Result<TokenStream> {
    let TypeAttributes { krate, bound, .. } = TypeAttributes::parse(&input.attrs, Macro::TensorTree)?;
    let shapes = shapes(input)?;
    let visited = shapes.iter().flat_map(|shape| &shape.visited).map(|field| field.kind);
    let bounds = bound.unwrap_or_else(|| bounds::of_fields(&input.generics, visited, &krate));

    let mut generics = input.generics.clone();
    generics.make_where_clause().predicates.extend(bounds);
    implementation(input, &generics, &krate, &[&input.ident])
}

/// The same with generics whose bounds are complete. A type that names one of `selves` in a field holds itself.
pub(crate) fn implementation(
    input: &DeriveInput,
    generics: &Generics,
    krate: &Path,
    selves: &[&Ident],
) -> Result<TokenStream> {
    let shapes = shapes(input)?;
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let name = &input.ident;
    let body = body(&shapes, selves, krate);
    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #impl_generics #krate::TensorTree for #name #type_generics #where_clause {
            #body
        }
    })
}

/// A struct, or one variant of an enum.
struct Shape<'a> {
    /// `Self`, or `Self::Variant`.
    path: Path,
    /// The name of the variant.
    variant: Option<String>,
    visited: Vec<VisitedField<'a>>,
}

struct VisitedField<'a> {
    member: Member,
    kind: &'a Type,
}

impl VisitedField<'_> {
    /// As paths have it.
    fn name(&self) -> String {
        match &self.member {
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }
}

fn shapes(input: &DeriveInput) -> Result<Vec<Shape<'_>>> {
    match &input.data {
        Data::Struct(data) => {
            Ok(vec![Shape { path: parse_quote!(Self), variant: None, visited: visited(&data.fields)? }])
        }
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = &variant.ident;
                let fields = visited(&variant.fields)?;
                let skip = FieldAttributes::parse(&variant.attrs, Macro::TensorTree)?.is_skipped;
                let visited = if skip { Vec::new() } else { fields };
                Ok(Shape { path: parse_quote!(Self::#name), variant: Some(name.to_string()), visited })
            })
            .collect(),
        Data::Union(data) => Err(Error::new(
            data.union_token.span,
            "TensorTree cannot be derived for a union: nobody knows which of its fields is alive; use an enum",
        )),
    }
}

fn visited(fields: &Fields) -> Result<Vec<VisitedField<'_>>> {
    let mut visited = Vec::new();
    for (member, Field { ty, attrs, .. }) in fields.members().zip(fields) {
        if !FieldAttributes::parse(attrs, Macro::TensorTree)?.is_skipped {
            visited.push(VisitedField { member, kind: ty });
        }
    }
    Ok(visited)
}

/// The items of the implementation. A type without a visited field holds no tensor; any other one may: a constant that
/// asked its fields would have no value for a recursive type.
fn body(shapes: &[Shape<'_>], selves: &[&Ident], krate: &Path) -> TokenStream {
    if shapes.iter().all(|shape| shape.visited.is_empty()) {
        return quote! {
            const MAY_HOLD_TENSORS: bool = false;

            #[inline]
            fn visit(&mut self, _: &mut #krate::Visitor<'_>) -> ::core::result::Result<(), #krate::Stop> {
                ::core::result::Result::Ok(())
            }
        };
    }
    let visitor = Ident::new("__visitor", Span::mixed_site());
    let nested =
        Ident::new(if holds_itself(shapes, selves) { "recursive" } else { "nested" }, Span::mixed_site());
    let visits = shapes.iter().map(|shape| visit_arm(shape, krate, &visitor));
    let (pair, show) = (pair(shapes, krate), show(shapes, krate));
    quote! {
        #[inline]
        fn visit(&mut self, #visitor: &mut #krate::Visitor<'_>) -> ::core::result::Result<(), #krate::Stop> {
            #krate::Visitor::#nested(#visitor, |#visitor| {
                match self { #(#visits)* }
                ::core::result::Result::Ok(())
            })
        }

        #pair

        #show
    }
}

/// Whether the type names itself in a field. Types that hold themselves by way of others do so in boxes, as a rule, which look
/// after the stack as well.
fn holds_itself(shapes: &[Shape<'_>], selves: &[&Ident]) -> bool {
    let mut visited = shapes.iter().flat_map(|shape| &shape.visited);
    visited.any(|field| names_one_of(field.kind, selves))
}

/// Whether one of these names, or `Self`, is part of a type.
pub(crate) fn names_one_of(kind: &Type, names: &[&Ident]) -> bool {
    struct Search<'a>(&'a [&'a Ident], bool);
    impl<'t> Visit<'t> for Search<'_> {
        fn visit_ident(&mut self, ident: &'t Ident) {
            self.1 |= self.0.contains(&ident) || ident == "Self";
        }
    }
    let mut search = Search(names, false);
    search.visit_type(kind);
    search.1
}

fn visit_arm(shape: &Shape<'_>, krate: &Path, visitor: &Ident) -> TokenStream {
    let Shape { path, variant, visited } = shape;
    let (members, names) = (members(shape), names("__field", shape));
    let variant = variant.iter().map(|name| quote! { #krate::Visitor::variant(#visitor, #name); });
    // The span of the field's type is where the compiler complains if that is no `TensorTree`.
    let visits = visited.iter().zip(&names).map(|(field, name)| {
        quote_spanned! { Span::mixed_site().located_at(field.kind.span())=>
            #krate::TensorTree::visit(#name, #visitor)?;
        }
    });
    quote! { #path { #(#members: #names,)* .. } => { #(#variant)* #(#visits)* } }
}

/// Fields are paired by name, and an enum with the same variant only.
fn pair(shapes: &[Shape<'_>], krate: &Path) -> TokenStream {
    let [into, pairs] = ["__into", "__pairs"].map(|name| Ident::new(name, Span::mixed_site()));
    let arms = shapes.iter().map(|shape| pair_arm(shape, krate, &pairs));
    let names: Vec<_> =
        shapes.iter().filter_map(|shape| Some((&shape.path, shape.variant.as_ref()?))).collect();
    let differing = (names.len() > 1).then(|| {
        let name = |value: &Ident| {
            let arms = names.iter().map(|(path, name)| quote! { #path { .. } => #name, });
            quote! { match #value { #(#arms)* } }
        };
        let [value, into] = ["__one", "__other"].map(|name| Ident::new(name, Span::mixed_site()));
        let (value_name, into_name) = (name(&value), name(&into));
        quote! {
            (#value, #into) => {
                return ::core::result::Result::Err(#krate::Pairs::differ(#pairs, #value_name, #into_name));
            }
        }
    });
    quote! {
        fn pair(
            &mut self,
            #into: &mut Self,
            #pairs: &mut #krate::Pairs<'_>,
        ) -> ::core::result::Result<(), #krate::Stop> {
            #krate::Pairs::nested(#pairs, |#pairs| {
                match (self, #into) { #(#arms)* #differing }
                ::core::result::Result::Ok(())
            })
        }
    }
}

fn pair_arm(shape: &Shape<'_>, krate: &Path, pairs: &Ident) -> TokenStream {
    let (path, members) = (&shape.path, members(shape));
    let (values, intos) = (names("__value", shape), names("__into", shape));
    let parts = shape.visited.iter().zip(values.iter().zip(&intos)).map(|(field, (value, into))| {
        let name = field.name();
        quote! { #krate::Pairs::part(#pairs, #krate::Step::Field(#name), #value, #into)?; }
    });
    quote! {
        (#path { #(#members: #values,)* .. }, #path { #(#members: #intos,)* .. }) => { #(#parts)* }
    }
}

/// Fields are shown by name, whatever the variant.
fn show(shapes: &[Shape<'_>], krate: &Path) -> TokenStream {
    let paths = Ident::new("__paths", Span::mixed_site());
    let arms = shapes.iter().map(|shape| {
        let (path, members, fields) = (&shape.path, members(shape), names("__field", shape));
        let parts = shape.visited.iter().zip(&fields).map(|(field, value)| {
            let name = field.name();
            quote! { #krate::Paths::part(#paths, #krate::Step::Field(#name), #value)?; }
        });
        quote! { #path { #(#members: #fields,)* .. } => { #(#parts)* } }
    });
    quote! {
        fn show(&self, #paths: &mut #krate::Paths<'_>) -> ::core::result::Result<(), #krate::Stop> {
            #krate::Paths::nested(#paths, |#paths| {
                match self { #(#arms)* }
                ::core::result::Result::Ok(())
            })
        }
    }
}

fn members<'a>(shape: &'a Shape<'_>) -> Vec<&'a Member> {
    shape.visited.iter().map(|field| &field.member).collect()
}

/// A name for each visited field.
fn names(prefix: &str, shape: &Shape<'_>) -> Vec<Ident> {
    (0..shape.visited.len())
        .map(|index| format_ident!("{prefix}{index}", span = Span::mixed_site()))
        .collect()
}
