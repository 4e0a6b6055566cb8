//! User types that panic in their visit, or do not show the same tensors twice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libtest_mimic::Failed;
use transship::{DType, Error, Stop, Tensor, TensorTree, Visitor, start_copy};

use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, DELIBERATE, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(panic_on_the_first_visit),
        case!(panic_on_the_second_visit),
        case!(panic_on_the_second_visit_in_a_poll),
        case!(fewer_on_the_second_visit),
        case!(more_on_the_second_visit),
        case!(others_on_the_second_visit),
        case!(swapped_on_the_second_visit),
        case!(swapped_and_alike_on_the_second_visit),
    ]
}

/// Shows its tensors; from the second visit on as `later` does it.
struct Fickle {
    tensors: Vec<Tensor>,
    spare: Tensor,
    visits: usize,
    first: Show,
    later: Show,
}

#[derive(Clone, Copy)]
enum Show {
    All,
    PanicAfterOne,
    OneLess,
    OneMore,
    OneOther,
    Backwards,
}

impl TensorTree for Fickle {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.visits += 1;
        let show = if self.visits == 1 { self.first } else { self.later };
        let mut shown: Vec<&mut Tensor> = self.tensors.iter_mut().collect();
        match show {
            Show::All => {}
            Show::PanicAfterOne => {
                visitor.tensor(&mut self.tensors[0])?;
                panic!("{DELIBERATE} in a visit");
            }
            Show::OneLess => drop(shown.pop()),
            Show::OneMore => shown.push(&mut self.spare),
            Show::OneOther => shown[1] = &mut self.spare,
            Show::Backwards => shown.reverse(),
        }
        shown.into_iter().try_for_each(|tensor| visitor.tensor(tensor))
    }
}

fn fickle(bed: &Bed, first: Show, later: Show) -> Fickle {
    let tensors = vec![bed.bytes(100), bed.bytes(200), bed.bytes(300)];
    Fickle { tensors, spare: bed.bytes(200), visits: 0, first, later }
}

fn panic_on_the_first_visit(bed: &Bed) -> Result<(), Failed> {
    let value = fickle(bed, Show::PanicAfterOne, Show::All);
    let started = catch_unwind(AssertUnwindSafe(|| start_copy(value, &bed.device, bed.options()).map(drop)));
    assert!(started.is_err(), "the panic reaches the caller");
    bed.still_works()
}

fn panic_on_the_second_visit(bed: &Bed) -> Result<(), Failed> {
    let value = fickle(bed, Show::All, Show::PanicAfterOne);
    let handle = start_copy(value, &bed.device, bed.options())?;
    let waited = catch_unwind(AssertUnwindSafe(|| handle.wait().map(drop)));
    assert!(waited.is_err(), "the panic reaches the caller");
    bed.still_works()
}

fn panic_on_the_second_visit_in_a_poll(bed: &Bed) -> Result<(), Failed> {
    let value = fickle(bed, Show::All, Show::PanicAfterOne);
    let handle = start_copy(value, &bed.device, bed.options())?;
    let waited = catch_unwind(AssertUnwindSafe(|| futures::executor::block_on(handle).map(drop)));
    assert!(waited.is_err(), "the panic reaches the caller");
    bed.still_works()
}

/// The error of a copy whose second visit is different.
fn refused(bed: &Bed, later: Show) -> Result<Error, Failed> {
    let handle = start_copy(fickle(bed, Show::All, later), &bed.device, bed.options())?;
    let error = handle.wait().map(drop).expect_err("the tree has changed").into_parts().0;
    bed.still_works()?;
    Ok(error)
}

fn fewer_on_the_second_visit(bed: &Bed) -> Result<(), Failed> {
    let error = refused(bed, Show::OneLess)?;
    assert!(matches!(error, Error::TreeChanged { first: 3, second: 2 }), "{error}");
    Ok(())
}

fn more_on_the_second_visit(bed: &Bed) -> Result<(), Failed> {
    let error = refused(bed, Show::OneMore)?;
    assert!(matches!(error, Error::TreeChanged { first: 3, second: 4 }), "{error}");
    Ok(())
}

fn others_on_the_second_visit(bed: &Bed) -> Result<(), Failed> {
    let error = refused(bed, Show::OneOther)?;
    assert!(matches!(error, Error::TreeChanged { first: 3, .. }), "{error}");
    Ok(())
}

/// Each gets its own copy, as every tensor knows which one it is.
fn swapped_on_the_second_visit(bed: &Bed) -> Result<(), Failed> {
    comes_back(bed, vec![bed.bytes(100), bed.tensor(DType::F32, &[25]), bed.bytes(300)])
}

fn swapped_and_alike_on_the_second_visit(bed: &Bed) -> Result<(), Failed> {
    comes_back(bed, vec![bed.bytes(64), bed.bytes(64), bed.bytes(64)])
}

fn comes_back(bed: &Bed, tensors: Vec<Tensor>) -> Result<(), Failed> {
    let expected: Vec<Contents> = tensors.iter().map(Contents::of).collect();
    let value = Fickle { tensors, spare: bed.bytes(1), visits: 0, first: Show::All, later: Show::Backwards };
    let there = start_copy(value, &bed.device, bed.options())?.wait()?;
    let back = bed.down(there.tensors)?;
    assert_same(&expected, &back.iter().map(Contents::of).collect::<Vec<_>>());
    bed.still_works()
}
