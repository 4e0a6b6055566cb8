//! Which tensor gets which memory: by its place in the structure and not by the order in which a visit shows it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, HashMap};

use late_backend::{Call, LateConfig};
use support::held::{MODES, options, up};
use support::{bytes_of, late, no_violations, on, two, with};
use transship_core::{
    Alignment, CopyHandle, DType, Device, Error, Pairs, Step, Stop, Tensor, TensorTree, Value, Visitor,
    start_copy, start_copy_into, start_copy_to_all,
};

type Weights = HashMap<String, Tensor>;

/// As many tensors of one shape, each with other bytes.
fn weights(count: usize, seed: u8) -> Weights {
    let tensor = |index: usize| Tensor::from(vec![(index as u8).wrapping_mul(31) ^ seed, (index >> 8) as u8]);
    (0..count).map(|index| (format!("layer{index}"), tensor(index))).collect()
}

fn places(weights: &Weights) -> BTreeMap<String, (Option<u64>, usize)> {
    let place = |tensor: &Tensor| (tensor.address().unwrap(), tensor.offset());
    weights.iter().map(|(key, tensor)| (key.clone(), place(tensor))).collect()
}

fn contents(weights: Weights) -> BTreeMap<String, Vec<u8>> {
    let host = start_copy(weights, &Device::host(), options()).unwrap().wait().unwrap();
    host.into_iter().map(|(key, tensor)| (key, tensor.to_bytes().unwrap())).collect()
}

fn refused<S: TensorTree>(value: S, into: S) -> (String, S, S) {
    let failed = start_copy_into(value, into, options()).unwrap_err();
    let text = failed.error().to_string();
    let (value, into) = failed.into_both();
    (text, value.unwrap(), into.unwrap())
}

/// Mutant: maps are paired by the order of their visits.
#[test]
fn maps_are_paired_by_their_keys() {
    let (late, device) = late();
    for mode in MODES {
        for count in [8, 1000] {
            // Each map has an order of its own.
            let mut held = up(weights(count, 1), &device);
            let before = places(&held);
            for seed in 2..5 {
                let options = options().background(mode);
                held = start_copy_into(weights(count, seed), held, options).unwrap().wait().unwrap();
                assert_eq!(places(&held), before);
                assert_eq!(contents(held.clone()), contents(weights(count, seed)));
            }
        }
    }
    no_violations(&late);
}

#[test]
fn dicts_are_paired_by_their_keys() {
    let (late, device) = late();
    let tensor = |byte: u8| Value::from(Tensor::from(vec![byte; 4]));
    let held = up(Value::dict([("weight", tensor(1)), ("bias", tensor(2))]), &device);
    let address = |value: &Value, key: &str| {
        let tensor = value.get(key).unwrap().as_tensor().unwrap();
        (tensor.address().unwrap(), tensor.offset())
    };
    let before = ["weight", "bias"].map(|key| address(&held, key));
    let value = Value::dict([("bias", tensor(4)), ("weight", tensor(3))]);
    let filled = start_copy_into(value, held, options()).unwrap().wait().unwrap();
    assert_eq!(["weight", "bias"].map(|key| address(&filled, key)), before);
    let bytes = |key: &str| bytes_of(filled.get(key).unwrap().as_tensor().unwrap());
    assert_eq!((bytes("weight"), bytes("bias")), (vec![3; 4], vec![4; 4]));
    no_violations(&late);
}

/// The path goes through everything that has places.
#[test]
fn what_differs_is_named_by_its_path() {
    type Model = (u8, BTreeMap<&'static str, Vec<Option<Tensor>>>);
    let (late, device) = late();
    let tensor = || Some(on(&device, &[1; 4]));
    let model = |key: &'static str, items: usize, last: Option<Tensor>| -> Model {
        let mut items: Vec<_> = (0..items).map(|_| tensor()).collect();
        items.push(last);
        (1, BTreeMap::from([("mlp", vec![tensor()]), (key, items)]))
    };
    let usual = || model("attn.q", 3, tensor());
    let cases = [
        (model("attn.k", 3, tensor()), r#".1["attn.k"]: an entry to copy, but none to copy into"#),
        (model("attn.q", 2, tensor()), r#".1["attn.q"]: 3 items to copy, but 4 items to copy into"#),
        (model("attn.q", 3, None), r#".1["attn.q"][3]: None to copy, but Some to copy into"#),
        (
            model("attn.q", 3, Some(on(&device, &[1; 5]))),
            r#".1["attn.q"][3] has shape [5] of uint8, the one to copy it into [4] of uint8"#,
        ),
        (
            model("attn.q", 3, Some(on(&device, &[1; 7]).slice(0, 0..7, 2).unwrap())),
            r#".1["attn.q"][3] to copy: late:0 cannot copy strided tensors"#,
        ),
    ];
    for (value, words) in cases {
        let (text, value, into) = refused(value, usual());
        assert!(text.starts_with(words), "{text}");
        let all = value.1.into_values().chain(into.1.into_values()).flatten().flatten();
        assert!(all.into_iter().all(|tensor| tensor.is_ready().unwrap()), "both come back whole");
    }
    let mut fewer = usual();
    fewer.1.remove("mlp");
    let (text, fewer, into) = refused(fewer, usual());
    assert!(text.starts_with(r#".1["mlp"]: no entry to copy, but one to copy into"#), "{text}");
    assert_eq!((fewer.1.len(), into.1.len()), (1, 2));

    // Found after all were taken.
    let shared = usual();
    let twin = shared.1["attn.q"][2].clone();
    let (text, _, into) = refused(usual(), shared);
    assert!(
        text.starts_with(r#".1["attn.q"][2] to copy into: the memory of the tensor is shared"#),
        "{text}"
    );
    drop((into, twin));
    no_violations(&late);
}

/// What somebody writes in a loop: the step of the new batch, over the old memory.
#[derive(Debug)]
struct Batch {
    step: u64,
    first: Option<Tensor>,
    second: Option<Tensor>,
}

impl Batch {
    fn new(step: u64, first: Option<u8>, second: Option<u8>) -> Self {
        let tensor = |byte: u8| Tensor::from(vec![byte; 4]);
        Self { step, first: first.map(tensor), second: second.map(tensor) }
    }
}

/// By hand, always in the same order.
impl TensorTree for Batch {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.nested(|visitor| {
            self.first.visit(visitor)?;
            self.second.visit(visitor)
        })
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        pairs.in_order(self, into)
    }
}

/// Some were taken by then, in the order of the new map, which is not that of the other one.
///
/// Mutant: giving back stops at a tensor that was not taken.
#[test]
fn maps_that_are_refused_come_back_whole() {
    let (late, device) = late();
    for seed in 0..20 {
        let mut value = weights(40, seed);
        value.insert("further".into(), Tensor::from(vec![1_u8, 2]));
        let (text, mut value, into) = refused(value, up(weights(40, 1), &device));
        assert!(text.starts_with(r#"["further"]: an entry to copy, but none to copy into"#), "{text}");
        value.remove("further").unwrap();
        assert_eq!(contents(value), contents(weights(40, seed)));
        assert_eq!(contents(into), contents(weights(40, 1)));
    }
    no_violations(&late);
}

#[test]
fn the_new_structure_comes_out_over_the_old_memory() {
    let (late, device) = late();
    let mut held = up(Batch::new(0, Some(0), None), &device);
    let address = held.first.as_ref().unwrap().address().unwrap();
    for step in 1..4 {
        held = start_copy_into(Batch::new(step, Some(step as u8), None), held, options())
            .and_then(CopyHandle::wait)
            .unwrap();
        assert_eq!((held.step, held.second.is_none()), (step, true));
        assert_eq!(held.first.as_ref().unwrap().address().unwrap(), address);
        assert_eq!(bytes_of(held.first.as_ref().unwrap()), [step as u8; 4]);
    }
    // As many tensors, in other places.
    let (text, value, into) = refused(Batch::new(9, None, Some(9)), held);
    assert!(text.contains("a list or option of 0 items to copy"), "{text}");
    assert_eq!((value.step, into.step), (9, 3));
    assert_eq!(bytes_of(&value.second.unwrap()), [9; 4]);
    assert_eq!(bytes_of(&into.first.unwrap()), [3; 4]);
    no_violations(&late);
}

/// Its order says nothing, and nobody else knows its keys.
struct ByHand(Weights);

impl TensorTree for ByHand {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.nested(|visitor| self.0.visit(visitor))
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        pairs.in_order(self, into)
    }
}

struct WithPair(Weights);

impl TensorTree for WithPair {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        self.0.pair(&mut into.0, pairs)
    }
}

/// Shows its map's tensors itself, in the order of the map.
struct Unpaired(Weights);

impl TensorTree for Unpaired {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.values_mut().try_for_each(|tensor| visitor.tensor(tensor))
    }
}

#[test]
fn types_without_pair_are_refused() {
    let (late, device) = late();
    let held = vec![Unpaired(up(weights(3, 2), &device))];
    let (text, value, into) = refused(vec![Unpaired(weights(3, 1))], held);
    assert!(text.starts_with("[0]: pairing::Unpaired implements TensorTree without pair()"), "{text}");
    assert!(text.contains("Pairs::part"), "{text}");
    assert_eq!((value[0].0.len(), into[0].0.len()), (3, 3));
    no_violations(&late);
}

/// Goes on behind an error.
struct Heedless(Tensor, Tensor);

impl TensorTree for Heedless {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.tensor(&mut self.0)?;
        visitor.tensor(&mut self.1)
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        let _ = pairs.part(Step::Field("0"), &mut self.0, &mut into.0);
        pairs.part(Step::Field("1"), &mut self.1, &mut into.1)
    }
}

/// Mutant: the numbers of tensors are not compared.
#[test]
fn a_pairing_that_goes_on_behind_an_error_is_refused() {
    let (late, device) = late();
    let into = || Heedless(on(&device, &[1; 4]), on(&device, &[2; 4]));
    // The first differs; the second fits either.
    let value = Heedless(Tensor::from(vec![3_u8; 5]), Tensor::from(vec![4_u8; 4]));
    let (text, value, into) = refused(value, into());
    assert!(text.contains("1 tensor to copy, but 2 tensors to copy into"), "{text}");
    assert_eq!((bytes_of(&value.0), bytes_of(&value.1)), (vec![3; 5], vec![4; 4]));
    assert_eq!((bytes_of(&into.0), bytes_of(&into.1)), (vec![1; 4], vec![2; 4]));
    no_violations(&late);
}

/// Mutant: maps are allowed in structures that are paired in order.
#[test]
fn maps_that_are_paired_in_order_are_refused() {
    let (late, device) = late();
    let (text, value, into) = refused(ByHand(weights(3, 1)), ByHand(up(weights(3, 2), &device)));
    assert!(text.contains("a map, which has no order"), "{text}");
    assert_eq!(contents(value.0), contents(weights(3, 1)));
    assert_eq!(contents(into.0), contents(weights(3, 2)));
    let held = WithPair(up(weights(9, 2), &device));
    let filled = start_copy_into(WithPair(weights(9, 1)), held, options()).unwrap().wait().unwrap();
    assert_eq!(contents(filled.0), contents(weights(9, 1)));
    no_violations(&late);
}

/// Shows its tensors forwards and backwards in turn.
#[derive(Debug)]
struct Turning {
    first: Tensor,
    second: Tensor,
    forward: bool,
}

impl Turning {
    /// Of as many bytes each, and of other types.
    fn new() -> Self {
        let (first, second) = (Tensor::from(vec![1_u8, 2, 3, 4]), Tensor::from(vec![1.5_f32]));
        Self { first, second, forward: false }
    }

    #[track_caller]
    fn assert_right(self) {
        let host = start_copy(vec![self.first, self.second], &Device::host(), options());
        let host = host.unwrap().wait().unwrap();
        assert_eq!(host[0].as_slice::<u8>().unwrap(), [1, 2, 3, 4]);
        assert_eq!(host[1].as_slice::<f32>().unwrap(), [1.5]);
    }
}

impl TensorTree for Turning {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.forward = !self.forward;
        let order = match self.forward {
            true => [&mut self.first, &mut self.second],
            false => [&mut self.second, &mut self.first],
        };
        order.into_iter().try_for_each(|tensor| visitor.tensor(tensor))
    }
}

/// Mutant: the mark is not looked at.
#[test]
fn tensors_that_are_shown_in_another_order_get_their_own_copies() {
    let (late, device) = late();
    for mode in MODES {
        let copy = || start_copy(Turning::new(), &device, options().background(mode)).unwrap();
        copy().wait().unwrap().assert_right();
        futures::executor::block_on(copy()).unwrap().assert_right();
        copy().cancel().value.unwrap().assert_right();
        late.fail_next(Call::Submit, 0);
        let failed =
            start_copy(Turning::new(), &device, options().background(mode)).and_then(CopyHandle::wait);
        failed.unwrap_err().into_value().unwrap().assert_right();
    }
    no_violations(&late);
}

/// What `Clone` makes has an order of its own.
struct Rebuilt(Weights);

impl Clone for Rebuilt {
    fn clone(&self) -> Self {
        Self(self.0.iter().map(|(key, tensor)| (key.clone(), tensor.clone())).collect())
    }
}

impl TensorTree for Rebuilt {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)
    }
}

#[test]
fn clones_in_another_order_get_their_own_copies() {
    let (late, one, other) = two(LateConfig::new("late"));
    // A plan of its own.
    let granularity = Alignment::new(8).unwrap();
    let (third, granular) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("third") });
    let devices = [one, granular, other, Device::host()];
    for _ in 0..4 {
        let copies = start_copy_to_all(Rebuilt(weights(8, 1)), &devices, options()).unwrap();
        assert_eq!(copies.len(), devices.len());
        for (copy, device) in copies.into_iter().zip(&devices) {
            let there = copy.wait().unwrap();
            assert!(there.0.values().all(|tensor| tensor.device_id().unwrap() == device.id()));
            assert_eq!(contents(there.0), contents(weights(8, 1)));
        }
    }
    [late, third].iter().for_each(no_violations);
}

/// Keeps a tensor that was shown, and shows it instead of another one.
struct Twins {
    tensors: [Tensor; 2],
    twin: Option<Tensor>,
}

impl TensorTree for Twins {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        let [first, second] = &mut self.tensors;
        visitor.tensor(first)?;
        match &mut self.twin {
            Some(twin) => visitor.tensor(twin),
            None => {
                self.twin = Some(first.clone());
                visitor.tensor(second)
            }
        }
    }
}

/// Mutant: what was shown before is not noted.
#[test]
fn a_tensor_that_is_shown_twice_is_an_error() {
    let (late, device) = late();
    let tensors = [1_u8, 2].map(|byte| Tensor::from(vec![byte; 4]));
    let copied = start_copy(Twins { tensors, twin: None }, &device, options()).unwrap().wait();
    let failed = copied.map(|_| ()).unwrap_err();
    assert!(matches!(failed.error(), Error::TreeChanged { first: 2, second: 2 }), "{failed}");
    device.synchronize().unwrap();
    no_violations(&late);
}

/// Shows a tensor of another copy in the place of its own, from a certain visit on.
struct Stray {
    tensor: Tensor,
    other: Tensor,
    from: usize,
}

impl TensorTree for Stray {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        let shown = if self.from == 0 { &mut self.other } else { &mut self.tensor };
        self.from = self.from.saturating_sub(1);
        visitor.tensor(shown)
    }
}

/// Takes a clone of a tensor while a copy has it.
struct Lending<'a>(Tensor, &'a mut Option<Tensor>);

impl TensorTree for Lending<'_> {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.tensor(&mut self.0)?;
        self.1.get_or_insert(self.0.clone());
        Ok(())
    }
}

#[test]
fn a_tensor_of_another_copy_is_an_error() {
    let (late, device) = late();
    let mut taken = None;
    let lending = Lending(Tensor::from(vec![1_u8; 4]), &mut taken);
    drop(start_copy(lending, &device, options()).unwrap().wait().unwrap());
    let taken = taken.unwrap();
    assert!(matches!(taken.to_bytes(), Err(Error::Taken)));

    let refused = start_copy(taken.clone(), &device, options()).unwrap_err();
    assert!(matches!(refused.error(), Error::Taken), "{refused}");
    let stray = |from| Stray { tensor: Tensor::from(vec![2_u8; 4]), other: taken.clone(), from };
    let at_once = start_copy(stray(0), &device, options()).unwrap_err();
    assert!(matches!(at_once.error(), Error::Taken), "{at_once}");
    let later = start_copy(stray(1), &device, options()).unwrap().wait().map(|_| ()).unwrap_err();
    assert!(matches!(later.error(), Error::TreeChanged { first: 1, second: 1 }), "{later}");
    device.synchronize().unwrap();
    no_violations(&late);
}

/// Structures of which nothing is copied need not be alike, but for their shapes.
#[test]
fn what_holds_no_tensor_comes_out_as_it_is_new() {
    let held = (vec![String::from("old")], Tensor::zeros(&[2], DType::U8, &Device::host()).unwrap());
    let value = (vec![String::from("new"), String::from("newer")], Tensor::from(vec![1_u8, 2]));
    let (names, tensor) = start_copy_into(value, held, options()).unwrap().wait().unwrap();
    assert_eq!((names.len(), tensor.to_bytes().unwrap()), (2, vec![1, 2]));
}
