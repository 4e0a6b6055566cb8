//! Whatever the structure and the options, what goes up and down again is what it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use late_backend::LateConfig;
use proptest::prelude::*;
use support::{bytes_of, in_time, late, no_violations, with};
use transship_core::{
    BackgroundWork, CopyOptions, DType, Device, DeviceId, Tensor, Value, for_each_tensor, start_copy,
};

/// What a value is made of; values themselves cannot be cloned, nor compared.
#[derive(Debug, Clone)]
enum Sketch {
    Tensor {
        dtype: DType,
        elements: usize,
        seed: u8,
        step: usize,
    },
    /// Another view of the first tensor.
    Alias,
    Other(i32),
    List(Vec<Sketch>),
    Tuple(Vec<Sketch>),
    Dict(Vec<Sketch>),
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let dtype = prop::sample::select(vec![DType::U8, DType::F32, DType::I64, DType::U16, DType::F64]);
    let elements = prop_oneof![8 => 0..200_usize, 1 => 1_000..30_000_usize];
    let tensor = (dtype, elements, any::<u8>(), 1..4_usize)
        .prop_map(|(dtype, elements, seed, step)| Sketch::Tensor { dtype, elements, seed, step });
    let leaf = prop_oneof![8 => tensor, 1 => Just(Sketch::Alias), 1 => any::<i32>().prop_map(Sketch::Other)];
    leaf.prop_recursive(4, 40, 6, |inside| {
        let items = || prop::collection::vec(inside.clone(), 0..6);
        prop_oneof![
            items().prop_map(Sketch::List),
            items().prop_map(Sketch::Tuple),
            items().prop_map(Sketch::Dict)
        ]
    })
}

impl Sketch {
    fn build(&self, first: &Tensor) -> Value {
        let all = |items: &[Self]| items.iter().map(|item| item.build(first)).collect::<Vec<_>>();
        match self {
            Self::Tensor { dtype, elements, seed, step } => tensor(*dtype, *elements, *seed, *step).into(),
            Self::Alias => first.clone().into(),
            Self::Other(number) => Value::other(*number),
            Self::List(items) => Value::list(all(items)),
            Self::Tuple(items) => Value::tuple(all(items)),
            Self::Dict(items) => Value::dict((0_i64..).zip(all(items))),
        }
    }
}

fn tensor(dtype: DType, elements: usize, seed: u8, step: usize) -> Tensor {
    let all = elements * step;
    let bytes: Vec<u8> = (0..all * dtype.size()).map(|index| seed.wrapping_add(index as u8)).collect();
    let whole = Tensor::from_owner(Aligned::new(&bytes), dtype, &[all]).unwrap();
    whole.slice(0, 0..all, step).unwrap()
}

/// Bytes at an address that suits every element type.
struct Aligned {
    words: Vec<u64>,
    bytes: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        };
        Self { words: bytes.chunks(8).map(word).collect(), bytes: bytes.len() }
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}

fn options() -> impl Strategy<Value = CopyOptions> {
    let background = prop::sample::select(vec![BackgroundWork::Auto, BackgroundWork::Always]);
    let sizes = (0..7_u32, 1..100_000_usize, 0..50_000_usize, prop::option::of(4096..50_000_usize));
    (any::<(bool, bool)>(), sizes, background).prop_map(
        |((pinned, pack), (alignment, chunk, packed, pace), background)| {
            let options = CopyOptions::default()
                .pinned_staging(pinned)
                .packing(pack)
                .packed_alignment(1 << alignment)
                .max_chunk_bytes(chunk)
                .max_packed_bytes(packed)
                .background(background);
            pace.map_or(options.clone(), |pace| options.max_bytes_in_flight(pace))
        },
    )
}

/// Shape, type and bytes of every tensor, and where they lie.
fn contents(value: &mut Value) -> Vec<(DType, Vec<usize>, Vec<u8>)> {
    let mut found = Vec::new();
    for_each_tensor(value, |tensor| {
        found.push((tensor.dtype(), tensor.shape().to_vec(), tensor.to_bytes()?));
        Ok(())
    })
    .unwrap();
    found
}

fn outline(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => format!("{:?}", tensor.shape()),
        Value::List(items) => format!("[{}]", items.iter().map(outline).collect::<Vec<_>>().join(",")),
        Value::Tuple(items) => format!("({})", items.iter().map(outline).collect::<Vec<_>>().join(",")),
        Value::Dict(entries) => {
            let entry = |(key, value)| format!("{key:?}:{}", outline(value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
        }
        Value::Other(other) => format!("{:?}", other.downcast_ref::<i32>()),
    }
}

fn devices(value: &mut Value) -> Vec<DeviceId> {
    let mut found = Vec::new();
    for_each_tensor(value, |tensor| {
        found.push(tensor.device_id()?);
        Ok(())
    })
    .unwrap();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// catches: 14-strides-kept-for-gathered-leaves
    #[test]
    fn what_goes_up_and_down_is_what_it_was(
        items in prop::collection::vec(sketch(), 0..6),
        (up, down) in (options(), options()),
        (seed, staging) in (prop::option::of(any::<u64>()), 16..20_u32),
    ) {
        let (late, device) = with(LateConfig { seed, ..LateConfig::new("late") });
        device.set_staging_budget(1 << staging).unwrap();
        device.set_result_budget(1 << staging).unwrap();
        let first = tensor(DType::F32, 33, 5, 1);
        let build = || Sketch::List(items.clone()).build(&first);
        let mut expected = build();
        let here = device.clone();
        let source = build();
        let (up_there, mut back) = in_time(move || {
            let mut there = start_copy(source, &here, up).unwrap().wait().unwrap();
            let devices = devices(&mut there);
            (devices, start_copy(there, &Device::host(), down).unwrap().wait().unwrap())
        });
        prop_assert!(up_there.iter().all(|id| *id == device.id()));
        prop_assert_eq!(outline(&back), outline(&expected));
        prop_assert!(devices(&mut back).iter().all(|id| id.is_host()));
        prop_assert_eq!(contents(&mut back), contents(&mut expected));
        drop(back);
        prop_assert!(late.violations().is_empty(), "{:?}", late.violations());
        prop_assert_eq!((device.staging_usage().in_use, device.result_usage().in_use), (0, 0));
    }
}

#[test]
fn aliases_still_share_memory_afterwards() {
    let (late, device) = with(LateConfig::new("late"));
    let tensor = tensor(DType::F32, 33, 5, 1);
    let half = tensor.narrow(0, 0, 10).unwrap();
    let pair = vec![tensor.clone(), half, tensor.clone(), tensor];
    let up = start_copy(pair, &device, CopyOptions::default()).unwrap();
    assert_eq!(up.report().aliased, 2);
    let up = up.wait().unwrap();
    assert!(up[2].shares_memory_with(&up[0]) && up[2].address().unwrap() == up[0].address().unwrap());
    let down = start_copy(up, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert!(down[3].shares_memory_with(&down[0]));
    assert_eq!(down[1].to_bytes().unwrap(), down[0].narrow(0, 0, 10).unwrap().to_bytes().unwrap());
    no_violations(&late);
}

/// What the caller's thread carries is one piece; what workers carry is enough pieces for all of them.
#[test]
fn large_copies_go_in_about_32_pieces_and_small_ones_in_one() {
    for (bytes, pieces) in [(1000, 1), (1 << 20, 1), (4 << 20, 8), (20 << 20, 35)] {
        let (late, device) = late();
        let copy = start_copy(Tensor::from(vec![5_u8; bytes]), &device, CopyOptions::default()).unwrap();
        let (there, report) = copy.wait_with_report().unwrap();
        assert_eq!(report.copies, pieces, "{bytes} bytes");
        assert_eq!(bytes_of(&there), vec![5; bytes]);
        no_violations(&late);
    }
}

/// Runs of all lengths about those that are written past the caches, in one piece each and as rows of matrices.
///
/// Mutant: what lies behind the last line of the caches is forgotten (107).
#[test]
fn runs_of_every_length_arrive_through_many_blocks() {
    let (late, device) = late();
    let pattern = |bytes: usize| (0..bytes).map(|at| (at % 251) as u8).collect::<Vec<_>>();
    let lengths = (250..640).chain((64 << 10) - 32..(64 << 10) + 32);
    let whole = lengths.clone().map(|bytes| Tensor::from(pattern(bytes)));
    let rows = lengths.step_by(7).map(|bytes| {
        let matrix = Tensor::from(pattern(5 * bytes)).reshape(&[5, bytes]).unwrap();
        matrix.slice(0, 0..5, 2).unwrap()
    });
    let tensors: Vec<_> = whole.chain(rows).collect();
    let there = start_copy(tensors.clone(), &device, CopyOptions::default()).unwrap().wait().unwrap();
    let back = start_copy(there, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    for (copied, expected) in back.iter().zip(&tensors) {
        assert!(copied.to_bytes().unwrap() == expected.to_bytes().unwrap(), "{:?}", expected.shape());
    }
    no_violations(&late);
}
