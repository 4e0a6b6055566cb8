//! What copies alone can do, between any devices.

use transship::{
    CopyHandle, CopyOptions, CopyPolicy, Device, Stream, StreamPriority, Tensor, TensorTree, for_each_path,
    for_each_tensor, start_copy, start_copy_to_all,
};

use crate::error::{Error, Result};
use crate::gather_in_place::gather_in_place;
use crate::leaves::Leaves;
use crate::on_host;
use crate::reduce_op::ReduceOp;

/// The devices of the ranks, and what results are ordered on there.
pub(crate) struct Ranks {
    pub(crate) devices: Vec<Device>,
    /// `None` on the host, which is waited for.
    streams: Vec<Option<Stream>>,
}

impl Ranks {
    pub(crate) fn new(devices: &[Device]) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::NoSuchRank { rank: 0, ranks: 0 });
        }
        let stream =
            |device: &Device| (!device.is_host()).then(|| device.create_stream(StreamPriority::Normal));
        let streams = devices.iter().map(|device| stream(device).transpose()).collect::<Result<_, _>>()?;
        Ok(Self { devices: devices.to_vec(), streams })
    }

    pub(crate) fn len(&self) -> usize {
        self.devices.len()
    }

    /// One tree for each rank.
    pub(crate) fn broadcast<S: TensorTree + Clone>(&self, tree: S) -> Result<Vec<S>> {
        let copies =
            start_copy_to_all(tree, &self.devices, self.options()).map_err(transship::Error::from)?;
        self.finish_all(copies)
    }

    /// A part of each tensor for each rank.
    pub(crate) fn scatter<S: TensorTree + Clone>(
        &self,
        tree: &S,
        dim: usize,
        sizes: &[usize],
    ) -> Result<Vec<S>> {
        check_sizes(tree, dim, sizes)?;
        let mut start = 0;
        let mut copies = Vec::with_capacity(self.len());
        for (device, size) in self.devices.iter().zip(sizes) {
            let mut part = tree.clone();
            for_each_tensor(&mut part, |tensor| {
                *tensor = tensor.narrow(dim, start, *size)?;
                Ok(())
            })?;
            start += size;
            copies.push(start_copy(part, device, self.options()).map_err(transship::Error::from)?);
        }
        self.finish_all(copies)
    }

    /// The tensors of all ranks, one behind the other along `dim`.
    pub(crate) fn gather(&self, ranks: &[Leaves], dim: usize, to: &Device) -> Result<Vec<Tensor>> {
        let shapes = gathered_shapes(ranks, dim)?;
        if dim == 0
            && let Some(whole) = gather_in_place(ranks, &shapes, to)?
        {
            return Ok(whole);
        }
        let rows = down(ranks)?;
        let whole = shapes.iter().enumerate().map(|(leaf, shape)| behind_each_other(&rows, leaf, shape, dim));
        let whole = whole.collect::<transship::Result<Vec<_>>>()?;
        to_device(whole, to)
    }

    /// What `op` makes of the tensors of all ranks, on the host.
    pub(crate) fn reduce(ranks: &[Leaves], op: ReduceOp) -> Result<Vec<Tensor>> {
        let Some(first) = ranks.first() else { return Ok(Vec::new()) };
        first.check_reducible(op)?;
        let rows = down(ranks)?;
        let reduced = (0..first.tensors.len()).map(|leaf| {
            let column: Vec<&Tensor> = rows.iter().filter_map(|row| row.get(leaf)).collect();
            on_host::combine(op, &column)
        });
        Ok(reduced.collect::<transship::Result<_>>()?)
    }

    /// Ranks share no memory, though they may be on one device.
    fn options(&self) -> CopyOptions {
        let mut ids: Vec<_> = self.devices.iter().map(Device::id).collect();
        ids.sort_unstable();
        ids.dedup();
        let policy = if ids.len() < self.len() { CopyPolicy::Always } else { CopyPolicy::IfNeeded };
        CopyOptions::default().policy(policy)
    }

    fn finish_all<S: TensorTree>(&self, copies: Vec<CopyHandle<S>>) -> Result<Vec<S>> {
        let finish = |(copy, stream): (CopyHandle<S>, &Option<Stream>)| match stream {
            Some(stream) => copy.wait_on(stream),
            None => copy.wait(),
        };
        let finished: Result<Vec<S>, _> = copies.into_iter().zip(&self.streams).map(finish).collect();
        Ok(finished.map_err(transship::Error::from)?)
    }
}

/// Tensors of the host on `to`.
pub(crate) fn to_device(tensors: Vec<Tensor>, to: &Device) -> Result<Vec<Tensor>> {
    let copied = start_copy(tensors, to, CopyOptions::default()).and_then(CopyHandle::wait);
    Ok(copied.map_err(transship::Error::from)?)
}

/// The tensors of each rank on the host. All come down at the same time.
fn down(ranks: &[Leaves]) -> Result<Vec<Vec<Tensor>>> {
    let host = Device::host();
    let start = |rank: &Leaves| start_copy(rank.tensors.clone(), &host, CopyOptions::default());
    let copies: Result<Vec<_>, _> = ranks.iter().map(start).collect();
    let rows: Result<Vec<_>, _> =
        copies.map_err(transship::Error::from)?.into_iter().map(CopyHandle::wait).collect();
    Ok(rows.map_err(transship::Error::from)?)
}

fn check_sizes<S: TensorTree>(tree: &S, dim: usize, sizes: &[usize]) -> Result<()> {
    let sum = sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
    let mut unsuited = None;
    for_each_path(tree, |path, tensor| {
        if tensor.shape().get(dim).copied() != sum || sum.is_none() {
            unsuited.get_or_insert_with(|| (path.to_string(), tensor.shape().to_vec()));
        }
        Ok(())
    })?;
    match unsuited {
        Some((path, shape)) if dim >= shape.len() => {
            Err(Error::NoSuchDimension { path, rank: None, shape, dim })
        }
        Some((path, shape)) => Err(Error::NotScattered { path, shape, dim, sizes: sizes.to_vec() }),
        None => Ok(()),
    }
}

/// The shape of each tensor once those of all ranks are behind each other.
fn gathered_shapes(ranks: &[Leaves], dim: usize) -> Result<Vec<Vec<usize>>> {
    let Some((first, others)) = ranks.split_first() else { return Ok(Vec::new()) };
    let mut shapes: Vec<Vec<usize>> = first.tensors.iter().map(|tensor| tensor.shape().to_vec()).collect();
    check_dim(first, dim)?;
    for (index, rank) in others.iter().enumerate() {
        for (leaf, (path, tensor)) in rank.named().enumerate() {
            let (Some(one), Some(whole)) = (first.tensors.get(leaf), shapes.get_mut(leaf)) else { continue };
            if !is_alike(one, tensor, dim) {
                return Err(unsuited(path, index + 1, tensor, one, dim));
            }
            add_size(whole, dim, tensor)?;
        }
    }
    Ok(shapes)
}

/// Makes `whole` longer along `dim`, by as much as `tensor` has there.
fn add_size(whole: &mut [usize], dim: usize, tensor: &Tensor) -> Result<()> {
    let (Some(sum), Some(size)) = (whole.get(dim), tensor.shape().get(dim)) else { return Ok(()) };
    let Some(longer) = sum.checked_add(*size) else {
        return Err(transship::Error::SizeOverflow { shape: whole.to_vec(), dtype: tensor.dtype() }.into());
    };
    if let Some(sum) = whole.get_mut(dim) {
        *sum = longer;
    }
    Ok(())
}

fn check_dim(first: &Leaves, dim: usize) -> Result<()> {
    match first.named().find(|(_, tensor)| dim >= tensor.rank()) {
        Some((path, tensor)) => {
            let (path, shape) = (path.to_owned(), tensor.shape().to_vec());
            Err(Error::NoSuchDimension { path, rank: Some(0), shape, dim })
        }
        None => Ok(()),
    }
}

fn is_alike(one: &Tensor, other: &Tensor, dim: usize) -> bool {
    let others = |tensor: &Tensor| {
        let shape = tensor.shape().iter().enumerate();
        shape.filter_map(|(index, size)| (index != dim).then_some(*size)).collect::<Vec<_>>()
    };
    one.dtype() == other.dtype() && one.rank() == other.rank() && others(one) == others(other)
}

fn unsuited(path: &str, rank: usize, tensor: &Tensor, first: &Tensor, dim: usize) -> Error {
    Error::NotGathered {
        path: path.to_owned(),
        rank,
        dtype: tensor.dtype(),
        shape: tensor.shape().to_vec(),
        first_dtype: first.dtype(),
        first_shape: first.shape().to_vec(),
        dim,
    }
}

/// Tensor number `leaf` of all rows, which lie on the host, one behind the other.
fn behind_each_other(
    rows: &[Vec<Tensor>],
    leaf: usize,
    shape: &[usize],
    dim: usize,
) -> transship::Result<Tensor> {
    let column: Vec<&Tensor> = rows.iter().filter_map(|row| row.get(leaf)).collect();
    let dtype = column.first().map_or(transship::DType::U8, |tensor| tensor.dtype());
    let outer: usize = shape.iter().take(dim).product();
    let pieces = column.iter().map(|tensor| tensor.to_bytes()).collect::<transship::Result<Vec<_>>>()?;
    let mut bytes = Vec::with_capacity(pieces.iter().map(Vec::len).sum());
    for index in 0..outer {
        for piece in &pieces {
            let run = piece.len() / outer;
            bytes.extend_from_slice(piece.get(index * run..(index + 1) * run).unwrap_or_default());
        }
    }
    host_tensor(bytes, dtype, shape)
}

fn host_tensor(bytes: Vec<u8>, dtype: transship::DType, shape: &[usize]) -> transship::Result<Tensor> {
    let mut tensor = Tensor::empty(shape, dtype, &Device::host())?;
    tensor.as_mut_bytes()?.copy_from_slice(&bytes);
    Ok(tensor)
}
