//! Trees of values, built by a small program: every tensor is visited once, in order; a copy keeps the structure and the bytes,
//! and what cannot be copied comes back as it was.
#![no_main]

use std::sync::LazyLock;

use arbitrary::{Arbitrary, Result, Unstructured};
use late_backend::{LateConfig, LateHandle};
use libfuzzer_sys::fuzz_target;
use transship_core::{
    CopyOptions, CopyPolicy, Device, Error, Key, MAX_DEPTH, Tensor, Value, for_each_tensor, start_copy,
};

const MOST_STEPS: usize = 64;

#[derive(Debug, Arbitrary)]
struct Case {
    /// Over the device that copies as late as it may, else on the host.
    late: bool,
    pack: bool,
    steps: Vec<Step>,
}

/// One step of the program that builds a tree on a stack.
#[derive(Debug, Arbitrary)]
enum Step {
    /// Pushes bytes.
    Bytes(Vec<u8>),
    /// Pushes every other element of what was pushed last as bytes.
    Half,
    /// Pushes what is no tensor.
    Other(u32),
    /// Puts so many values into one.
    List(u8),
    Tuple(u8),
    Dict(u8, Vec<Name>),
    /// Wraps the topmost value so many times.
    Wrap(Depth),
    /// Pushes a value without a tensor.
    Nothing,
}

/// Mostly shallow, or around the deepest nesting that is copied.
#[derive(Debug)]
struct Depth(usize);

#[derive(Debug, Arbitrary)]
enum Name {
    Word(String),
    Number(i64),
}

fuzz_target!(|case: Case| {
    let Case { late, pack, steps } = case;
    let mut tree = build(&steps);
    let before = shape_of(&tree);
    let seen = visited(&mut tree);
    let is_deep = depth_of(&tree) > MAX_DEPTH;
    assert_eq!(seen.is_none(), is_deep, "a tree of {} levels", depth_of(&tree));

    let target = if late { LATE.device.clone() } else { Device::host() };
    let options = CopyOptions::default().policy(CopyPolicy::Always).packing(pack);
    match start_copy(tree, &target, options.clone()) {
        Ok(copy) => {
            assert!(!is_deep);
            let there = copy.wait().unwrap();
            let mut back = start_copy(there, &Device::host(), options).unwrap().wait().unwrap();
            assert_eq!(shape_of(&back), before);
            assert_eq!(visited(&mut back), seen);
        }
        Err(error) => {
            assert!(is_deep && matches!(error.error(), Error::TooDeep { .. }), "{error}");
            let back = error.into_value().unwrap();
            assert_eq!(shape_of(&back), before);
        }
    }
    if late {
        LATE.check();
    }
});

/// Kept: a device costs more than the copies that one run makes.
static LATE: LazyLock<Late> = LazyLock::new(|| {
    let handle = LateHandle::new(LateConfig::new("late")).unwrap();
    Late { device: Device::from_backend(handle.backend(0)).unwrap(), handle }
});

struct Late {
    handle: LateHandle,
    device: Device,
}

impl Late {
    fn check(&self) {
        assert!(self.handle.violations().is_empty(), "{:?}", self.handle.violations());
        self.handle.clear_calls();
    }
}

fn build(steps: &[Step]) -> Value {
    let mut stack = Vec::new();
    let mut last = Tensor::from(vec![1_u8, 2, 3]);
    for step in steps.iter().take(MOST_STEPS) {
        let value = match step {
            Step::Bytes(bytes) => {
                last = Tensor::from(bytes.clone());
                last.clone().into()
            }
            Step::Half => last.slice(0, 0..last.numel(), 2).unwrap().into(),
            Step::Other(number) => Value::other(*number),
            Step::List(count) => Value::list(take(&mut stack, *count)),
            Step::Tuple(count) => Value::tuple(take(&mut stack, *count)),
            Step::Dict(count, names) => Value::dict(names.iter().map(key).zip(take(&mut stack, *count))),
            Step::Wrap(Depth(depth)) => (0..*depth)
                .fold(stack.pop().unwrap_or_else(|| Value::other(())), |inner, _| Value::list([inner])),
            Step::Nothing => Value::list([]),
        };
        stack.push(value);
    }
    Value::list(stack)
}

fn take(stack: &mut Vec<Value>, count: u8) -> Vec<Value> {
    stack.split_off(stack.len().saturating_sub(usize::from(count)))
}

fn key(name: &Name) -> Key {
    match name {
        Name::Word(word) => word.as_str().into(),
        Name::Number(number) => (*number).into(),
    }
}

/// The bytes of every tensor, in order; `None` if the tree is too deep to be visited.
fn visited(tree: &mut Value) -> Option<Vec<Vec<u8>>> {
    let mut seen = Vec::new();
    let read = |tensor: &mut Tensor| {
        seen.push(tensor.to_bytes()?);
        Ok(())
    };
    for_each_tensor(tree, read).is_ok().then_some(seen)
}

/// All that is to be the same behind a copy, without recursion: it is taken of trees of any depth.
fn shape_of(tree: &Value) -> Vec<String> {
    let mut seen = Vec::new();
    let mut left = vec![tree];
    while let Some(value) = left.pop() {
        seen.push(match value {
            Value::Tensor(tensor) => format!("{:?} {:?}", tensor.dtype(), tensor.shape()),
            Value::List(items) => format!("list of {}", items.len()),
            Value::Tuple(items) => format!("tuple of {}", items.len()),
            Value::Dict(entries) => format!("dict of {:?}", entries.keys().collect::<Vec<_>>()),
            Value::Other(_) => format!("other {:?}", value.downcast_ref::<u32>()),
        });
        left.extend(children(value));
    }
    seen
}

/// How many containers lie in one another.
fn depth_of(tree: &Value) -> usize {
    let mut deepest = 0;
    let mut left = vec![(tree, 0)];
    while let Some((value, outside)) = left.pop() {
        let depth = outside + usize::from(value.as_list().is_some() || value.as_dict().is_some());
        deepest = deepest.max(depth);
        left.extend(children(value).into_iter().map(|child| (child, depth)));
    }
    deepest
}

fn children(value: &Value) -> Vec<&Value> {
    match (value.as_list(), value.as_dict()) {
        (Some(items), _) => items.iter().collect(),
        (None, Some(entries)) => entries.values().collect(),
        (None, None) => Vec::new(),
    }
}

impl<'a> Arbitrary<'a> for Depth {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let depth = if bytes.ratio(1, 8)? { 0..=2 * MAX_DEPTH } else { 0..=8 };
        Ok(Self(bytes.int_in_range(depth)?))
    }
}
