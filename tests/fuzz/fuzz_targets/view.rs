//! Views of a tensor, with sizes at the edges of a machine word: nothing panics, and what is accepted reads the elements that
//! it should, all within the storage.
#![no_main]

use std::ops::Range;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use transship_core::{DType, Device, Layout, Tensor};

/// Above it elements are not read one by one.
const MOST_READ: usize = 1 << 12;
/// Elements of the storage, each of which holds its own number.
const STORED: u16 = 600;

#[derive(Debug, Arbitrary)]
struct Case {
    shape: Vec<Number>,
    strides: Vec<Number>,
    offset: Number,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Step {
    Narrow(Number, Number, Number),
    Slice(Number, Number, Number, Number),
    Transpose(Number, Number),
    Permute(Vec<Number>),
    Reshape(Vec<Number>),
    Squeeze(Number),
    Unsqueeze(Number),
    Strided(Vec<Number>, Vec<Number>, Number),
}

/// A small number, or one at an edge.
#[derive(Debug, Clone, Copy)]
struct Number(usize);

fuzz_target!(|case: Case| {
    let Case { shape, strides, offset, steps } = case;
    layouts(&numbers(&shape), &numbers(&strides));
    let mut tensor = Tensor::from((0..STORED).collect::<Vec<_>>());
    let mut model = Model { shape: vec![STORED.into()], strides: vec![1], start: 0 };
    for step in [Step::Strided(shape, strides, offset)].iter().chain(&steps) {
        (tensor, model) = accepted(&tensor, &model, step);
        check(&tensor, &model);
    }
});

/// Layouts without memory: what is accepted can be counted.
fn layouts(shape: &[usize], strides: &[usize]) {
    for &dtype in DType::ALL {
        for layout in
            [Layout::contiguous(dtype, shape), Layout::strided(dtype, shape, strides)].into_iter().flatten()
        {
            let elements = shape.iter().try_fold(1_u128, |all, size| all.checked_mul(*size as u128));
            let elements = if shape.contains(&0) { 0 } else { elements.unwrap() };
            assert_eq!(layout.numel() as u128, elements);
            assert_eq!(layout.nbytes() as u128, elements * dtype.size() as u128);
            let strides = layout.strides();
            let steps =
                shape.iter().zip(&*strides).map(|(size, stride)| (*size as u128 - 1) * *stride as u128);
            let span = if elements == 0 { 0 } else { (steps.sum::<u128>() + 1) * dtype.size() as u128 };
            assert_eq!(layout.span() as u128, span);
            assert!(layout.span() <= isize::MAX as usize);
        }
    }
}

/// The view that `step` makes, if it is accepted, else the same tensor.
fn accepted(tensor: &Tensor, model: &Model, step: &Step) -> (Tensor, Model) {
    let at = |number: &Number| number.0;
    let made = match step {
        Step::Narrow(dim, start, len) => tensor.narrow(at(dim), at(start), at(len)),
        Step::Slice(dim, start, end, by) => tensor.slice(at(dim), at(start)..at(end), at(by)),
        Step::Transpose(one, other) => tensor.transpose(at(one), at(other)),
        Step::Permute(axes) => tensor.permute(&numbers(axes)),
        Step::Reshape(shape) => tensor.reshape(&numbers(shape)),
        Step::Squeeze(dim) => tensor.squeeze(at(dim)),
        Step::Unsqueeze(dim) => tensor.unsqueeze(at(dim)),
        Step::Strided(shape, strides, offset) => {
            tensor.as_strided(&numbers(shape), &numbers(strides), at(offset))
        }
    };
    match made {
        Ok(view) => (view, model.after(step)),
        Err(_) => (tensor.clone(), model.clone()),
    }
}

fn check(tensor: &Tensor, model: &Model) {
    assert_eq!(tensor.shape(), model.shape);
    let bytes = tensor.layout().span() + if tensor.numel() == 0 { 0 } else { tensor.offset() };
    assert!(bytes <= usize::from(STORED) * 2, "{tensor:?} reaches {bytes} bytes into its storage");
    if tensor.numel() <= MOST_READ {
        assert_eq!(tensor.to_vec::<u16>().unwrap(), model.elements());
        let copy = tensor.contiguous().unwrap();
        assert_eq!(copy.as_slice::<u16>().unwrap(), model.elements());
        assert_eq!(Device::host().id(), copy.device_id().unwrap());
    }
}

/// The same view by arithmetic that cannot overflow here.
#[derive(Debug, Clone)]
struct Model {
    shape: Vec<usize>,
    strides: Vec<u128>,
    start: u128,
}

impl Model {
    fn after(&self, step: &Step) -> Self {
        let mut next = self.clone();
        match step {
            Step::Narrow(dim, start, len) => next.cut(dim.0, start.0..start.0 + len.0, 1),
            Step::Slice(dim, start, end, by) => next.cut(dim.0, start.0..end.0, by.0),
            Step::Transpose(one, other) => {
                next.shape.swap(one.0, other.0);
                next.strides.swap(one.0, other.0);
            }
            Step::Permute(axes) => {
                next.shape = axes.iter().map(|axis| self.shape[axis.0]).collect();
                next.strides = axes.iter().map(|axis| self.strides[axis.0]).collect();
            }
            Step::Reshape(shape) => {
                next.shape = numbers(shape);
                next.strides = row_major(&next.shape);
            }
            Step::Squeeze(dim) => {
                next.shape.remove(dim.0);
                next.strides.remove(dim.0);
            }
            Step::Unsqueeze(dim) => {
                next.shape.insert(dim.0, 1);
                next.strides.insert(dim.0, 0);
            }
            Step::Strided(shape, strides, offset) => {
                next.shape = numbers(shape);
                next.strides = strides.iter().map(|stride| stride.0 as u128).collect();
                next.start = next.start.saturating_add(offset.0 as u128);
            }
        }
        next
    }

    fn cut(&mut self, dim: usize, range: Range<usize>, step: usize) {
        // Only those of a view without elements get so large, and nothing is read there.
        self.start = self.start.saturating_add((range.start as u128).saturating_mul(self.strides[dim]));
        self.strides[dim] = self.strides[dim].saturating_mul(step as u128);
        self.shape[dim] = range.len().div_ceil(step);
    }

    /// What it reads, in row-major order.
    fn elements(&self) -> Vec<u16> {
        let mut places = vec![self.start];
        if self.shape.contains(&0) {
            return Vec::new();
        }
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            places = places
                .iter()
                .flat_map(|place| (0..*size).map(move |index| place + index as u128 * stride))
                .collect();
        }
        places.into_iter().map(|place| u16::try_from(place).unwrap()).collect()
    }
}

fn row_major(shape: &[usize]) -> Vec<u128> {
    let mut strides = vec![1_u128; shape.len()];
    for dim in (1..shape.len()).rev() {
        // As above.
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1) as u128);
    }
    strides
}

fn numbers(numbers: &[Number]) -> Vec<usize> {
    numbers.iter().map(|number| number.0).collect()
}

impl<'a> Arbitrary<'a> for Number {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let near = usize::from(bytes.arbitrary::<u8>()?);
        Ok(Self(match bytes.int_in_range(0..=15)? {
            0 => usize::MAX - near,
            1 => usize::MAX / 2 + 1 - near,
            2 => usize::MAX / 8 + 1 - near,
            3 => bytes.arbitrary()?,
            4 => near,
            _ => near % 6,
        }))
    }
}
