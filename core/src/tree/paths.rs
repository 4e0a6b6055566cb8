//! A structure, gone through without changing it, with the path to each tensor.

use std::fmt;

use crate::tensor::tensor::Tensor;
use crate::tree::stack_growth;
use crate::tree::step::{Step, print_number};
use crate::tree::tensor_tree::{Descent, Stop, TensorTree};

/// Goes through a structure without changing it, and knows the way to where it is.
///
/// ```
/// use transship_core::{Paths, Step, Stop, Tensor, TensorTree, Visitor};
///
/// struct Camera {
///     boxes: Tensor,
///     depths: Vec<Tensor>,
/// }
///
/// impl TensorTree for Camera {
///     fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
///         visitor.nested(|visitor| {
///             self.boxes.visit(visitor)?;
///             self.depths.visit(visitor)
///         })
///     }
///
///     fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
///         paths.nested(|paths| {
///             paths.part(Step::Field("boxes"), &self.boxes)?;
///             paths.part(Step::Field("depths"), &self.depths)
///         })
///     }
/// }
/// ```
pub struct Paths<'a> {
    descent: Descent,
    path: String,
    /// `None` where nobody asks for it.
    name: Option<String>,
    /// How many keys of maps are on the way.
    keys: usize,
    sink: &'a mut Sink<'a>,
}

type Sink<'a> = dyn FnMut(TensorPath<'_>, &Tensor) -> Result<(), Stop> + 'a;

/// Where a tensor is in its structure. Prints as errors write it: `.layers["attn.q"][3]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPath<'a> {
    path: &'a str,
    name: &'a str,
    has_key: bool,
}

impl<'a> TensorPath<'a> {
    /// The same as one name, as those of a `state_dict` of PyTorch are made: `layers.attn.q.3`. Two tensors may have the same one. Empty
    /// where the structure is the tensor.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Whether a key of a map is on the way. Keys are written as they print (`Debug`): two that print alike make one path of two tensors, and whoever matches tensors
    /// by their paths cannot tell which is which.
    pub fn has_key(&self) -> bool {
        self.has_key
    }

    /// As it prints.
    pub(crate) fn as_str(&self) -> &'a str {
        self.path
    }
}

/// Shows every tensor of `tree` to `look`, with the path to it. Entries of maps come in the order of the map.
///
/// ```
/// use std::collections::BTreeMap;
/// use transship_core::{Tensor, for_each_path};
///
/// let layers = BTreeMap::from([("attn.q", vec![Tensor::scalar(1_u8), Tensor::scalar(2_u8)])]);
/// let mut seen = Vec::new();
/// for_each_path(&layers, |path, _| Ok(seen.push((path.to_string(), path.name().to_owned()))))?;
/// assert_eq!(seen[1], (r#"["attn.q"][1]"#.to_owned(), "attn.q.1".to_owned()));
/// # Ok::<(), transship_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::TooDeep`](crate::Error::TooDeep); [`Error::NotShown`](crate::Error::NotShown) for a type that does not implement
/// [`TensorTree::show`]; and what `look` returns.
pub fn for_each_path<S: TensorTree + ?Sized>(
    tree: &S,
    mut look: impl FnMut(TensorPath<'_>, &Tensor) -> crate::error::Result<()>,
) -> crate::error::Result<()> {
    let mut sink = |path: TensorPath<'_>, tensor: &Tensor| look(path, tensor).map_err(Stop::new);
    tree.show(&mut Paths::new(&mut sink)).map_err(Stop::into_reason)
}

/// The same without names.
pub(crate) fn for_each_printed_path<S: TensorTree + ?Sized>(
    tree: &S,
    mut look: impl FnMut(TensorPath<'_>, &Tensor) -> crate::error::Result<()>,
) -> crate::error::Result<()> {
    let mut sink = |path: TensorPath<'_>, tensor: &Tensor| look(path, tensor).map_err(Stop::new);
    tree.show(&mut Paths { name: None, ..Paths::new(&mut sink) }).map_err(Stop::into_reason)
}

impl<'a> Paths<'a> {
    /// Shows every tensor to `sink`, from the root of a structure on.
    pub fn new(sink: &'a mut Sink<'a>) -> Self {
        Self { descent: Descent::here(), path: String::new(), name: Some(String::new()), keys: 0, sink }
    }

    /// Goes one level down. Every type that holds others shows them through this. Where the stack of the thread comes to its end,
    /// `inside` runs on more of it.
    ///
    /// # Errors
    ///
    /// Below [`MAX_DEPTH`](crate::MAX_DEPTH) levels, and what `inside` returns.
    pub fn nested(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        if self.descent.stack.is_close() { self.on_more_stack(inside) } else { self.one_down(inside) }
    }

    fn one_down(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.descent.down()?;
        let result = inside(self);
        self.descent.up();
        result
    }

    #[cold]
    fn on_more_stack(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        stack_growth::with_enough(|stack| {
            let outer = std::mem::replace(&mut self.descent.stack, stack);
            let result = self.one_down(inside);
            self.descent.stack = outer;
            result
        })
    }

    /// Shows the tensors of a part of a structure.
    ///
    /// # Errors
    ///
    /// What showing them returns, with `step` in front of its path.
    pub fn part<T: TensorTree + ?Sized>(&mut self, step: Step<'_>, value: &T) -> Result<(), Stop> {
        if !T::MAY_HOLD_TENSORS {
            return Ok(());
        }
        let (path, name) = (self.path.len(), self.name.as_ref().map_or(0, String::len));
        self.go(&step);
        let key = usize::from(matches!(step, Step::Key(_)));
        self.keys += key;
        let result = value.show(self);
        self.keys -= key;
        self.path.truncate(path);
        if let Some(longer) = &mut self.name {
            longer.truncate(name);
        }
        match result {
            Ok(()) => Ok(()),
            Err(stop) => Err(stop.below(step)),
        }
    }

    pub(crate) fn tensor(&mut self, tensor: &Tensor) -> Result<(), Stop> {
        let name = self.name.as_deref().unwrap_or_default();
        (self.sink)(TensorPath { path: &self.path, name, has_key: self.keys > 0 }, tensor)
    }

    /// Shows items by index.
    pub(crate) fn items<'t, T: TensorTree + 't>(
        &mut self,
        items: impl Iterator<Item = &'t T>,
    ) -> Result<(), Stop> {
        if !T::MAY_HOLD_TENSORS {
            return Ok(());
        }
        self.nested(|paths| {
            { items }.enumerate().try_for_each(|(index, item)| paths.part(Step::Index(index), item))
        })
    }

    /// Shows entries by key.
    pub(crate) fn entries<'t, K: fmt::Debug + 't, T: TensorTree + 't>(
        &mut self,
        entries: impl Iterator<Item = (&'t K, &'t T)>,
    ) -> Result<(), Stop> {
        if !T::MAY_HOLD_TENSORS {
            return Ok(());
        }
        self.nested(|paths| { entries }.try_for_each(|(key, value)| paths.part(Step::Key(key), value)))
    }

    fn go(&mut self, step: &Step<'_>) {
        step.print_to(&mut self.path);
        let Some(name) = &mut self.name else { return };
        if !name.is_empty() {
            name.push('.');
        }
        match step {
            Step::Field(field) => name.push_str(field),
            Step::Index(index) => print_number(*index, name),
            Step::Key(key) => name.push_str(&plain(format!("{key:?}"))),
        }
    }
}

impl fmt::Display for TensorPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)
    }
}

/// A key that prints as a text does, in quotes, as that text. Others stay as they print.
fn plain(printed: String) -> String {
    let quoted = printed.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    quoted.and_then(unescaped).unwrap_or(printed)
}

/// Takes back what `Debug` does to the letters of a text; `None` if nothing that it prints.
fn unescaped(text: &str) -> Option<String> {
    let (mut plain, mut letters) = (String::with_capacity(text.len()), text.chars());
    while let Some(letter) = letters.next() {
        let letter = match letter {
            '"' => return None,
            '\\' => match letters.next()? {
                't' => '\t',
                'r' => '\r',
                'n' => '\n',
                '0' => '\0',
                'u' => {
                    let code = letters.as_str().strip_prefix('{')?.split_once('}')?.0;
                    letters.nth(code.len() + 1)?;
                    char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                }
                same @ ('\\' | '"' | '\'') => same,
                _ => return None,
            },
            letter => letter,
        };
        plain.push(letter);
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn keys_that_are_texts_lose_their_quotes_and_nothing_else() {
        for text in ["", "attn.q", "\"", "a\"b", "\\", "\\u{41}", "\t\r\n\0'", "e\u{301}\u{200b}", "\u{7f}ä"]
        {
            assert_eq!(plain(format!("{text:?}")), text);
        }
        for other in ["3", "Some(\"a\")", "(\"a\", \"b\")", "\"a\", \"b\"", "\"", "\"\\x\"", "\"\\u{41\""] {
            assert_eq!(plain(other.to_owned()), other);
        }
    }
}
