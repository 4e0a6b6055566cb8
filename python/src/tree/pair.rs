//! Two structures side by side: which leaf of the one belongs to which of the other.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::paths::{Way, written};
use super::{Skeleton, Step};

impl Skeleton {
    /// For each leaf of this structure the number of the one in `into` at the same place: items by index, keys and attributes by name.
    pub fn pair(&self, py: Python<'_>, into: &Self) -> PyResult<Vec<usize>> {
        if self.steps == into.steps && self.has_keys_of(into) {
            return Ok((0..self.leaves).collect());
        }
        let mut pairs = Pairs { py, way: Vec::new(), leaves: Vec::new() };
        let (ours, theirs) = (Node::of(py, self)?, Node::of(py, into)?);
        match pairs.add(&ours, &theirs) {
            Ok(()) => Ok(pairs.leaves),
            Err(error) if error.is_instance_of::<PyValueError>(py) => {
                let at = written(py, &pairs.way);
                let at = if at.is_empty() { "the structure" } else { &at };
                Err(PyValueError::new_err(format!("{at}: {}", error.value(py))))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether all keys are the same objects in the same order, and nothing is called by another name.
    fn has_keys_of(&self, other: &Self) -> bool {
        let are_same = |ours: &[Py<PyAny>], theirs: &[Py<PyAny>]| {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(one, other)| one.is(other))
        };
        self.names.is_empty() && are_same(&self.keys, &other.keys)
    }
}

/// A part of a structure.
enum Node<'py> {
    /// The number of the leaf.
    Leaf(usize),
    Same,
    List(Vec<Node<'py>>),
    Tuple(Vec<Node<'py>>),
    /// What calls its parts by keys or names.
    Named(Vec<Bound<'py, PyAny>>, bool, Vec<Node<'py>>),
    /// What a function has opened, and calls its parts nothing.
    Other(Vec<Node<'py>>),
}

impl<'py> Node<'py> {
    fn of(py: Python<'py>, skeleton: &Skeleton) -> PyResult<Self> {
        Reader { py, skeleton, step: 0, key: 0, other: 0, leaf: 0 }.next()
    }

    fn what(&self) -> String {
        match self {
            Self::Leaf(_) => "a tensor".to_owned(),
            Self::Same => "no tensor".to_owned(),
            Self::List(items) => format!("a list of {}", items.len()),
            Self::Tuple(items) => format!("a tuple of {}", items.len()),
            Self::Named(_, true, items) => format!("an object of {} attributes", items.len()),
            Self::Named(_, false, items) => format!("a mapping of {} keys", items.len()),
            Self::Other(items) => format!("a container of {}", items.len()),
        }
    }
}

struct Reader<'a, 'py> {
    py: Python<'py>,
    skeleton: &'a Skeleton,
    step: usize,
    key: usize,
    other: usize,
    leaf: usize,
}

impl<'py> Reader<'_, 'py> {
    fn next(&mut self) -> PyResult<Node<'py>> {
        super::check_stack()?;
        let step = self.skeleton.steps.get(self.step).copied().ok_or_else(super::unbalanced)?;
        self.step += 1;
        Ok(match step {
            Step::Leaf => {
                self.leaf += 1;
                Node::Leaf(self.leaf - 1)
            }
            Step::Same => Node::Same,
            Step::List(len) => Node::List(self.several(len)?),
            Step::Tuple(len) => Node::Tuple(self.several(len)?),
            Step::Dict(len) => {
                let (mut keys, mut items) = (Vec::new(), Vec::new());
                for _ in 0..len {
                    keys.push(self.skeleton.keys[self.key].bind(self.py).clone());
                    self.key += 1;
                    items.push(self.next()?);
                }
                Node::Named(keys, false, items)
            }
            Step::Other(len) => {
                let names = self.skeleton.names[self.other].bind(self.py).clone();
                self.other += 1;
                let items = self.several(len)?;
                if names.is_none() {
                    return Ok(Node::Other(items));
                }
                let keys = (0..len).map(|index| names.get_item(index)).collect::<PyResult<Vec<_>>>()?;
                Node::Named(keys, names.is_instance_of::<PyTuple>(), items)
            }
        })
    }

    fn several(&mut self, len: usize) -> PyResult<Vec<Node<'py>>> {
        (0..len).map(|_| self.next()).collect()
    }
}

struct Pairs<'py> {
    py: Python<'py>,
    /// Where they differ, if they do.
    way: Vec<Way>,
    leaves: Vec<usize>,
}

impl<'py> Pairs<'py> {
    fn add(&mut self, ours: &Node<'py>, theirs: &Node<'py>) -> PyResult<()> {
        match (ours, theirs) {
            (Node::Leaf(_), Node::Leaf(number)) => {
                self.leaves.push(*number);
                Ok(())
            }
            (Node::Same, Node::Same) => Ok(()),
            (Node::List(items), Node::List(others))
            | (Node::Tuple(items), Node::Tuple(others))
            | (Node::Other(items), Node::Other(others))
                if items.len() == others.len() =>
            {
                let mut pairs = items.iter().zip(others).enumerate();
                pairs.try_for_each(|(index, (item, other))| self.enter(Way::Index(index), item, other))
            }
            (Node::Named(keys, is_object, items), Node::Named(other_keys, is_other, others))
                if is_object == is_other =>
            {
                self.add_named((keys, *is_object, items), (other_keys, others))
            }
            _ => Err(PyValueError::new_err(format!(
                "{} to copy, but {} to copy into",
                ours.what(),
                theirs.what()
            ))),
        }
    }

    fn add_named(
        &mut self,
        (keys, is_object, items): (&[Bound<'py, PyAny>], bool, &[Node<'py>]),
        (other_keys, others): (&[Bound<'py, PyAny>], &[Node<'py>]),
    ) -> PyResult<()> {
        let numbers = PyDict::new(self.py);
        for (number, key) in other_keys.iter().enumerate() {
            numbers.set_item(key, number)?;
        }
        let way = |key: &Bound<'py, PyAny>| {
            if is_object { Way::Attribute(key.clone().unbind()) } else { Way::Key(key.clone().unbind()) }
        };
        for (key, item) in keys.iter().zip(items) {
            match numbers.get_item(key)? {
                Some(number) => {
                    numbers.del_item(key)?;
                    self.enter(way(key), item, &others[number.extract::<usize>()?])?;
                }
                None => {
                    self.way.push(way(key));
                    return Err(PyValueError::new_err(
                        "it is to be copied, and not in the structure to copy into",
                    ));
                }
            }
        }
        match numbers.keys().get_item(0) {
            Ok(key) => {
                self.way.push(way(&key));
                Err(PyValueError::new_err("it is in the structure to copy into, and not to be copied"))
            }
            Err(_) => Ok(()),
        }
    }

    /// On an error the way stays what it is there.
    fn enter(&mut self, step: Way, ours: &Node<'py>, theirs: &Node<'py>) -> PyResult<()> {
        super::check_stack()?;
        self.way.push(step);
        self.add(ours, theirs)?;
        self.way.pop();
        Ok(())
    }
}
