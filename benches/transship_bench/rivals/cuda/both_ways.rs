//! Up and down at once, on two streams.

use std::rc::Rc;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::cuda::cudarc::driver::result;
use transship::cuda::device_ptr;

use super::driver::{Block, Cuda, There, all_same};
use crate::Result;
use crate::input::Input;
use crate::measure::{Contender, Method};
use crate::table::Kind;

/// One direction, the other, and both at once; a copy each, from and to pinned memory.
pub(super) fn contenders(cuda: &Rc<Cuda>) -> Result<Vec<Contender<(Tensor, Tensor)>>> {
    let ways = [("up", true, false), ("down", false, true), ("both at once", true, true)];
    let contender = |(name, up, down): (&str, bool, bool)| {
        let other = Rc::new(Cuda::new(cuda.ordinal())?);
        let ways = BothWays { streams: [cuda.clone(), other], up, down, there: None, here: None };
        Ok(Contender::new(Kind::Limit, format!("one copy {name}, pinned"), ways))
    };
    ways.into_iter().map(contender).collect()
}

struct BothWays {
    streams: [Rc<Cuda>; 2],
    up: bool,
    down: bool,
    there: Option<There>,
    here: Option<Block>,
}

impl Method<(Tensor, Tensor)> for BothWays {
    fn run(&mut self, input: &Input<(Tensor, Tensor)>) -> Result<Duration> {
        self.there = None;
        let (source, result) = &input.value;
        let [up, down] = &self.streams;
        if self.here.is_none() {
            self.here = Some(Block::new(down, result.nbytes())?);
        }
        let here = self.here.as_mut().ok_or("there is no room")?;
        up.bind()?;
        let started = Instant::now();
        if self.up {
            let there = self.there.insert(There::allocate(up, std::slice::from_ref(source))?);
            // SAFETY: the source has so many bytes and outlives the synchronisation below.
            unsafe { result::memcpy_htod_async(there.start, source.as_bytes()?, up.stream)? };
        }
        if self.down {
            // SAFETY: the tensor is there and has so many bytes; the block is left alone until the synchronisation.
            unsafe { result::memcpy_dtoh_async(here.as_mut_slice(), device_ptr(result)?, down.stream)? };
        }
        up.synchronize()?;
        down.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let [up, down] = expected else { return Err("a pair was expected".into()) };
        let mut right = true;
        if self.up {
            let there = self.there.as_ref().ok_or("nothing was copied")?;
            right &= there.is_right(std::slice::from_ref(up))?;
        }
        if self.down {
            let here = self.here.as_ref().ok_or("nothing was copied")?;
            right &= all_same(here.as_slice(), &[(0, down.nbytes())], std::slice::from_ref(down))?;
        }
        Ok(right)
    }
}
