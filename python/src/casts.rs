//! What becomes of the elements of a leaf: what the program asked for, for a type of elements or for each leaf.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use transship::Cast;

use crate::dtype;

/// A type that elements get, and how.
#[derive(Debug, Clone, Copy)]
pub struct CastTo {
    /// Of [`dtype::ALL`].
    pub element: usize,
    saturating: bool,
    /// What an `uint8` is multiplied by, and what is added then.
    scaling: Option<(f32, f32)>,
}

/// What the program asked for.
pub enum Casts<'py> {
    /// For each type of elements.
    Table(Vec<Option<CastTo>>),
    /// A function of the path of a leaf and the leaf.
    Asked(Bound<'py, PyAny>),
}

impl<'py> Casts<'py> {
    /// `None` asks for nothing; a dict has the names of types and what they become; all else is called.
    pub fn new(asked: Option<Bound<'py, PyAny>>) -> PyResult<Self> {
        let mut table = vec![None; dtype::ALL.len()];
        let Some(asked) = asked else { return Ok(Self::Table(table)) };
        let Ok(dict) = asked.cast::<PyDict>() else { return Ok(Self::Asked(asked)) };
        for (name, to) in dict {
            let name: String = name.extract()?;
            table[dtype::number_of_name(&name).ok_or_else(|| unknown(&name))?] = Some(CastTo::read(&to)?);
        }
        Ok(Self::Table(table))
    }

    /// What becomes of a leaf with elements of type `element`, which is `object` and lies at `path`.
    pub fn of(
        &self,
        element: Option<usize>,
        path: &Bound<'py, PyTuple>,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Option<CastTo>> {
        match self {
            Self::Table(table) => Ok(element.and_then(|element| table[element])),
            Self::Asked(function) => {
                let to = function.call1((path, object))?;
                if to.is_none() { Ok(None) } else { CastTo::read(&to).map(Some) }
            }
        }
    }

    /// Whether paths are asked for.
    pub fn asks(&self) -> bool {
        matches!(self, Self::Asked(_))
    }
}

impl CastTo {
    fn read(to: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (name, saturating, scaling) = to.extract::<(String, bool, Option<(f32, f32)>)>()?;
        let element = dtype::number_of_name(&name).ok_or_else(|| unknown(&name))?;
        Ok(Self { element, saturating, scaling })
    }

    /// The library's cast; `None` for elements that stay as they are.
    pub fn from(self, element: usize) -> PyResult<Option<Cast>> {
        let name = |element: usize| dtype::ALL[element].name;
        if element == self.element && self.scaling.is_none() {
            return Ok(None);
        }
        let (Some(from), Some(to)) = (dtype::of_library(element), dtype::of_library(self.element)) else {
            let text = format!(
                "{} is not cast to {}: one of them is only copied as it is",
                name(element),
                name(self.element)
            );
            return Err(PyTypeError::new_err(text));
        };
        let mut cast = Cast::new(from, to);
        if self.saturating {
            cast = cast.saturating();
        }
        if let Some((scale, bias)) = self.scaling {
            cast = cast.scaled(scale, bias);
        }
        cast.check().map_err(|error| PyTypeError::new_err(error.to_string()))?;
        Ok(Some(cast))
    }
}

fn unknown(name: &str) -> PyErr {
    PyTypeError::new_err(format!("{name:?} is no type of elements that is known here"))
}
