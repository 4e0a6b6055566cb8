//! Round trips of random nested values.

use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use transship::{CopyOptions, DType, Key, Value};

use crate::bed::Bed;
use crate::suite::{Case, case};

const CASES: u32 = 64;

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(values)]
}

/// What a value is made after.
#[derive(Debug, Clone)]
enum Recipe {
    Tensor(usize, Vec<usize>),
    Transposed(usize, usize, usize),
    Other(u32),
    List(Vec<Recipe>),
    Tuple(Vec<Recipe>),
    Dict(Vec<(i64, Recipe)>),
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let dtype = 0..DType::ALL.len();
    let leaf = prop_oneof![
        4 => (dtype.clone(), prop::collection::vec(0_usize..6, 0..4)).prop_map(|(dtype, shape)| Recipe::Tensor(dtype, shape)),
        1 => (dtype.clone(), prop::collection::vec(100_usize..700, 1..3)).prop_map(|(dtype, shape)| Recipe::Tensor(dtype, shape)),
        1 => (dtype, 1_usize..20, 1_usize..20).prop_map(|(dtype, rows, columns)| Recipe::Transposed(dtype, rows, columns)),
        1 => any::<u32>().prop_map(Recipe::Other),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Recipe::List),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Recipe::Tuple),
            prop::collection::vec((any::<i64>(), inner), 0..6).prop_map(Recipe::Dict),
        ]
    })
}

fn options(bed: &Bed) -> impl Strategy<Value = CopyOptions> + use<> {
    // The same options serve both ways, so that both ends must align their buffers so.
    let most = bed.device.limits().buffer_alignment.min(bed.host.limits().buffer_alignment);
    let base = bed.options();
    (any::<bool>(), 0..=most.bytes().ilog2(), 6_u32..20).prop_map(move |(pack, alignment, chunk)| {
        base.clone().packing(pack).packed_alignment(1 << alignment).max_chunk_bytes(1 << chunk)
    })
}

fn values(bed: &Bed) -> Result<(), Failed> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&bed.random().next().to_le_bytes());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    runner.run(&(recipe(), options(bed)), |(recipe, options)| {
        let value = make(bed, &recipe).map_err(|failed| TestCaseError::fail(said(&failed)))?;
        let trip = bed.round_trip(value, options).map_err(|failed| TestCaseError::fail(said(&failed)))?;
        prop_assert!(is_made_after(&trip.value, &recipe), "{:?} came back", trip.value);
        Ok(())
    })?;
    Ok(())
}

fn said(failed: &Failed) -> String {
    failed.message().unwrap_or_default().to_owned()
}

fn make(bed: &Bed, recipe: &Recipe) -> Result<Value, Failed> {
    let all = |items: &[Recipe]| items.iter().map(|item| make(bed, item)).collect::<Result<Vec<_>, _>>();
    Ok(match recipe {
        Recipe::Tensor(dtype, shape) => bed.tensor(DType::ALL[*dtype], shape).into(),
        Recipe::Transposed(dtype, rows, columns) => {
            bed.tensor(DType::ALL[*dtype], &[*rows, *columns]).transpose(0, 1)?.into()
        }
        Recipe::Other(number) => Value::other(*number),
        Recipe::List(items) => Value::list(all(items)?),
        Recipe::Tuple(items) => Value::tuple(all(items)?),
        Recipe::Dict(entries) => {
            let make = |(key, item): &(i64, Recipe)| Ok((*key, make(bed, item)?));
            Value::dict(entries.iter().map(make).collect::<Result<Vec<_>, Failed>>()?)
        }
    })
}

/// Whether everything but the elements is as it was; those are compared by the round trip.
fn is_made_after(value: &Value, recipe: &Recipe) -> bool {
    let all = |items: &[Value], recipes: &[Recipe]| {
        items.len() == recipes.len()
            && items.iter().zip(recipes).all(|(item, recipe)| is_made_after(item, recipe))
    };
    match (value, recipe) {
        (Value::Tensor(tensor), Recipe::Tensor(_, shape)) => tensor.shape() == shape,
        (Value::Tensor(tensor), Recipe::Transposed(_, rows, columns)) => tensor.shape() == [*columns, *rows],
        (Value::Other(_), Recipe::Other(number)) => value.downcast_ref::<u32>() == Some(number),
        (Value::List(items), Recipe::List(recipes)) => all(items, recipes),
        (Value::Tuple(items), Recipe::Tuple(recipes)) => all(items, recipes),
        (Value::Dict(entries), Recipe::Dict(recipes)) => {
            recipes.iter().enumerate().all(|(index, (key, recipe))| {
                let overwritten = recipes[index + 1..].iter().any(|(later, _)| later == key);
                overwritten || entries.get(&Key::from(*key)).is_some_and(|item| is_made_after(item, recipe))
            })
        }
        _ => false,
    }
}
