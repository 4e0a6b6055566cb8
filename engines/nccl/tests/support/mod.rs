//! Ranks on two devices of CUDA, or on a stand-in for its driver, with a library whose ranks are threads of this process.

#![allow(dead_code, reason = "each program of tests uses some of it")]

use std::env;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use transship::{CopyOptions, Device, TensorTree, start_copy};
use transship_nccl::{Communicator, Nccl, UniqueId};

pub(crate) fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libfake_nccl.so")
}

pub(crate) fn nccl() -> Nccl {
    // SAFETY: it behaves as NCCL.
    unsafe { Nccl::open(library()) }.unwrap()
}

pub(crate) fn devices() -> [Device; 2] {
    ["cuda:0", "cuda:1"].map(|name| Device::open(name.parse().unwrap()).unwrap())
}

pub(crate) fn on<S: TensorTree>(device: &Device, tree: S) -> S {
    start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap()
}

pub(crate) fn down<S: TensorTree>(tree: S) -> S {
    on(&Device::host(), tree)
}

/// Two ranks, each on a thread of its own.
pub(crate) fn ranks<T: Send>(limit: Duration, run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let (nccl, devices) = (nccl(), devices());
    let id = UniqueId::new(&nccl).unwrap();
    // By its bytes, as other processes have it.
    let id = UniqueId::from_bytes(id.to_bytes());
    let rank = |rank: usize| {
        let (nccl, id, device, run) = (&nccl, &id, &devices[rank], &run);
        move || run(Communicator::join(nccl, id, rank, 2, device, limit).unwrap())
    };
    thread::scope(|scope| {
        let threads = [scope.spawn(rank(0)), scope.spawn(rank(1))];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
