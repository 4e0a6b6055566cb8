//! The calls of programs.

use std::fmt;
use std::thread;
use std::time::Duration;

use candle_core::{Device, Tensor};
use transship::CopyOptions;

use crate::device::{Order, Target, failed};
use crate::element::{in_candle, of_candle};
use crate::error::{CopyError, Error, Result};
use crate::found::{Found, Places};
use crate::gather::{Gathered, gather};
use crate::landing::{Arriving, Landing};
use crate::plan::Spot;
use crate::source;
use crate::tree::{TensorTree, path_to};

/// Between two looks at a copy that workers submit.
const NAP: Duration = Duration::from_micros(20);

/// Starts to copy every tensor of `tree` to `device`, and returns when they are read; the device may still be at it.
///
/// The structure comes out of the handle with its tensors on `device`: those of up to 512 KiB as views of one allocation for each type, larger
/// ones in one of their own.
///
/// - Tensors that are on `device` already stay as they are, as with [`Tensor::to_device`].
/// - The same view of the same storage is copied once, and its copies are one tensor.
/// - Tensors arrive contiguous, whatever their strides were, and without a graph: the copy of a variable is no variable, and no gradient flows
///   through it.
/// - What is copied is what was there when this was called: it waits until the sources on the CPU are read, and until what reads a device is
///   submitted. Small tensors take microseconds; a large copy, which workers carry out, takes as long as they need for that. Sources may be
///   written to afterwards.
///
/// With CUDA the copy runs on candle's stream, behind all that candle has submitted there; nothing waits on the host. Where that is the
/// per-thread default stream, as with [`Device::new_cuda`], the host waits: here for what the thread has submitted so far, and in
/// [`CopyHandle::wait`] for the copy; a copy from such a device is waited for here.
///
/// ```
/// use std::collections::HashMap;
/// use candle_core::{Device, Tensor};
///
/// let batch = HashMap::from([("ids", Tensor::new(&[1_u32, 2, 3], &Device::Cpu)?)]);
/// let device = Device::cuda_if_available(0)?;
/// let batch = transship_candle::start_copy(batch, &device)?.wait()?;
/// assert!(batch["ids"].device().same_device(&device));
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// Types and devices that are not copied, memory that cannot be had, and what candle, transship and the driver say. The structure comes
/// back with each, as it was.
pub fn start_copy<S: TensorTree>(mut tree: S, device: &Device) -> Result<CopyHandle<S>, CopyError<S>> {
    match started(&mut tree, || Target::new(device), |tensor| tensor.device().same_device(device)) {
        Ok(copy) => Ok(CopyHandle { tree, copy }),
        Err((error, tensor)) => {
            let error = match tensor {
                Some(tensor) => error.at(path_to(&tree, &tensor)),
                None => error,
            };
            Err(CopyError { error: failed(error), value: tree })
        }
    }
}

/// Starts to copy tensors of transship, out of its loader of files for instance, to tensors of candle on `device`; in the order given,
/// with their names.
///
/// `bool` becomes `u8`, as candle's comparisons give it; a byte of a file that is neither 0 nor 1 stays as it is. What is on the host is copied as well, and a tensor that is given twice (tied
/// weights) becomes two. As [`start_copy`] otherwise.
///
/// ```
/// use std::collections::HashMap;
/// use candle_core::{Device, Tensor};
///
/// let mask = transship::Tensor::from_vec(vec![true, false], &[2])?;
/// let copied = transship_candle::start_import([("mask", mask)], &Device::Cpu)?.wait()?;
/// let tensors: HashMap<&str, Tensor> = copied.into_iter().collect();
/// assert_eq!(tensors["mask"].to_vec1::<u8>()?, [1, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`Error::NotInCandle`] for `int8`, `uint16`, `uint64`, `float8_e5m2`, `float8_e8m0fnu` and complex numbers, with the name; as [`start_copy`] otherwise. The tensors
/// come back with each.
pub fn start_import<K: fmt::Display>(
    tensors: impl IntoIterator<Item = (K, transship::Tensor)>,
    device: &Device,
) -> Result<ImportHandle<K>, CopyError<Vec<(K, transship::Tensor)>>> {
    let (names, sources): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
    match import(&names, sources.clone(), device) {
        Ok(running) => Ok(ImportHandle { names, running }),
        Err(error) => {
            Err(CopyError { error: failed(error), value: names.into_iter().zip(sources).collect() })
        }
    }
}

fn import<K: fmt::Display>(names: &[K], sources: Vec<transship::Tensor>, device: &Device) -> Result<Running> {
    let unknown = sources.iter().zip(names).find(|(tensor, _)| in_candle(tensor.dtype()).is_none());
    if let Some((tensor, name)) = unknown {
        return Err(Error::NotInCandle { path: name.to_string(), dtype: tensor.dtype() });
    }
    let target = Target::new(device)?;
    let stream = target.stream.clone();
    let arriving = |tensor: &transship::Tensor| Arriving::new(tensor.dtype(), tensor.shape());
    let landing = Landing::new(sources.iter().map(arriving).collect(), &target)?;
    let spots = landing.spots.clone();
    Running::new(sources, &spots, (landing, target), stream)
}

/// A copy in progress, which gives the structure back with its tensors on the device asked for.
///
/// Dropping or forgetting it neither blocks nor frees anything that is in use: the copy owns that.
#[must_use = "the structure comes out of the handle"]
pub struct CopyHandle<S> {
    tree: S,
    /// `None` if there was nothing to copy.
    copy: Option<Copying>,
}

struct Copying {
    running: Running,
    places: Places,
}

impl<S: TensorTree> CopyHandle<S> {
    /// The structure, with its tensors to be used on their device as any others of candle's.
    ///
    /// Waits for copies to the CPU, and for those to CUDA where candle works on the per-thread default stream
    /// ([`Device::new_cuda`]). Where it has a stream of its own ([`Device::new_cuda_with_stream`]) this waits until the copy is
    /// submitted there, and never for the device.
    ///
    /// # Errors
    ///
    /// What made the copy fail, and [`Error::TreeChanged`]. The structure comes back with its sources; after the second with some of them replaced.
    pub fn wait(self) -> Result<S, CopyError<S>> {
        let Self { mut tree, copy } = self;
        let Some(Copying { running, places }) = copy else { return Ok(tree) };
        match running.finish().and_then(|copies| places.put(&mut tree, &copies)) {
            Ok(()) => Ok(tree),
            Err(error) => Err(CopyError { error, value: tree }),
        }
    }
}

impl<S> CopyHandle<S> {
    /// Whether the copy is done. Asks the device; never blocks.
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    pub fn is_ready(&self) -> Result<bool> {
        self.copy.as_ref().map_or(Ok(true), |copying| copying.running.is_ready())
    }
}

impl<S> fmt::Debug for CopyHandle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.copy.as_ref().map_or(0, |copying| copying.places.len());
        write!(f, "CopyHandle({tensors} tensors of candle)")
    }
}

/// A copy of tensors of transship's in progress. Dropping it is as with [`CopyHandle`].
#[must_use = "the tensors come out of the handle"]
pub struct ImportHandle<K> {
    names: Vec<K>,
    running: Running,
}

impl<K> ImportHandle<K> {
    /// The tensors with their names, to be used on their device as any others of candle's. Waits as [`CopyHandle::wait`].
    ///
    /// # Errors
    ///
    /// What made the copy fail. The sources are gone then.
    pub fn wait(self) -> Result<Vec<(K, Tensor)>> {
        Ok(self.names.into_iter().zip(self.running.finish()?).collect())
    }

    /// As [`CopyHandle::is_ready`].
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    pub fn is_ready(&self) -> Result<bool> {
        self.running.is_ready()
    }
}

impl<K> fmt::Debug for ImportHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImportHandle({} tensors of candle)", self.names.len())
    }
}

/// Tensors of transship on their way into memory of candle's.
struct Running {
    /// `None` once it is done.
    filling: Option<transship::CopyHandle<Vec<transship::Tensor>>>,
    landing: Landing,
    target: Target,
}

impl Running {
    /// Starts to copy `sources` to `spots`, on `stream` if there is one.
    fn new(
        sources: Vec<transship::Tensor>,
        spots: &[Spot],
        (landing, target): (Landing, Target),
        stream: Option<transship::Stream>,
    ) -> Result<Self> {
        let into = landing.lend(&sources, spots, &target)?;
        let options = stream.iter().fold(CopyOptions::default(), CopyOptions::stream);
        let filling = transship::start_copy_into(sources, into, options).map_err(transship::Error::from)?;
        Ok(Self { filling: Some(filling), landing, target })
    }

    fn is_ready(&self) -> Result<bool> {
        Ok(self.filling.as_ref().map_or(Ok(true), transship::CopyHandle::is_ready)?)
    }

    /// Waits on the host. Drops the sources on this thread.
    fn wait(&mut self) -> Result<()> {
        if let Some(filling) = self.filling.take() {
            drop(filling.wait().map_err(transship::Error::from)?);
        }
        Ok(())
    }

    /// Waits until all is submitted: host memory was read by then, and what reads a device is in the stream that candle's writes are
    /// submitted to.
    fn wait_until_read(&self) -> Result<()> {
        let Some(filling) = &self.filling else { return Ok(()) };
        while filling.report().submitted_after.is_none() && !filling.is_ready()? {
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// The tensors, in candle's order.
    fn finish(mut self) -> Result<Vec<Tensor>> {
        let filled = match (self.filling.take(), &self.target.stream) {
            (Some(filling), Some(stream)) => filling.wait_on(stream).map(drop),
            (Some(filling), None) => filling.wait().map(drop),
            (None, _) => Ok(()),
        };
        filled.map_err(|error| failed(transship::Error::from(error).into()))?;
        self.landing.into_tensors()
    }
}

/// Starts the copy of what is not on the target; with an error, the tensor that it is about, where it is about one.
fn started<S: TensorTree>(
    tree: &mut S,
    target: impl FnOnce() -> Result<Target>,
    stays: impl Fn(&Tensor) -> bool,
) -> Result<Option<Copying>, (Error, Option<Tensor>)> {
    let none = |error| (error, None);
    let Found { tensors, places } = Found::new(tree, stays).map_err(none)?;
    if tensors.is_empty() {
        return Ok(None);
    }
    let target = target().map_err(none)?;
    let of = |(index, error): (usize, Error)| (error, tensors.get(index).cloned());
    let arriving = tensors.iter().enumerate().map(arriving).collect::<Result<_, _>>().map_err(of)?;
    let landing = Landing::new(arriving, &target).map_err(none)?;
    let Gathered { runs, alone } = gather(&tensors, &landing).map_err(of)?;
    let (mut sources, mut spots): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let not_gathered =
        || alone.iter().filter_map(|number| Some((tensors.get(*number)?, landing.spots.get(*number)?)));
    spots.extend(not_gathered().map(|(_, spot)| *spot));
    let others =
        not_gathered().map(|(tensor, _)| readable(tensor)).collect::<Result<Vec<_>>>().map_err(none)?;
    let of_others = |(index, error): (usize, Error)| of((alone.get(index).copied().unwrap_or(index), error));
    let (lent, locks) = source::lend(source::lock_all(&others)).map_err(of_others)?;
    sources.extend(lent);
    // Only now: nobody writes any more, and candle's streams wait for those of others that have written.
    let Order { stream, waits_here } = target.behind(&others).map_err(none)?;
    let mut running = Running::new(sources, &spots, (landing, target), stream).map_err(none)?;
    // Whoever writes to a source waits for its lock, this thread too: nothing may be locked when it has the handle.
    match (waits_here, others.is_empty()) {
        (true, _) => running.wait().map_err(none)?,
        (false, true) => {} // all was read above
        (false, false) => running.wait_until_read().map_err(none)?,
    }
    locks.unlock();
    let copying = Copying { running, places };
    Ok(Some(copying))
}

fn arriving((number, tensor): (usize, &Tensor)) -> Result<Arriving, (usize, Error)> {
    let unknown = || (number, Error::NotCopied { path: String::new(), dtype: tensor.dtype() });
    let dtype = of_candle(tensor.dtype()).ok_or_else(unknown)?;
    Ok(Arriving::new(dtype, tensor.dims()))
}

/// What is strided on a device is made contiguous there, by candle's kernel. On the host it is gathered on the way.
fn readable(tensor: &Tensor) -> Result<Tensor> {
    if tensor.device().is_cpu() { Ok(tensor.clone()) } else { Ok(tensor.contiguous()?) }
}

#[cfg(test)]
mod tests;
