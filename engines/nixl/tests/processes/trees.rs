//! Trees that arrive.

use std::collections::HashMap;

use transship::{CopyOptions, Device, Tensor, TensorTree, start_copy};

use crate::pair::{AMPLE, Pair};

#[derive(Debug, TensorTree)]
pub(crate) struct Batch {
    pub(crate) number: u32,
    pub(crate) cameras: Vec<HashMap<String, Tensor>>,
    pub(crate) mask: Tensor,
    pub(crate) columns: Tensor,
    pub(crate) twice: (Tensor, Tensor),
    pub(crate) nothing: Tensor,
}

/// A tree of several types and sizes, whose elements are of `seed`.
pub(crate) fn batch(seed: u32) -> Batch {
    let camera = |camera: u32| {
        let tensor = |leaf: u32| {
            let elements = (camera * 7 + leaf * 13) % 400 + 1;
            let values: Vec<f32> =
                (0..elements).map(|element| (seed + camera * leaf + element) as f32).collect();
            (format!("leaf {leaf}"), Tensor::from(values))
        };
        (0..50).map(tensor).collect()
    };
    let square: Vec<i64> = (0..64).map(|element| i64::from(seed) - element).collect();
    let shared = Tensor::from(vec![seed as u16; 33]);
    Batch {
        number: seed,
        cameras: (0..6).map(camera).collect(),
        mask: Tensor::from((0..77).map(|bit| (bit + seed).is_multiple_of(3)).collect::<Vec<_>>()),
        columns: Tensor::from_vec(square, &[8, 8]).unwrap().transpose(0, 1).unwrap(),
        twice: (shared.clone(), shared),
        nothing: Tensor::from(Vec::<f64>::new()),
    }
}

/// A tree of the same tensors in memory of their own, none of which has the elements of any seed here.
pub(crate) fn empty_batch() -> Batch {
    let mut batch = batch(9_999);
    batch.twice = (Tensor::from(vec![0_u16; 33]), Tensor::from(vec![0_u16; 33]));
    batch.columns = Tensor::from_vec(vec![0_i64; 64], &[8, 8]).unwrap();
    batch
}

pub(crate) fn assert_is(batch_here: &Batch, seed: u32) {
    let expected = batch(seed);
    for (here, there) in batch_here.cameras.iter().zip(&expected.cameras) {
        assert_eq!(here.len(), there.len());
        there.iter().for_each(|(name, there)| {
            assert_eq!(here[name].as_slice::<f32>().unwrap(), there.as_slice::<f32>().unwrap());
        });
    }
    assert_eq!(batch_here.mask.as_slice::<bool>().unwrap(), expected.mask.as_slice::<bool>().unwrap());
    assert_eq!(batch_here.columns.to_vec::<i64>().unwrap(), expected.columns.to_vec::<i64>().unwrap());
    for twice in [&batch_here.twice.0, &batch_here.twice.1] {
        assert_eq!(twice.as_slice::<u16>().unwrap(), [seed as u16; 33]);
    }
    assert_eq!(batch_here.nothing.shape(), [0]);
}

const ROUNDS: u32 = 8;

/// Deliberate bugs: pieces, requests or trees are mistaken for each other; a request is not posted again; gaps are taken for tensors.
pub(crate) fn send_many(pair: &mut Pair) {
    for round in 0..ROUNDS {
        pair.agent.start_send(&batch(round), &pair.peer, AMPLE).unwrap().wait().unwrap();
    }
    // Many at once arrive in their order.
    let sends: Vec<_> =
        (0..ROUNDS).map(|round| pair.agent.start_send(&batch(round), &pair.peer, AMPLE).unwrap()).collect();
    for send in sends {
        futures::executor::block_on(send).unwrap();
    }
    let usage = pair.agent.usage();
    assert_eq!((usage.free, usage.set_aside, usage.ignored), (usage.registered, 0, 0));
}

pub(crate) fn receive_many(pair: &mut Pair) {
    let mut held = empty_batch();
    let address = held.mask.address().unwrap();
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            let transfer = pair.agent.start_receive_into(held, &pair.peer, AMPLE).unwrap();
            held = if round % 4 == 0 {
                transfer.wait().unwrap()
            } else {
                futures::executor::block_on(transfer).unwrap()
            };
            assert_is(&held, round);
            assert_eq!(held.mask.address().unwrap(), address);
            continue;
        }
        let received = pair.agent.start_receive(&pair.peer, AMPLE).unwrap().wait().unwrap();
        let mut fresh = empty_batch();
        received.put_into(&mut fresh).unwrap();
        // Other processes reach that memory: it is copied, and not read.
        assert!(fresh.mask.as_slice::<bool>().is_err());
        let options = CopyOptions::default();
        let fresh = start_copy(fresh, &Device::host(), options).unwrap().wait().unwrap();
        assert_is(&fresh, round);
        assert_eq!(received.tensors().unwrap().len(), received.manifest().len());
    }
    let transfers: Vec<_> = (0..ROUNDS)
        .map(|_| pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap())
        .collect();
    for (round, transfer) in (0..ROUNDS).zip(transfers) {
        assert_is(&transfer.wait().unwrap(), round);
    }
    let usage = pair.agent.usage();
    assert_eq!((usage.free, usage.set_aside, usage.ignored), (usage.registered, 0, 0));
}

const LARGE: usize = 5 << 20;

fn large(seed: u32) -> Vec<Tensor> {
    let values: Vec<u32> =
        (0..LARGE as u32).map(|element| element.wrapping_mul(2_654_435_761) ^ seed).collect();
    vec![Tensor::from(vec![seed as u8; 100]), Tensor::from(values), Tensor::from(vec![seed; 50_000])]
}

/// Deliberate bugs: a piece is written before it is packed; the end of the last one is cut; unpacked before it has arrived.
pub(crate) fn send_large(pair: &mut Pair) {
    for seed in 1..4 {
        pair.agent.start_send(&large(seed), &pair.peer, AMPLE).unwrap().wait().unwrap();
    }
}

pub(crate) fn receive_large(pair: &mut Pair) {
    let mut held = large(0);
    for seed in 1..4 {
        held = pair.agent.start_receive_into(held, &pair.peer, AMPLE).unwrap().wait().unwrap();
        let expected = large(seed);
        assert!(held[0].as_slice::<u8>().unwrap() == expected[0].as_slice::<u8>().unwrap());
        assert!(
            (1..3).all(
                |leaf| held[leaf].as_slice::<u32>().unwrap() == expected[leaf].as_slice::<u32>().unwrap()
            )
        );
    }
}

/// Deliberate bug: an agent that waits for one transfer hears nothing of another.
pub(crate) fn exchange(pair: &mut Pair) {
    for round in 0..10 {
        let receive = pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap();
        let send = pair.agent.start_send(&batch(round), &pair.peer, AMPLE).unwrap();
        assert_is(&receive.wait().unwrap(), round);
        send.wait().unwrap();
    }
}
