//! What a visit goes through besides tensors: what two structures that are paired in order must have in common.

use crate::error::count;

/// One part, in the order of the visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A list, or an option, of so many items.
    Items(usize),
    /// A map of so many entries.
    Entries(usize),
    /// An enum in this variant.
    Variant(&'static str),
}

/// Why structures with these outlines cannot be paired in order: what either has where they differ first.
pub(crate) fn difference(value: &[Part], into: &[Part]) -> Option<(String, String)> {
    let longer = value.len().max(into.len());
    let parts = (0..longer).map(|index| (value.get(index), into.get(index)));
    let (value, into) = { parts }.find(|(value, into)| value != into || value.is_some_and(Part::is_map))?;
    Some((describe(value), describe(into)))
}

fn describe(part: Option<&Part>) -> String {
    match part {
        None => "nothing more".to_owned(),
        Some(Part::Items(items)) => format!("a list or option of {}", count(*items, "item")),
        Some(Part::Entries(_)) => "a map, which has no order (pair it with Pairs::part)".to_owned(),
        Some(Part::Variant(name)) => format!("the variant {name}"),
    }
}

impl Part {
    /// Whether it has entries, whose keys nobody has compared.
    fn is_map(&self) -> bool {
        matches!(self, Self::Entries(1..))
    }
}
