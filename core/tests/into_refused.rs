//! Copies into memory that the caller holds, and must not have written.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use late_backend::LateConfig;
use support::held::{batch, bytes, into, options, refused, unsuited, up};
use support::{Drops, bytes_of, late, no_violations, on, with};
use transship_core::{
    Alignment, DType, Error, MemoryKind, Pairs, RawMemory, Stop, Tensor, TensorTree, Visitor, start_copy_into,
};

#[test]
fn structures_that_differ_are_refused() {
    let (late, device) = late();
    let error = refused(batch(1), vec![on(&device, &[1; 5])]);
    let words = "the value: 5 items to copy, but 1 item to copy into; copy into a structure with the same keys, lengths and \
                 variants";
    assert_eq!(error.to_string(), words);
    let error = refused(vec![], vec![on(&device, &[1; 5])]);
    assert!(matches!(error, Error::StructureMismatch { .. }), "{error}");
    let pair = || vec![Tensor::from(vec![1_u8; 8]), Tensor::from(vec![1_u32; 6])];
    let error = refused(pair(), vec![on(&device, &[1; 8]), on(&device, &[1; 24])]);
    assert!(matches!(&error, Error::DestinationMismatch { dtype: DType::U32, .. }), "{error}");
    let flat = Tensor::from(vec![1_u32; 6]).reshape(&[2, 3]).unwrap();
    let error = refused(pair(), vec![on(&device, &[1; 8]), up(flat, &device)]);
    let words = "[1] has shape [6] of uint32, the one to copy it into [2, 3] of uint32; copy into one of the same shape and type";
    assert_eq!(error.to_string(), words);
    no_violations(&late);
}

/// catches: 110-shared-memory-written
#[test]
fn memory_that_somebody_else_holds_is_refused() {
    let (late, device) = late();
    let tensor = || Tensor::from(vec![3_u8; 8]);
    let destination = on(&device, &[1; 8]);
    let twin = destination.clone();
    let error = refused(vec![tensor()], vec![destination]);
    let (index, role, why) = unsuited(&error);
    assert_eq!((index, role), (0, "to copy into"));
    assert!(
        matches!(why, Error::NotWritable { why: "shared with another tensor or in flight", .. }),
        "{error}"
    );
    assert_eq!(bytes_of(&twin), [1; 8]);

    // A view of it in the value, and one of its batch that is elsewhere.
    let error = refused(vec![tensor(), twin.narrow(0, 0, 4).unwrap()], vec![twin, on(&device, &[2; 4])]);
    assert!(matches!(unsuited(&error), (0, _, Error::NotWritable { .. })), "{error}");
    let mut packed = up(batch(1), &device);
    let elsewhere = packed.pop();
    let mut value = batch(2);
    value.pop();
    let error = refused(value, packed);
    assert!(matches!(unsuited(&error), (0, _, Error::NotWritable { .. })), "{error}");
    drop(elsewhere);

    // The same bytes twice, of which each would be exclusive with the other.
    let whole = on(&device, &[1; 8]);
    let overlapping = vec![whole.narrow(0, 4, 4).unwrap(), whole.narrow(0, 1, 4).unwrap()];
    drop(whole);
    let error = refused(vec![on(&device, &[1; 4]), on(&device, &[1; 4])], overlapping);
    let (index, _, why) = unsuited(&error);
    assert!(
        matches!(why, Error::NotWritable { why: "shared with another tensor to copy into", .. })
            && index == 0
    );
    no_violations(&late);
}

#[test]
fn memory_that_may_not_be_written_or_does_not_suit_is_refused() {
    let (late, device) = late();
    let tensor = || Tensor::from(vec![3_u8; 4]);
    let refusal = |destination: Tensor| {
        let error = refused(vec![tensor(), tensor()], vec![Tensor::from(vec![0_u8; 4]), destination]);
        let (index, role, why) = unsuited(&error);
        assert_eq!((index, role), (1, "to copy into"), "{error}");
        why.clone()
    };
    let lent = refusal(Drops::default().tensor(vec![0; 4]));
    assert!(matches!(lent, Error::NotWritable { why: "lent read-only", .. }), "{lent}");
    let elsewhere = refusal(on(&device, &[0; 4]));
    assert!(matches!(elsewhere, Error::WrongDevice { expected, .. } if expected.is_host()), "{elsewhere}");
    let repeated = Tensor::from(vec![0_u8; 8]).as_strided(&[4], &[0], 2).unwrap();
    let repeated = refusal(repeated);
    assert!(
        matches!(&repeated, Error::NotContiguous { shape, strides, .. } if (shape, strides) == (&vec![4], &vec![0])),
        "{repeated}"
    );

    // Memory that somebody else lets the device read.
    let owner = on(&device, &[0; 4]);
    let memory = RawMemory::new(owner.address().unwrap().unwrap(), 4, MemoryKind::Device);
    // SAFETY: `owner` keeps the memory alive, and nobody writes it.
    let foreign = unsafe { Tensor::from_raw(memory, Box::new(owner), &[4], DType::U8, &device) }.unwrap();
    let error = refused(vec![tensor()], vec![foreign]);
    assert!(matches!(unsuited(&error).2, Error::NotWritable { why: "lent read-only", .. }), "{error}");
    // Strides are kept on a device, and there is no room for them here.
    let strided = vec![on(&device, &[1; 8]).slice(0, 0..8, 2).unwrap()];
    let error = refused(strided, vec![tensor()]);
    assert!(matches!(unsuited(&error), (0, "to copy", Error::Unsupported { .. })), "{error}");
    no_violations(&late);
}

#[test]
fn tensors_that_begin_within_a_granule_are_refused() {
    let granularity = Alignment::new(4).unwrap();
    let (late, device) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("late") });
    let parts = |tensor: Tensor| vec![tensor.narrow(0, 0, 2).unwrap(), tensor.narrow(0, 2, 3).unwrap()];
    let host = || parts(Tensor::from(vec![5_u8; 5]));
    let error = refused(host(), parts(on(&device, &[1; 5])));
    assert!(matches!(
        unsuited(&error),
        (1, "to copy into", Error::Misaligned { value: 2, alignment: 4, .. })
    ));
    let error = refused(
        parts(on(&device, &[1; 5])),
        host().iter().map(|part| on(&device, &bytes_of(part))).collect(),
    );
    assert!(matches!(unsuited(&error), (1, "to copy", Error::Misaligned { value: 2, alignment: 4, .. })));
    // A packed batch is laid out in whole granules, whatever its tensors are like.
    let there =
        into(host(), up(vec![Tensor::from(vec![0_u8; 2]), Tensor::from(vec![0_u8; 3])], &device), options());
    assert_eq!(bytes(&there), [vec![5; 2], vec![5; 3]]);
    no_violations(&late);
}

/// A structure that shows its tensors in another order from a certain visit on, or one less.
struct Fickle {
    tensors: Vec<Tensor>,
    visits: usize,
    until: usize,
    loses: bool,
}

impl Fickle {
    fn new(tensors: Vec<Tensor>, until: usize, loses: bool) -> Self {
        Self { tensors, visits: 0, until, loses }
    }
}

impl TensorTree for Fickle {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.visits += 1;
        let shown = self.tensors.len() - usize::from(self.loses && self.visits >= self.until);
        if self.visits == self.until {
            self.tensors.reverse();
        }
        self.tensors.iter_mut().take(shown).try_for_each(|tensor| visitor.tensor(tensor))
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        pairs.in_order(self, into)
    }
}

#[test]
fn a_structure_that_loses_a_tensor_is_an_error() {
    let (late, device) = late();
    let tensors = || vec![on(&device, &[1; 4]), on(&device, &[2; 8])];
    let (value, into) = (Fickle::new(tensors(), 2, true), Fickle::new(tensors(), 0, false));
    let failed = start_copy_into(value, into, options()).unwrap().wait().map(|_| ()).unwrap_err();
    assert!(matches!(failed.error(), Error::TreeChanged { first: 2, second: 1 }), "{failed}");
    assert!(matches!(failed.into_both(), (None, None)), "some of its tensors have no memory");
    device.synchronize().unwrap();
    no_violations(&late);
}

#[test]
fn a_structure_that_changes_its_order_gets_each_tensor_back() {
    let (late, device) = late();
    let value = Fickle::new(vec![on(&device, &[1; 4]), on(&device, &[2; 8])], 2, false);
    let into = Fickle::new(vec![on(&device, &[3; 4]), on(&device, &[4; 8])], 0, false);
    let filled = start_copy_into(value, into, options()).unwrap().wait().unwrap();
    assert_eq!(bytes(&filled.tensors), [vec![2; 8], vec![1; 4]]);
    no_violations(&late);
}
