//! candle on a CPU has one device, to which nothing is copied: these copy what is there already.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Storage, Var};

use super::*;

fn cpu() -> Result<Target> {
    Target::new(&Device::Cpu)
}

fn copied<S: TensorTree>(mut tree: S) -> S {
    let copy = started(&mut tree, cpu, |_| false).unwrap();
    CopyHandle { tree, copy }.wait().unwrap()
}

fn floats(first: f32, shape: &[usize]) -> Tensor {
    let elements = shape.iter().product::<usize>();
    let values: Vec<_> = (0..elements).map(|number| first + number as f32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

/// Where the storage of a tensor begins.
fn storage(tensor: &Tensor) -> usize {
    match &*tensor.storage_and_layout().0 {
        Storage::Cpu(candle_core::CpuStorage::F32(all)) => all.as_ptr().addr(),
        _ => unreachable!("a tensor of f32 on the CPU"),
    }
}

#[derive(crate::TensorTree, Clone)]
#[tensor_tree(crate = "crate")]
enum Sample {
    Empty,
    Layers { by_name: BTreeMap<String, Vec<Tensor>>, step: usize },
    Node(Box<(Sample, Option<Tensor>)>),
}

#[test]
fn structures_come_back_with_copies_of_their_tensors() {
    let layers = BTreeMap::from([("a".to_owned(), vec![floats(1.0, &[2, 3]), floats(9.0, &[])])]);
    let sample =
        Sample::Node(Box::new((Sample::Layers { by_name: layers, step: 7 }, Some(floats(5.0, &[4])))));
    let sources = sample.clone();
    let Sample::Node(node) = copied(sample) else { unreachable!("the variant stays") };
    let (Sample::Layers { by_name, step }, Some(last)) = *node else { unreachable!("the variants stay") };
    assert_eq!(step, 7);
    assert_eq!(
        (by_name["a"][0].dims(), values(&by_name["a"][0])),
        (&[2, 3][..], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    );
    assert_eq!((by_name["a"][1].rank(), values(&by_name["a"][1])), (0, vec![9.0]));
    assert_eq!(values(&last), [5.0, 6.0, 7.0, 8.0]);
    let Sample::Node(node) = sources else { unreachable!("a node") };
    assert_ne!(storage(&last), storage(node.1.as_ref().unwrap()));
    assert!(matches!(copied(Sample::Empty), Sample::Empty));
}

/// Deliberate bug: `first` is not used where the views are made.
#[test]
fn packed_tensors_are_views_of_one_allocation_for_each_type() {
    let tree = (
        floats(0.0, &[3]),
        floats(10.0, &[64]),
        Tensor::new(&[7_u8, 8], &Device::Cpu).unwrap(),
        floats(0.0, &[200_000]),
    );
    let (short, long, bytes, alone) = copied(tree);
    assert_eq!((values(&short), values(&bytes)), (vec![0.0, 1.0, 2.0], vec![7.0, 8.0]));
    assert_eq!((values(&long)[63], values(&alone)[199_999]), (73.0, 199_999.0));
    assert_eq!(storage(&short), storage(&long));
    assert_ne!(storage(&short), storage(&alone));
    assert!(short.is_contiguous() && long.is_contiguous());
    assert_eq!(short.layout().start_offset(), 64);
}

/// Those that are gathered beside those that are not, in one chunk: large ones, strided ones, and views of a part.
///
/// Deliberate bugs: what is gathered begins where its storage does; runs go on behind what was not gathered.
#[test]
fn small_tensors_lie_between_others() {
    let base = floats(100.0, &[8, 8]);
    let sizes = [3, 64, 5000, 0, 7, 4096, 1, 3000, 64];
    let mut tree: Vec<_> = (0..).zip(sizes).map(|(number, size)| floats(number as f32, &[size])).collect();
    tree.insert(2, base.narrow(0, 3, 2).unwrap());
    tree.insert(5, base.t().unwrap());
    let expected: Vec<_> = tree.iter().map(values).collect();
    let copies = copied(tree);
    assert_eq!(copies.iter().map(values).collect::<Vec<_>>(), expected);
    assert!(copies.iter().all(|copy| storage(copy) == storage(&copies[0])));
}

#[test]
fn every_type_that_both_have_is_copied_bit_for_bit() {
    let all = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ];
    let tree: Vec<_> = all.iter().map(|dtype| floats(1.0, &[3]).to_dtype(*dtype).unwrap()).collect();
    for (copy, dtype) in copied(tree.clone()).iter().zip(all) {
        assert_eq!((copy.dtype(), values(copy)), (dtype, vec![1.0, 2.0, 3.0]));
    }
}

#[test]
fn strided_tensors_arrive_contiguous() {
    let base = floats(0.0, &[3, 4]);
    let views = vec![
        base.t().unwrap(),
        base.narrow(1, 1, 2).unwrap(),
        base.narrow(0, 1, 1).unwrap().broadcast_as((2, 4)).unwrap(),
    ];
    let expected: Vec<_> = views.iter().map(values).collect();
    let copies = copied(views);
    assert!(copies.iter().all(Tensor::is_contiguous));
    assert_eq!(copies.iter().map(values).collect::<Vec<_>>(), expected);
}

/// Deliberate bug: the strides are not compared.
#[test]
fn the_same_view_is_copied_once() {
    let base = floats(0.0, &[2, 2]);
    let tree = vec![base.clone(), base.clone(), base.t().unwrap(), base.reshape((2, 2)).unwrap()];
    let copies = copied(tree);
    assert_eq!(copies[0].id(), copies[1].id());
    let first = |tensor: &Tensor| tensor.layout().start_offset();
    assert_eq!(first(&copies[0]), first(&copies[3]));
    assert_ne!(first(&copies[0]), first(&copies[2]));
    assert_eq!(values(&copies[2]), [0.0, 2.0, 1.0, 3.0]);
}

#[test]
fn tensors_without_elements_keep_their_shape() {
    let tree = (floats(0.0, &[0, 3]), floats(1.0, &[2]), Tensor::new(&[0_u8; 0], &Device::Cpu).unwrap());
    let (none, some, bytes) = copied(tree);
    assert_eq!((none.dims(), values(&some), bytes.dims()), (&[0, 3][..], vec![1.0, 2.0], &[0][..]));
}

#[test]
fn copies_of_variables_are_no_variables() {
    let weight = Var::from_tensor(&floats(1.0, &[2])).unwrap();
    let product = (weight.as_tensor() * 2.0).unwrap();
    let copies = copied(vec![weight.as_tensor().clone(), product]);
    assert!(copies.iter().all(|copy| !copy.is_variable() && !copy.track_op()));
    assert_eq!(values(&copies[1]), [2.0, 4.0]);
}

/// Deliberate bug: storages are not locked. Then a safe call writes what a copy reads.
#[test]
fn who_writes_to_a_source_waits_until_it_is_read() {
    let weight = Var::from_tensor(&floats(1.0, &[2])).unwrap();
    for unlocks in [false, true] {
        let (lent, locks) = source::lend(source::lock_all(&[weight.as_tensor().clone()])).unwrap();
        let (writer, (begins, began), (ends, ended)) = (weight.clone(), mpsc::channel(), mpsc::channel());
        let writing = thread::spawn(move || {
            begins.send(()).unwrap();
            writer.set(&floats(7.0, &[2])).unwrap();
            ends.send(()).unwrap();
        });
        began.recv().unwrap();
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err(), "it has written to what is lent");
        if unlocks {
            locks.unlock()
        } else {
            drop((lent, locks))
        }
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
        writing.join().unwrap();
    }
    assert_eq!(values(weight.as_tensor()), [7.0, 8.0]);
}

/// Deliberate bugs: what is locked stays locked while the next one is waited for; locks are found one by one while others are locked.
#[test]
fn locks_are_not_held_while_another_one_is_waited_for() {
    for finds_before in [true, false] {
        let [one, two] = [0.0, 1.0].map(|first| Var::from_tensor(&floats(first, &[1])).unwrap());
        let tensors = [one.as_tensor().clone(), two.as_tensor().clone()];
        let ((found, finds), (goes, go), (ends, ended)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let locking = thread::spawn(move || {
            let locks = if finds_before { source::find_locks(&tensors) } else { Vec::new() };
            found.send(()).unwrap();
            go.recv().unwrap();
            drop(if finds_before { source::lock_found(&locks) } else { source::lock_all(&tensors) });
            ends.send(()).unwrap();
        });
        finds.recv().unwrap();
        // Holds the lock of `two` for writing while it takes that of `one`: in another order than the copy.
        let (holds, held) = mpsc::channel();
        let crossing = thread::spawn(move || two.inplace_op1(&Crossing(one, holds)).unwrap());
        held.recv().unwrap();
        goes.send(()).unwrap();
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
        locking.join().unwrap();
        crossing.join().unwrap();
    }
}

struct Crossing(Var, mpsc::Sender<()>);

impl candle_core::InplaceOp1 for Crossing {
    fn name(&self) -> &'static str {
        "crossing"
    }

    fn cpu_fwd(&self, _: &mut candle_core::CpuStorage, _: &candle_core::Layout) -> candle_core::Result<()> {
        self.1.send(()).map_err(candle_core::Error::wrap)?;
        thread::sleep(Duration::from_millis(50));
        // A writer, so that it waits for every reader.
        self.0.set(&floats(3.0, &[1]))
    }
}

#[test]
fn a_handle_that_is_dropped_leaves_the_sources_writable() {
    let weight = Var::from_tensor(&floats(1.0, &[1 << 20])).unwrap();
    let mut tree = vec![weight.as_tensor().clone()];
    let copy = started(&mut tree, cpu, |_| false).unwrap();
    drop(CopyHandle { tree, copy });
    weight.set(&floats(0.0, &[1 << 20])).unwrap();
    assert_eq!(values(weight.as_tensor())[1], 1.0);
}

#[test]
fn structures_that_show_others_are_an_error_that_gives_them_back() {
    #[derive(Debug)]
    struct Fickle(Tensor, bool);

    impl TensorTree for Fickle {
        fn visit(&mut self, visitor: &mut crate::Visitor<'_>) -> Result<(), crate::Stop> {
            if std::mem::replace(&mut self.1, true) { Ok(()) } else { self.0.visit(visitor) }
        }
    }

    let mut tree = Fickle(floats(1.0, &[2]), false);
    let copy = started(&mut tree, cpu, |_| false).unwrap();
    let failed = CopyHandle { tree, copy }.wait().unwrap_err();
    assert!(matches!(failed.error, Error::TreeChanged));
    assert_eq!(values(&failed.value.0), [1.0, 2.0]);
}

/// Deliberate bug: which tensor is shown is not compared.
#[test]
fn structures_that_show_theirs_in_another_order_are_an_error() {
    #[derive(Debug)]
    struct Turning(Vec<Tensor>);

    impl TensorTree for Turning {
        fn visit(&mut self, visitor: &mut crate::Visitor<'_>) -> Result<(), crate::Stop> {
            self.0.reverse();
            self.0.visit(visitor)
        }
    }

    let mut tree = Turning(vec![floats(1.0, &[2]), floats(5.0, &[2])]);
    let copy = started(&mut tree, cpu, |_| false).unwrap();
    let failed = CopyHandle { tree, copy }.wait().unwrap_err();
    assert!(matches!(failed.error, Error::TreeChanged));
    assert_eq!(values(&failed.value.0[0]), [1.0, 2.0]);
}

/// Deliberate bug: the layout is not compared with the storage.
#[test]
fn a_shape_that_its_storage_does_not_have_is_an_error() {
    for elements in [4, 1 << 20] {
        let storage = Storage::Cpu(candle_core::CpuStorage::F32(vec![0.0; 3]));
        let mut tree = Tensor::from_storage(storage, elements, candle_core::op::BackpropOp::none(), false);
        let (error, _) = started(&mut tree, cpu, |_| false).err().unwrap();
        let expected = format!("elements 0..{elements} lies outside of 0..3; ask for a part of it");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn types_that_are_not_copied_are_named_with_their_place() {
    use candle_core::op::BackpropOp;
    let scales = Storage::Cpu(candle_core::CpuStorage::F8E8M0(vec![127; 2]));
    let scales = Tensor::from_storage(scales, 2, BackpropOp::none(), false);
    let mut tree = BTreeMap::from([("w", vec![floats(0.0, &[1]), scales])]);
    let (error, tensor) = started(&mut tree, cpu, |_| false).err().unwrap();
    let error = error.at(path_to(&tree, &tensor.unwrap()));
    assert!(
        matches!(&error, Error::NotCopied { path, dtype: DType::F8E8M0 } if path == r#"["w"][1]"#),
        "{error}"
    );
}
