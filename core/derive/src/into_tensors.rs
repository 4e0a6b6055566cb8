//! The type of tensors that `IntoTensors` makes of a type of arrays, and the way there and back.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Generics, Ident, Member, Path, Result, Type,
    WherePredicate, parse_quote, parse_quote_spanned,
};

use crate::attributes::{FieldAttributes, Macro, TypeAttributes, is_ours};
use crate::{bounds, expand};

/// The type, `impl TensorTree for` it, and `impl IntoTensors for` the type that it is made of.
pub(crate) fn into_tensors(input: &DeriveInput) -> Result<TokenStream> {
    let attributes = TypeAttributes::parse(&input.attrs, Macro::IntoTensors)?;
    let Some(name) = &attributes.tensors else {
        let message = "IntoTensors makes a type: name it, as in `#[tensor_tree(tensors = DeviceBatch)]`";
        return Err(Error::new(input.ident.span(), message));
    };
    let shapes = shapes(input)?;
    let mut generics = input.generics.clone();
    generics.make_where_clause().predicates.extend(bounds(&attributes, input, &shapes));

    let krate = &attributes.krate;
    let made = made(input, name, &generics, krate)?;
    let definition = definition(made.clone(), &attributes.derive);
    let tree = expand::implementation(&made, &generics, krate, &[name, &input.ident])?;
    let conversion = conversion(&input.ident, name, &generics, krate, &shapes);
    Ok(quote! { #definition #tree #conversion })
}

/// A struct, or one variant of an enum.
struct Shape<'a> {
    variant: Option<&'a Ident>,
    fields: Vec<ArrayField<'a>>,
}

struct ArrayField<'a> {
    member: Member,
    kind: &'a Type,
    /// Of a field, or of its variant.
    attributes: FieldAttributes,
}

fn shapes(input: &DeriveInput) -> Result<Vec<Shape<'_>>> {
    let shapes = match &input.data {
        Data::Struct(data) => vec![Shape { variant: None, fields: fields(&data.fields, false)? }],
        Data::Enum(data) => { data.variants.iter() }
            .map(|variant| {
                let is_skipped = variant_is_skipped(&variant.attrs)?;
                Ok(Shape { variant: Some(&variant.ident), fields: fields(&variant.fields, is_skipped)? })
            })
            .collect::<Result<_>>()?,
        Data::Union(data) => {
            let message = "IntoTensors cannot be derived for a union: nobody knows which of its fields is alive; use an enum";
            return Err(Error::new(data.union_token.span, message));
        }
    };
    if { shapes.iter() }.flat_map(|shape| &shape.fields).any(|field| field.attributes.becomes_tensors) {
        return Ok(shapes);
    }
    let message = "no field becomes tensors: mark each that does with `#[tensor_tree(tensors)]`";
    Err(Error::new(input.ident.span(), message))
}

fn fields(fields: &Fields, variant_is_skipped: bool) -> Result<Vec<ArrayField<'_>>> {
    { fields.members().zip(fields) }
        .map(|(member, field)| {
            let mut attributes = FieldAttributes::parse(&field.attrs, Macro::IntoTensors)?;
            if variant_is_skipped && attributes.becomes_tensors {
                let message = "a field becomes `tensors`, or a copy is to `skip` its variant";
                return Err(Error::new(field.ty.span(), message));
            }
            attributes.is_skipped |= variant_is_skipped;
            Ok(ArrayField { member, kind: &field.ty, attributes })
        })
        .collect()
}

fn variant_is_skipped(attributes: &[Attribute]) -> Result<bool> {
    let FieldAttributes { is_skipped, becomes_tensors } =
        FieldAttributes::parse(attributes, Macro::IntoTensors)?;
    match { attributes.iter() }.find(|attribute| becomes_tensors && is_ours(attribute)) {
        Some(attribute) => Err(Error::new(attribute.span(), "a variant has no `tensors`; mark its fields")),
        None => Ok(is_skipped),
    }
}

/// What the fields need: those that become tensors `IntoTensors`, others that are visited `TensorTree`. A field that names the type itself
/// needs what the others do.
fn bounds(attributes: &TypeAttributes, input: &DeriveInput, shapes: &[Shape<'_>]) -> Vec<WherePredicate> {
    if let Some(bound) = &attributes.bound {
        return bound.clone();
    }
    let krate = &attributes.krate;
    let parameters: Vec<&Ident> = input.generics.type_params().map(|parameter| &parameter.ident).collect();
    let fields = || shapes.iter().flat_map(|shape| &shape.fields);
    let converted = fields().filter(|field| field.attributes.becomes_tensors).map(|field| field.kind);
    let open = converted.filter(|kind| {
        expand::names_one_of(kind, &parameters) && !expand::names_one_of(kind, &[&input.ident])
    });
    let visited = fields().filter(|field| !field.attributes.becomes_tensors && !field.attributes.is_skipped);
    let mut bounds = bounds::of_fields(&input.generics, visited.map(|field| field.kind), krate);
    bounds.extend(open.map(|kind| -> WherePredicate { parse_quote!(#kind: #krate::IntoTensors) }));
    bounds
}

/// The type of tensors, as if it were written to derive `TensorTree`.
fn made(input: &DeriveInput, name: &Ident, generics: &Generics, krate: &Path) -> Result<DeriveInput> {
    let mut made = input.clone();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let host = &input.ident;
    let host = quote! { #host #type_generics };
    let doc = format!("[`{}`] with tensors in the place of its arrays.", input.ident);
    made.attrs = vec![parse_quote!(#[doc = #doc])];
    made.ident = name.clone();
    made.generics = generics.clone();
    match &mut made.data {
        Data::Struct(data) => data.fields.iter_mut().try_for_each(|field| make_field(field, &host, krate))?,
        Data::Enum(data) => {
            for variant in &mut data.variants {
                let is_skipped = variant_is_skipped(&variant.attrs)?;
                variant.attrs = kept(&variant.attrs, is_skipped);
                variant.discriminant = None;
                variant.fields.iter_mut().try_for_each(|field| make_field(field, &host, krate))?;
            }
        }
        Data::Union(_) => {}
    }
    Ok(made)
}

/// A field of the type `host`, which it may call `Self`.
fn make_field(field: &mut Field, host: &TokenStream, krate: &Path) -> Result<()> {
    let attributes = FieldAttributes::parse(&field.attrs, Macro::IntoTensors)?;
    field.attrs = kept(&field.attrs, attributes.is_skipped);
    if expand::names_one_of(&field.ty, &[]) {
        field.ty = syn::parse2(with_name(field.ty.to_token_stream(), host))?;
    }
    if attributes.becomes_tensors {
        let kind = &field.ty;
        // The compiler complains at the type of the field if that does not become tensors.
        let span = Span::mixed_site().located_at(kind.span());
        field.ty = parse_quote_spanned! { span=> <#kind as #krate::IntoTensors>::Tensors };
    }
    Ok(())
}

/// The same with `name` in the place of `Self`.
fn with_name(tokens: TokenStream, name: &TokenStream) -> TokenStream {
    { tokens.into_iter() }
        .flat_map(|token| match token {
            TokenTree::Ident(word) if word == "Self" => name.clone(),
            TokenTree::Group(group) => {
                TokenTree::from(Group::new(group.delimiter(), with_name(group.stream(), name))).into()
            }
            other => TokenStream::from(other),
        })
        .collect()
}

/// The documentation, and whether a visit skips it.
fn kept(attributes: &[Attribute], is_skipped: bool) -> Vec<Attribute> {
    let docs = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).cloned();
    docs.chain(is_skipped.then(|| parse_quote!(#[tensor_tree(skip)]))).collect()
}

/// The type without attributes that no derive would read.
fn definition(mut made: DeriveInput, derive: &[Path]) -> TokenStream {
    let strip = |attributes: &mut Vec<Attribute>| attributes.retain(|attribute| !is_ours(attribute));
    match &mut made.data {
        Data::Struct(data) => data.fields.iter_mut().for_each(|field| strip(&mut field.attrs)),
        Data::Enum(data) => data.variants.iter_mut().for_each(|variant| {
            strip(&mut variant.attrs);
            variant.fields.iter_mut().for_each(|field| strip(&mut field.attrs));
        }),
        Data::Union(_) => {}
    }
    let derives = (!derive.is_empty()).then(|| quote! { #[derive(#(#derive),*)] });
    // Its fields are those of the other type, whether the program reads them here or not.
    quote! {
        #derives
        #[allow(dead_code)]
        #made
    }
}

fn conversion(
    name: &Ident,
    tensors: &Ident,
    generics: &Generics,
    krate: &Path,
    shapes: &[Shape<'_>],
) -> TokenStream {
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let there = shapes.iter().map(|shape| arm_there(shape, name, tensors, krate));
    let back = shapes.iter().map(|shape| arm_back(shape, name, tensors, krate));
    let from = Ident::new("__tensors", Span::mixed_site());
    quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #impl_generics #krate::IntoTensors for #name #type_generics #where_clause {
            type Tensors = #tensors #type_generics;

            fn into_tensors(self) -> Self::Tensors {
                match self { #(#there)* }
            }

            fn from_tensors(
                #from: Self::Tensors,
            ) -> ::core::result::Result<Self, #krate::Refused<Self::Tensors>> {
                match #from { #(#back)* }
            }
        }
    }
}

fn arm_there(shape: &Shape<'_>, name: &Ident, tensors: &Ident, krate: &Path) -> TokenStream {
    let (from, into) = (path(name, shape), path(tensors, shape));
    let (members, names) = members(shape);
    let values =
        shape.fields.iter().zip(&names).map(|(field, name)| match field.attributes.becomes_tensors {
            true => quote! { #krate::IntoTensors::into_tensors(#name) },
            false => quote! { #name },
        });
    quote! { #from { #(#members: #names),* } => #into { #(#members: #values),* }, }
}

/// The fields that become arrays do so together, as a tuple of tuples: all of them, or none.
fn arm_back(shape: &Shape<'_>, name: &Ident, tensors: &Ident, krate: &Path) -> TokenStream {
    let (from, into) = (path(tensors, shape), path(name, shape));
    let (members, names) = members(shape);
    let converted = || shape.fields.iter().zip(&names).filter(|(field, _)| field.attributes.becomes_tensors);
    let kinds = converted().fold(quote! { () }, |before, (field, _)| {
        let kind = field.kind;
        quote! { (#before, #kind) }
    });
    let values = converted().fold(quote! { () }, |before, (_, name)| quote! { (#before, #name) });
    let [refused, error] = ["__refused", "__error"].map(|name| Ident::new(name, Span::mixed_site()));
    quote! {
        #from { #(#members: #names),* } => {
            match <#kinds as #krate::IntoTensors>::from_tensors(#values) {
                ::core::result::Result::Ok(#values) => {
                    ::core::result::Result::Ok(#into { #(#members: #names),* })
                }
                ::core::result::Result::Err(#refused) => {
                    let (#error, #values) = #krate::Refused::into_parts(#refused);
                    ::core::result::Result::Err(#krate::Refused::new(#error, #from { #(#members: #names),* }))
                }
            }
        }
    }
}

fn path(name: &Ident, shape: &Shape<'_>) -> Path {
    match shape.variant {
        Some(variant) => parse_quote!(#name::#variant),
        None => parse_quote!(#name),
    }
}

/// Each field, and a name for it.
fn members<'a>(shape: &'a Shape<'_>) -> (Vec<&'a Member>, Vec<Ident>) {
    let names =
        (0..shape.fields.len()).map(|index| format_ident!("__field{index}", span = Span::mixed_site()));
    (shape.fields.iter().map(|field| &field.member).collect(), names.collect())
}
