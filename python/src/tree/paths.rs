//! Where leaves are in their structure.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{Skeleton, Step};

/// One step on the way to a leaf.
pub(super) enum Way {
    Index(usize),
    Key(Py<PyAny>),
    Attribute(Py<PyAny>),
}

impl Skeleton {
    /// The path of each leaf: the indices, keys and names of attributes on the way to it.
    pub fn paths<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let mut paths = Vec::new();
        self.walk(py, &mut |step, way| {
            if self.steps.get(step) != Some(&Step::Leaf) {
                return Ok(());
            }
            let steps = way.iter().map(|step| step.object(py)).collect::<PyResult<Vec<_>>>()?;
            paths.push(PyTuple::new(py, steps)?);
            Ok(())
        })?;
        Ok(paths)
    }

    /// The path of a leaf as it is written, such as `['a'][0].weight`.
    pub fn written_path(&self, py: Python<'_>, leaf: usize) -> Option<String> {
        let (mut number, mut found) = (0, None);
        let walked = self.walk(py, &mut |step, way| {
            if self.steps.get(step) != Some(&Step::Leaf) {
                return Ok(());
            }
            if number == leaf {
                found = Some(written(py, way));
            }
            number += 1;
            Ok(())
        });
        walked.ok().and(found)
    }

    /// The same of what this step is; `None` where there are more steps on the way than are shown.
    pub(super) fn written_way(&self, py: Python<'_>, step: usize) -> Option<String> {
        let mut found = None;
        let walked = self.walk(py, &mut |number, way| {
            if number == step && way.len() <= super::DEEPEST_SHOWN {
                found = Some(written(py, way));
            }
            Ok(())
        });
        walked.ok().and(found)
    }

    /// Shows the number of each step, and the way to what it is, in their order.
    fn walk(&self, py: Python<'_>, visit: &mut Visit<'_>) -> PyResult<()> {
        let mut walk = Walk { skeleton: self, step: 0, key: 0, other: 0, way: Vec::new() };
        walk.next(py, visit)
    }
}

type Visit<'a> = dyn FnMut(usize, &[Way]) -> PyResult<()> + 'a;

/// How the way to an item of a container that a function has opened is written.
pub(super) fn step_of(names: &Bound<'_, PyAny>, index: usize) -> String {
    written(names.py(), &[way_of(names, index)])
}

/// A path as it is written.
pub(super) fn written(py: Python<'_>, way: &[Way]) -> String {
    let step = |step: &Way| match step {
        Way::Index(index) => format!("[{index}]"),
        Way::Key(key) => format!("[{:?}]", key.bind(py)),
        Way::Attribute(name) => format!(".{}", name.bind(py)),
    };
    way.iter().map(step).collect()
}

/// The way to an item of a container that calls what it holds by these names.
pub(super) fn way_of(names: &Bound<'_, PyAny>, index: usize) -> Way {
    match names.get_item(index) {
        Ok(name) if names.is_instance_of::<PyTuple>() => Way::Attribute(name.unbind()),
        Ok(key) => Way::Key(key.unbind()),
        Err(_) => Way::Index(index),
    }
}

impl Way {
    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Index(index) => Ok(index.into_pyobject(py)?.into_any()),
            Self::Key(object) | Self::Attribute(object) => Ok(object.bind(py).clone()),
        }
    }
}

struct Walk<'a> {
    skeleton: &'a Skeleton,
    step: usize,
    key: usize,
    other: usize,
    way: Vec<Way>,
}

impl Walk<'_> {
    fn next(&mut self, py: Python<'_>, visit: &mut Visit<'_>) -> PyResult<()> {
        let Some(step) = self.skeleton.steps.get(self.step).copied() else { return Ok(()) };
        visit(self.step, &self.way)?;
        self.step += 1;
        match step {
            Step::Leaf | Step::Same => Ok(()),
            Step::List(len) | Step::Tuple(len) => {
                (0..len).try_for_each(|index| self.enter(py, Way::Index(index), visit))
            }
            Step::Dict(len) => (0..len).try_for_each(|_| {
                let key = self.skeleton.keys[self.key].clone_ref(py);
                self.key += 1;
                self.enter(py, Way::Key(key), visit)
            }),
            Step::Other(len) => {
                let names = self.skeleton.names[self.other].bind(py);
                self.other += 1;
                (0..len).try_for_each(|index| self.enter(py, way_of(names, index), visit))
            }
        }
    }

    fn enter(&mut self, py: Python<'_>, step: Way, visit: &mut Visit<'_>) -> PyResult<()> {
        super::check_stack()?;
        self.way.push(step);
        let walked = self.next(py, visit);
        self.way.pop();
        walked
    }
}
