//! Elements that are converted on the way.

use std::time::Duration;

use transship::{Cast, CopyOptions, CopyPolicy, DType, Device, Error, Tensor, start_copy};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{self, Input};
use crate::measure::{Contender, Method, series};
use crate::ours::{self, Target};
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[
    Work { name: "up-cast-1x1GiB", title: "1 GiB of float32 up as bfloat16", needs: Needs::Nothing, run: up },
    Work {
        name: "up-cast-images",
        title: "8 images of 6.2 MB of uint8 up as float32, with scale and bias",
        needs: Needs::Device,
        run: images,
    },
    Work {
        name: "up-cast-many-images",
        title: "256 images of 151 KB of uint8 up as float32, with scale and bias",
        needs: Needs::Device,
        run: many_images,
    },
    Work {
        name: "down-cast-1x1GiB",
        title: "1 GiB of float32 down as bfloat16",
        needs: Needs::Casts,
        run: down,
    },
    Work {
        name: "within-cast-1x1GiB",
        title: "1 GiB of float32 as bfloat16 within the device",
        needs: Needs::Casts,
        run: within,
    },
];

const SCALE: f32 = 1.0 / 255.0;
const BIAS: f32 = -0.5;

fn up(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    let mut contenders = with_and_without(&Target::new(bed, &bed.device), Cast::new(DType::F32, DType::BF16));
    contenders.extend(rivals::up_cast(&bed.device, bytes / 2, input::narrowed)?);
    let mut row = Row::new(work.name, work.title, 1, bytes);
    row.lines = series(bed.effort(2.0), contenders, |seed| input::to_be_narrowed(seed, bytes))?;
    Ok(vec![row])
}

fn images(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let contenders = with_and_without(&Target::new(bed, &bed.device), scaling());
    images_by(bed, work, (8, bed.bytes(3 * 1080 * 1920)), contenders)
}

/// Above 512 KiB a tensor has an allocation of its own, and a launch.
fn many_images(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let target = Target::new(bed, &bed.device);
    let mut packing = target.clone();
    packing.options = packing.options.cast(scaling()).max_packed_bytes(1 << 20);
    let mut contenders = with_and_without(&target, scaling());
    contenders.push(
        packing.way("start_copy with max_packed_bytes(1 MiB), until wait() returns", ours::until_waited),
    );
    images_by(bed, work, (bed.count(256, 151 << 10), 3 * 224 * 224), contenders)
}

fn scaling() -> Cast {
    Cast::new(DType::U8, DType::F32).scaled(SCALE, BIAS)
}

fn images_by(
    bed: &Bed,
    work: &Work,
    (count, pixels): (usize, usize),
    mut contenders: Vec<Contender<Vec<Tensor>>>,
) -> Result<Vec<Row>> {
    let scaled = |image: &Tensor| input::scaled(image, SCALE, BIAS);
    contenders.extend(rivals::up_cast(&bed.device, 4 * count * pixels, scaled)?);
    contenders.extend(limits(rivals::up(&bed.device, count * pixels)?, |image| Ok(image.clone())));
    let mut row = Row::new(work.name, work.title, count, count * pixels);
    row.lines = series(bed.effort(1.5), contenders, |seed| {
        input::images(seed, count, pixels, |image| input::scaled(image, SCALE, BIAS))
    })?;
    Ok(vec![row])
}

fn down(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    let target = Target::new(bed, &Device::host());
    let mut contenders = with_and_without(&target, Cast::new(DType::F32, DType::BF16));
    let half = |tensor: &Tensor| tensor.narrow(0, 0, tensor.numel() / 2);
    contenders.extend(limits(rivals::down(&bed.device, bytes / 2)?, half));
    from_device(bed, work, bytes, contenders)
}

fn within(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let mut target = Target::new(bed, &bed.device);
    target.options = target.options.policy(CopyPolicy::Always);
    let contenders = with_and_without(&target, Cast::new(DType::F32, DType::BF16));
    from_device(bed, work, bed.bytes(1 << 30), contenders)
}

fn from_device(
    bed: &Bed,
    work: &Work,
    bytes: usize,
    contenders: Vec<Contender<Vec<Tensor>>>,
) -> Result<Vec<Row>> {
    let mut row = Row::new(work.name, work.title, 1, bytes);
    row.lines = series(bed.effort(2.0), contenders, |seed| {
        let inputs = input::to_be_narrowed(seed, bytes)?;
        inputs.into_iter().map(|input| input.on(&bed.device, &bed.options(&bed.device))).collect()
    })?;
    Ok(vec![row])
}

fn with_and_without(target: &Target, cast: Cast) -> Vec<Contender<Vec<Tensor>>> {
    let mut casting = target.clone();
    casting.options = casting.options.cast(cast);
    let uncast = Uncast::new(target.method(), |tensor| Ok(tensor.clone()));
    vec![casting.contender(), Contender::new(Kind::Ours, "start_copy without a cast", uncast)]
}

/// The limits among `rivals`, each for a part of each tensor, as it is.
fn limits(rivals: Vec<Contender<Vec<Tensor>>>, part: Part) -> impl Iterator<Item = Contender<Vec<Tensor>>> {
    let limits = rivals.into_iter().filter(|rival| rival.kind() == Kind::Limit);
    limits.map(move |limit| {
        limit.map(|_, way, method| (format!("{way}, not cast"), Box::new(Uncast::new(method, part)) as _))
    })
}

type Part = fn(&Tensor) -> transship::Result<Tensor>;

/// Copies tensors as they are, or parts of them, where others cast them.
struct Uncast {
    method: Box<dyn Method<Vec<Tensor>>>,
    part: Part,
    /// What the last run copied, and the same on the host.
    input: Option<Input<Vec<Tensor>>>,
}

impl Uncast {
    fn new(method: Box<dyn Method<Vec<Tensor>>>, part: Part) -> Self {
        Self { method, part, input: None }
    }

    fn input(&self, input: &Input<Vec<Tensor>>) -> Result<Input<Vec<Tensor>>> {
        let leaves = input.leaves.iter().map(self.part).collect::<transship::Result<Vec<_>>>()?;
        let expected = start_copy(leaves.clone(), &Device::host(), CopyOptions::default());
        let expected = expected.map_err(Error::from)?.wait().map_err(Error::from)?;
        Ok(Input { data: input.data, value: leaves.clone(), leaves, expected })
    }
}

impl Method<Vec<Tensor>> for Uncast {
    fn run(&mut self, input: &Input<Vec<Tensor>>) -> Result<Duration> {
        let uncast = match self.input.take().filter(|uncast| uncast.data == input.data) {
            Some(uncast) => uncast,
            None => self.input(input)?,
        };
        self.method.run(self.input.insert(uncast))
    }

    fn is_right(&mut self, _: &[Tensor]) -> Result<bool> {
        let uncast = self.input.as_ref().ok_or("nothing was copied")?;
        self.method.is_right(&uncast.expected)
    }
}
