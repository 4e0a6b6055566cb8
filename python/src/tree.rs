//! Structures of Python, taken apart into leaves and put together again.

use std::ffi::c_int;
use std::ops::Range;

use pyo3::exceptions::{PyRecursionError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::errors;
use crate::room::Room;

mod pair;
mod paths;

/// A structure without its leaves. Containers come before what they hold.
#[derive(Default)]
pub struct Skeleton {
    steps: Vec<Step>,
    /// Keys of dicts, in the order of their steps.
    keys: Vec<Py<PyAny>>,
    /// What goes through as it is.
    same: Vec<Py<PyAny>>,
    /// What puts other containers together out of the list of what they held.
    rebuild: Vec<Py<PyAny>>,
    /// For each of these, what it called what it held: a list of keys, a tuple of names, or `None`.
    names: Vec<Py<PyAny>>,
    leaves: usize,
    /// How many containers are open. Whatever walks the steps goes no deeper than they were made.
    depth: usize,
    /// Where the first error was, from the inside out.
    failed_at: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The next leaf.
    Leaf,
    /// The next object that goes through.
    Same,
    List(usize),
    Tuple(usize),
    Dict(usize),
    /// The next of `rebuild`.
    Other(usize),
}

static STEPS: Room = Room::new();
static KEYS: Room = Room::new();

/// So many entries of a dict are taken at a time, and their values looked at ahead. For 528 tensors in dicts of five, which lie in no cache, that is 165 us to read
/// them without it, 92 with it.
pub const AT_ONCE: usize = 8;
/// More containers in each other are an error: newer Pythons let code of C go deeper than most stacks are.
const MAX_DEPTH: usize = 1000;
/// For what is no container: code of the program, of PyTorch and of numpy.
const STACK_OF_A_LEAF: usize = 128 << 10;
/// Paths of more steps are not shown.
const DEEPEST_SHOWN: usize = 40;

/// What is a leaf, and what a container.
pub trait Rules<'py> {
    /// What the structure is there for, in errors.
    const IS: &'static str = "to be copied";

    /// Takes an object that is a leaf of the most frequent kind. Gives any other one back.
    fn take_plain(&mut self, object: Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(Some(object))
    }

    /// Item number `index` of this list comes next.
    #[inline]
    fn expect(&self, list: &Bound<'py, PyList>, index: usize) {
        let _ = (list, index);
    }

    /// The values of these entries of a dict come next.
    #[inline]
    fn expect_values(&self, entries: &Entries<'py>) {
        let _ = entries;
    }

    /// Says what an object is, and takes it if it is a leaf.
    fn take(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Found<'py>>;
}

/// Keys and values of a dict, the first ones of these.
pub type Entries<'py> = [Option<Entry<'py>>; AT_ONCE];
pub type Entry<'py> = (Py<PyAny>, Bound<'py, PyAny>);

/// What an object of a structure is.
pub enum Found<'py> {
    /// A leaf, which was taken.
    Leaf,
    /// It goes through as it is.
    Same,
    Container(Opened<'py>),
}

/// A container that was opened.
pub enum Opened<'py> {
    List,
    Tuple,
    Dict,
    /// What it holds, what makes one like it out of a list of as many others, and what it calls them: a list of keys, a tuple of names,
    /// or `None`.
    Other(Bound<'py, PyList>, Bound<'py, PyAny>, Bound<'py, PyAny>),
}

impl Skeleton {
    /// Takes `root` apart, in order. Its leaves go to `rules`.
    pub fn of<'py, R: Rules<'py>>(root: &Bound<'py, PyAny>, rules: &mut R) -> PyResult<Self> {
        let mut skeleton = Self { steps: STEPS.list(), keys: KEYS.list(), ..Self::default() };
        match skeleton.add(root.clone(), rules) {
            Ok(()) => {
                STEPS.note(&mut skeleton.steps);
                KEYS.note(&mut skeleton.keys);
                Ok(skeleton)
            }
            Err(error) => Err(skeleton.with_path(root.py(), error, R::IS)),
        }
    }

    /// A new structure, with these leaves in it.
    pub fn build(&self, py: Python<'_>, leaves: &[Py<PyAny>]) -> PyResult<Py<PyAny>> {
        if leaves.len() != self.leaves {
            return Err(PyRuntimeError::new_err("a structure with another number of leaves"));
        }
        let mut builder = Builder {
            skeleton: self,
            leaves: leaves.iter(),
            step: 0,
            key: 0,
            same: 0,
            rebuild: 0,
            made: Vec::new(),
            last: None,
        };
        builder.next(py)
    }

    /// Shows the garbage collector all objects.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let others = self.rebuild.iter().chain(&self.names);
        self.keys.iter().chain(&self.same).chain(others).try_for_each(|object| visit.call(object))
    }

    /// Whether all of it goes through as it is.
    pub fn is_no_structure(&self) -> bool {
        self.steps == [Step::Same]
    }

    /// Says where the leaf is in the structure, which `is` to be copied, or otherwise.
    fn with_path(self, py: Python<'_>, error: PyErr, is: &str) -> PyErr {
        if (1..=DEEPEST_SHOWN).contains(&self.failed_at.len()) {
            let path: String = self.failed_at.iter().rev().map(String::as_str).collect();
            errors::note(py, &error, &format!("in the structure {is}, at {path}"));
        }
        error
    }

    /// Says where in the result what could not be put together was to be.
    #[cold]
    fn note_where(&self, py: Python<'_>, error: &PyErr, step: usize) {
        if let Some(path) = self.written_way(py, step).filter(|path| !path.is_empty()) {
            errors::note(py, error, &format!("in the result, at {path}"));
        }
    }

    fn add_at<'py>(
        &mut self,
        item: Bound<'py, PyAny>,
        rules: &mut impl Rules<'py>,
        step: impl FnOnce() -> String,
    ) -> PyResult<()> {
        self.add(item, rules).inspect_err(|_| self.failed_at.push(step()))
    }

    #[inline(always)]
    fn add<'py>(&mut self, object: Bound<'py, PyAny>, rules: &mut impl Rules<'py>) -> PyResult<()> {
        if let Some(object) = rules.take_plain(object)? {
            return self.add_other(&object, rules);
        }
        self.leaves += 1;
        self.steps.push(Step::Leaf);
        Ok(())
    }

    fn add_other<'py>(&mut self, object: &Bound<'py, PyAny>, rules: &mut impl Rules<'py>) -> PyResult<()> {
        match rules.take(object)? {
            Found::Leaf => {
                self.leaves += 1;
                self.steps.push(Step::Leaf);
            }
            Found::Same => {
                self.same.push(object.clone().unbind());
                self.steps.push(Step::Same);
            }
            Found::Container(opened) => {
                if self.depth == MAX_DEPTH {
                    return Err(too_deep());
                }
                check_stack()?;
                let _depth = Depth::enter(object.py())?;
                self.depth += 1;
                // After an error nothing is added any more.
                self.add_container(object, opened, rules)?;
                self.depth -= 1;
            }
        }
        Ok(())
    }

    fn add_container<'py>(
        &mut self,
        object: &Bound<'py, PyAny>,
        opened: Opened<'py>,
        rules: &mut impl Rules<'py>,
    ) -> PyResult<()> {
        match opened {
            Opened::List => self.add_list(object.cast()?, rules),
            Opened::Tuple => {
                let tuple = object.cast::<PyTuple>()?;
                self.steps.push(Step::Tuple(tuple.len()));
                let mut items = tuple.iter().enumerate();
                items.try_for_each(|(index, item)| self.add_at(item, rules, || format!("[{index}]")))
            }
            Opened::Dict => self.add_dict(object.cast()?, rules),
            Opened::Other(held, rebuild, names) => {
                self.steps.push(Step::Other(held.len()));
                self.rebuild.push(rebuild.unbind());
                self.names.push(names.clone().unbind());
                let mut items = held.iter().enumerate();
                items.try_for_each(|(index, item)| self.add_at(item, rules, || paths::step_of(&names, index)))
            }
        }
    }

    fn add_list<'py>(&mut self, list: &Bound<'py, PyList>, rules: &mut impl Rules<'py>) -> PyResult<()> {
        let len = list.len();
        self.steps.push(Step::List(len));
        // Not more than is there already.
        self.steps.reserve(len);
        // Code of the program may run in between, and change it: each item is asked for.
        (0..len).try_for_each(|index| {
            rules.expect(list, index);
            self.add_at(list.get_item(index)?, rules, || format!("[{index}]"))
        })
    }

    fn add_dict<'py>(&mut self, dict: &Bound<'py, PyDict>, rules: &mut impl Rules<'py>) -> PyResult<()> {
        if !dict.is_exact_instance_of::<PyDict>() {
            let len = dict.len();
            // An OrderedDict has an order of its own.
            let items = PyList::type_object(dict.py())
                .call1((dict.call_method0("items")?,))?
                .cast_into::<PyList>()?;
            if items.len() != len {
                return Err(PyRuntimeError::new_err("a dict whose items() are not as many as it says"));
            }
            return self.add_items(&items, rules);
        }
        if cfg!(Py_GIL_DISABLED) {
            // Other threads may change it: taken at once.
            return self.add_items(&dict.items(), rules);
        }
        let len = dict.len();
        self.steps.push(Step::Dict(len));
        let (mut position, mut count) = (0, 0);
        let mut entries: Entries<'py> = [const { None }; AT_ONCE];
        while take_entries(dict, &mut position, &mut entries) {
            rules.expect_values(&entries);
            for entry in &mut entries {
                let Some((key, value)) = entry.take() else { break };
                count += 1;
                self.add_entry(key, value, rules)?;
                if dict.len() != len || count > len {
                    return Err(PyRuntimeError::new_err("dictionary changed size during iteration"));
                }
            }
        }
        if count == len {
            Ok(())
        } else {
            Err(PyRuntimeError::new_err("dictionary changed during iteration"))
        }
    }

    /// The keys and values of a dict, in pairs.
    fn add_items<'py>(&mut self, items: &Bound<'py, PyList>, rules: &mut impl Rules<'py>) -> PyResult<()> {
        self.steps.push(Step::Dict(items.len()));
        items.iter().try_for_each(|item| {
            let (key, value) = item.extract::<Entry<'py>>()?;
            self.add_entry(key, value, rules)
        })
    }

    #[inline(always)]
    fn add_entry<'py>(
        &mut self,
        key: Py<PyAny>,
        value: Bound<'py, PyAny>,
        rules: &mut impl Rules<'py>,
    ) -> PyResult<()> {
        let (py, number) = (value.py(), self.keys.len());
        self.keys.push(key);
        self.add(value, rules).inspect_err(|_| {
            let key = self.keys[number].bind(py);
            self.failed_at.push(format!("[{key:?}]"));
        })
    }
}

/// Takes entries of a dict, from where `PyDict_Next` has come to, into `entries`, which are none. Whether there are any.
#[inline]
fn take_entries<'py>(
    dict: &Bound<'py, PyDict>,
    position: &mut ffi::Py_ssize_t,
    entries: &mut Entries<'py>,
) -> bool {
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    for entry in &mut *entries {
        // SAFETY: a dict that no other thread changes, with the GIL, and places for what is borrowed from it.
        if unsafe { ffi::PyDict_Next(dict.as_ptr(), position, &mut key, &mut value) } == 0 {
            break;
        }
        // SAFETY: both are objects, and alive: nothing has run since the dict was asked.
        let (key, value) =
            unsafe { (Bound::from_borrowed_ptr(dict.py(), key), Bound::from_borrowed_ptr(dict.py(), value)) };
        *entry = Some((key.unbind(), value));
    }
    entries[0].is_some()
}

/// The table of a dict of fewer keys does not grow.
const LEAST_COPIED: usize = 4;

struct Builder<'a> {
    skeleton: &'a Skeleton,
    leaves: std::slice::Iter<'a, Py<PyAny>>,
    step: usize,
    key: usize,
    same: usize,
    rebuild: usize,
    /// Items of containers that are about to be made.
    made: Vec<Py<PyAny>>,
    /// The last dict of names and no containers, and where its keys are.
    last: Option<(Range<usize>, Py<PyAny>)>,
}

impl<'a> Builder<'a> {
    #[inline]
    fn next(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.leaf() {
            Some(leaf) => Ok(leaf.clone_ref(py)),
            None => self.other(py),
        }
    }

    /// The next leaf, if that comes next.
    #[inline]
    fn leaf(&mut self) -> Option<&'a Py<PyAny>> {
        let step = self.skeleton.steps.get(self.step)?;
        let leaf = if *step == Step::Leaf { self.leaves.next()? } else { return None };
        self.step += 1;
        Some(leaf)
    }

    /// What is no leaf.
    fn other(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let skeleton = self.skeleton;
        let step = skeleton.steps.get(self.step).ok_or_else(unbalanced)?;
        self.step += 1;
        match step {
            Step::Leaf => Err(unbalanced()),
            Step::Same => {
                self.same += 1;
                Ok(skeleton.same[self.same - 1].clone_ref(py))
            }
            Step::List(len) => self.list(py, *len).map(|list| list.into_any().unbind()),
            Step::Tuple(len) => self.tuple(py, *len),
            Step::Dict(len) => self.dict(py, *len),
            Step::Other(len) => {
                self.rebuild += 1;
                let rebuild = &skeleton.rebuild[self.rebuild - 1];
                let number = self.step - 1;
                let held = self.list(py, *len)?;
                // It may find the last dict, and change it.
                self.last = None;
                rebuild.call1(py, (held,)).inspect_err(|error| skeleton.note_where(py, error, number))
            }
        }
    }

    /// Where a dict has the keys of the last one, it begins as a copy of that: its table is copied, and does not grow key by key.
    fn dict(&mut self, py: Python<'_>, len: usize) -> PyResult<Py<PyAny>> {
        let skeleton = self.skeleton;
        // Where it has no containers.
        let keys = self.key..self.key + len;
        let is_flat = self.is_flat(len);
        if !is_flat {
            check_stack()?;
        }
        let like_last = if is_flat { self.like_last(py, &keys).transpose()? } else { None };
        let is_copied = like_last.is_some();
        let dict = like_last.unwrap_or_else(|| PyDict::new(py));
        for _ in 0..len {
            self.key += 1;
            let key = &skeleton.keys[self.key - 1];
            match self.leaf() {
                Some(leaf) => dict.set_item(key, leaf)?,
                None => dict.set_item(key, self.other(py)?)?,
            }
        }
        let dict = dict.into_any().unbind();
        if is_flat && !is_copied && self.are_copied(py, &keys) {
            self.last = Some((keys, dict.clone_ref(py)));
        }
        Ok(dict)
    }

    /// Whether it pays to copy a table of these keys, and no code of the program runs for them, which could find the dict and change it.
    fn are_copied(&self, py: Python<'_>, keys: &Range<usize>) -> bool {
        let keys = &self.skeleton.keys[keys.clone()];
        keys.len() >= LEAST_COPIED && keys.iter().all(|key| key.bind(py).is_exact_instance_of::<PyString>())
    }

    /// Whether the next so many steps are no containers.
    fn is_flat(&self, len: usize) -> bool {
        let steps = self.skeleton.steps.get(self.step..self.step + len);
        steps.is_some_and(|steps| steps.iter().all(|step| matches!(step, Step::Leaf | Step::Same)))
    }

    /// A copy of the last dict, if it has these keys.
    fn like_last<'py>(&self, py: Python<'py>, keys: &Range<usize>) -> Option<PyResult<Bound<'py, PyDict>>> {
        let (last, dict) = self.last.as_ref()?;
        let (last, keys) = (self.skeleton.keys.get(last.clone())?, self.skeleton.keys.get(keys.clone())?);
        let is_same = last.len() == keys.len() && last.iter().zip(keys).all(|(one, other)| one.is(other));
        is_same.then(|| dict.bind(py).cast::<PyDict>()?.copy())
    }

    fn list<'py>(&mut self, py: Python<'py>, len: usize) -> PyResult<Bound<'py, PyList>> {
        // SAFETY: both are of lists.
        let list = unsafe { self.filled(py, len, ffi::PyList_New, ffi::PyList_SetItem) }?;
        Ok(list.cast_into()?)
    }

    fn tuple(&mut self, py: Python<'_>, len: usize) -> PyResult<Py<PyAny>> {
        // SAFETY: both are of tuples.
        unsafe { self.filled(py, len, ffi::PyTuple_New, ffi::PyTuple_SetItem) }.map(Bound::unbind)
    }

    /// A container with the next items. It is made when they are there: code of the program, which runs for some of them, can find what the
    /// garbage collector knows of.
    ///
    /// # Safety
    ///
    /// `new` makes a container of so many items that `set` sets, and hands the reference over to.
    unsafe fn filled<'py>(
        &mut self,
        py: Python<'py>,
        len: usize,
        new: unsafe extern "C" fn(isize) -> *mut ffi::PyObject,
        set: unsafe extern "C" fn(*mut ffi::PyObject, isize, *mut ffi::PyObject) -> c_int,
    ) -> PyResult<Bound<'py, PyAny>> {
        let size = isize::try_from(len).map_err(|_| PyValueError::new_err("a container that is too long"))?;
        let are_there = self.is_flat(len);
        let first = self.made.len();
        if !are_there {
            check_stack()?;
            for _ in 0..len {
                let item = self.next(py)?;
                self.made.push(item);
            }
        }
        // SAFETY: the caller's promise; what is not set yet is dropped as such.
        let container = unsafe { Bound::from_owned_ptr_or_err(py, new(size)) }?;
        let set = |index, item: Py<PyAny>| {
            // SAFETY: the container is new, nobody has seen it, and it has such an item.
            match unsafe { set(container.as_ptr(), index, item.into_ptr()) } {
                0 => Ok(()),
                _ => Err(PyErr::fetch(py)),
            }
        };
        match are_there {
            true => (0..size).try_for_each(|index| set(index, self.next(py)?))?,
            false => {
                (0..size).zip(self.made.drain(first..)).try_for_each(|(index, item)| set(index, item))?
            }
        }
        Ok(container)
    }
}

#[cold]
fn too_deep() -> PyErr {
    let text =
        format!("a structure of tensors with more than {MAX_DEPTH} containers in each other, or in itself");
    PyRecursionError::new_err(text)
}

/// Fails where the stack of this thread comes to its end. Whatever walks over containers looks at each: another thread may have read them.
#[inline]
fn check_stack() -> PyResult<()> {
    match stacker::remaining_stack() {
        Some(left @ 1..) if left < STACK_OF_A_LEAF => Err(PyRecursionError::new_err(
            "a structure of tensors that is nested deeper than the stack of this thread",
        )),
        // What is not known is none, or nothing.
        _ => Ok(()),
    }
}

fn unbalanced() -> PyErr {
    PyRuntimeError::new_err("a structure that does not match its own description")
}

/// Python's own limit of recursion: `RecursionError` instead of the end of the stack.
struct Depth<'py>(Python<'py>);

impl<'py> Depth<'py> {
    fn enter(py: Python<'py>) -> PyResult<Self> {
        // SAFETY: the GIL is held.
        match unsafe { ffi::Py_EnterRecursiveCall(c" in a structure of tensors".as_ptr()) } {
            0 => Ok(Self(py)),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

impl Drop for Depth<'_> {
    fn drop(&mut self) {
        let _ = self.0;
        // SAFETY: it was entered.
        unsafe { ffi::Py_LeaveRecursiveCall() };
    }
}
