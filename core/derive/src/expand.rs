//! The implementation that the macro writes.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Fields, Ident, Member, Path, Result, Type, parse_quote};

use crate::attributes::{TypeAttributes, is_skipped};
use crate::bounds;

/// `impl TensorTree for` the type.
pub(crate) fn tensor_tree(input: &DeriveInput) -> Result<TokenStream> {
    let TypeAttributes { krate, bound } = TypeAttributes::parse(&input.attrs)?;
    let shapes = shapes(input)?;
    let visited = shapes.iter().flat_map(|shape| &shape.visited).map(|field| field.kind);
    let bounds = bound.unwrap_or_else(|| bounds::of_fields(&input.generics, visited, &krate));

    let mut generics = input.generics.clone();
    generics.make_where_clause().predicates.extend(bounds);
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let name = &input.ident;
    let body = body(&shapes, &krate);
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
    visited: Vec<VisitedField<'a>>,
}

struct VisitedField<'a> {
    member: Member,
    kind: &'a Type,
}

fn shapes(input: &DeriveInput) -> Result<Vec<Shape<'_>>> {
    match &input.data {
        Data::Struct(data) => Ok(vec![Shape { path: parse_quote!(Self), visited: visited(&data.fields)? }]),
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = &variant.ident;
                let fields = visited(&variant.fields)?;
                let skip = is_skipped(&variant.attrs)?;
                Ok(Shape { path: parse_quote!(Self::#name), visited: if skip { Vec::new() } else { fields } })
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
        if !is_skipped(attrs)? {
            visited.push(VisitedField { member, kind: ty });
        }
    }
    Ok(visited)
}

/// The items of the implementation. A type without a visited field holds no tensor; any other one may: a constant that
/// asked its fields would have no value for a recursive type.
fn body(shapes: &[Shape<'_>], krate: &Path) -> TokenStream {
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
    let arms = shapes.iter().map(|shape| arm(shape, krate, &visitor));
    quote! {
        #[inline]
        fn visit(&mut self, #visitor: &mut #krate::Visitor<'_>) -> ::core::result::Result<(), #krate::Stop> {
            #krate::Visitor::nested(#visitor, |#visitor| {
                match self { #(#arms)* }
                ::core::result::Result::Ok(())
            })
        }
    }
}

fn arm(Shape { path, visited }: &Shape<'_>, krate: &Path, visitor: &Ident) -> TokenStream {
    let members = visited.iter().map(|field| &field.member);
    let names: Vec<_> =
        (0..visited.len()).map(|index| format_ident!("__field{index}", span = Span::mixed_site())).collect();
    // The span of the field's type is where the compiler complains if that is no `TensorTree`.
    let visits = visited.iter().zip(&names).map(|(field, name)| {
        quote_spanned! { Span::mixed_site().located_at(field.kind.span())=>
            #krate::TensorTree::visit(#name, #visitor)?;
        }
    });
    quote! { #path { #(#members: #names,)* .. } => { #(#visits)* } }
}
