//! What a copy costs on the host, for each tensor: planning, taking tensors out of a structure and putting them back, and making
//! tensors of somebody else's memory.
#![allow(missing_docs, clippy::unwrap_used, reason = "a failed unwrap ends the benchmark")]

#[path = "../examples/common/detection.rs"]
mod detection;

use std::hint::black_box;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use transship::backend::Limits;
use transship::plan::{Leaf, Place, Plan, PlanOptions};
use transship::{
    Alignment, CopyOptions, CopyPolicy, Device, Layout, MemoryKind, RawMemory, SharedOwner, Tensor,
    for_each_tensor, start_copy,
};

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = planning, visiting, copying, lending
}
criterion_main!(benches);

fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    let options = PlanOptions {
        pack: true,
        alignment: Alignment::new(16).unwrap(),
        multiple: NonZero::<usize>::MIN,
        granularity: Alignment::ONE,
        largest_chunk: 32 << 20,
        largest_packed: 256 << 10,
    };
    let limits = Limits::new(Alignment::new(256).unwrap(), 1 << 40);
    for count in [detection::LEAVES, 10_000] {
        let leaves = leaves_of_all_kinds(count);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| Plan::new(black_box(&leaves), &options, &limits).unwrap());
        });
    }
    group.finish();
}

/// Of the sizes and alignments of the batch, in its order.
fn leaves_of_all_kinds(count: usize) -> Vec<Leaf> {
    let mut batch = detection::batch(0).unwrap();
    let tensors = detection::leaves(&mut batch).unwrap();
    let leaf = |tensor: &Tensor| Leaf {
        bytes: tensor.nbytes(),
        alignment: tensor.dtype().alignment(),
        skew: 0,
        place: Place::From(0),
        range: None,
        widened_log2: 0,
    };
    tensors.iter().cycle().take(count).map(leaf).collect()
}

fn visiting(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("visit");
    group.throughput(Throughput::Elements(detection::LEAVES as u64));
    let mut batch = detection::batch(0).unwrap();
    group.bench_function("batch", |bencher| {
        bencher.iter(|| {
            let mut count = 0;
            for_each_tensor(&mut batch, |_| {
                count += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(count, detection::LEAVES);
        });
    });
    group.finish();
}

/// `always` takes, plans, fills and rebuilds; `if needed` takes and rebuilds, since everything is on the host already.
fn copying(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy to the host");
    group.throughput(Throughput::Elements(detection::LEAVES as u64));
    let batch = detection::batch(0).unwrap();
    for (name, policy) in [("always", CopyPolicy::Always), ("if needed", CopyPolicy::IfNeeded)] {
        let copy = |batch| {
            let options = CopyOptions::default().policy(policy);
            start_copy(batch, &Device::host(), options).unwrap().wait().unwrap()
        };
        group.bench_function(name, |bencher| {
            bencher.iter_batched(|| batch.clone(), copy, BatchSize::SmallInput);
        });
    }
    group.finish();
}

/// The batch as memory of somebody else, made tensors of and dropped: with one owner for all, and with one for each.
fn lending(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lend");
    group.throughput(Throughput::Elements(detection::LEAVES as u64));
    let mut batch = detection::batch(0).unwrap();
    let mut ranges = Vec::new();
    for_each_tensor(&mut batch, |tensor| {
        let memory = RawMemory::new(tensor.address()?.unwrap(), tensor.nbytes(), MemoryKind::Pageable);
        ranges.push((memory, tensor.layout().clone()));
        Ok(())
    })
    .unwrap();
    let (batch, host) = (Arc::new(batch), Device::host());
    group.bench_function("one owner", |bencher| {
        bencher.iter(|| {
            let owner = SharedOwner::new(batch.clone(), &host);
            // SAFETY: the owner keeps the batch, which nobody writes.
            let lend =
                |(memory, layout): &(RawMemory, Layout)| unsafe { owner.tensor(*memory, layout.clone()) };
            ranges.iter().map(lend).collect::<Result<Vec<Tensor>, _>>().unwrap()
        });
    });
    group.bench_function("an owner each", |bencher| {
        bencher.iter(|| {
            // SAFETY: as above.
            let lend = |(memory, layout): &(RawMemory, Layout)| unsafe {
                Tensor::from_raw(*memory, Box::new(batch.clone()), layout.shape(), layout.dtype(), &host)
            };
            ranges.iter().map(lend).collect::<Result<Vec<Tensor>, _>>().unwrap()
        });
    });
    group.finish();
}
