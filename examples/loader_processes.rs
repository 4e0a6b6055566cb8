//! Loader processes feed the process that has the GPU: `cargo run --release --features cuda,ipc --example loader_processes`.
//!
//! The program starts itself twice as a loader. Each writes batches of 50 MB where the GPU copies them from; the host copies nothing in between.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("processes share memory on Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1) {
        Some(path) => processes::load(path.as_ref()),
        None => processes::train(),
    }
}

#[cfg(target_os = "linux")]
mod processes {
    use std::collections::BTreeMap;
    use std::error::Error;
    use std::path::Path;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use transship::ipc::{Feed, FeedOptions, Loader};
    use transship::prelude::*;

    const BATCHES: u64 = 40;
    const IMAGES: usize = 8;
    const IMAGE: [usize; 3] = [1080, 1920, 3];

    type Batch = BTreeMap<String, Tensor>;

    /// What a batch looks like: images of bytes, and their labels.
    fn empty_batch() -> transship::Result<Batch> {
        let image =
            |number| Ok((format!("image{number}"), Tensor::empty(&IMAGE, DType::U8, &Device::host())?));
        let labels = ("labels".to_owned(), Tensor::empty(&[IMAGES], DType::I64, &Device::host())?);
        (0..IMAGES).map(image).chain([Ok(labels)]).collect()
    }

    pub(super) fn load(path: &Path) -> Result<(), Box<dyn Error>> {
        let mut loader = Loader::connect(path)?;
        let like = empty_batch()?;
        while let Some(job) = loader.next_job()? {
            let number = job.number();
            // Decoders write to the address of an image; this one writes a byte of its own to all of it.
            let mut batch = job.in_place(&like)?;
            for (name, tensor) in &like {
                let (start, bytes) = batch.address(&format!("[{name:?}]")).ok_or("no such tensor")?;
                assert_eq!(bytes, tensor.nbytes());
                // SAFETY: so many bytes are there until the batch is finished.
                unsafe { start.as_ptr().write_bytes(number as u8, bytes) };
            }
            batch.finish()?;
        }
        Ok(())
    }

    pub(super) fn train() -> Result<(), Box<dyn Error>> {
        let device = Device::best()?;
        let path = std::env::temp_dir().join(format!("transship-feed-{}", std::process::id()));
        let bytes: usize = empty_batch()?.values().map(Tensor::nbytes).sum();
        let mut feed = Feed::new(&path, 0..BATCHES, &device, FeedOptions::new(bytes + (64 << 10)))?;
        let loaders = [start_loader(&path)?, start_loader(&path)?];

        let mut held = empty_batch()?;
        let (mut waited, mut called, mut copied, mut staged) =
            (Duration::ZERO, Duration::ZERO, Duration::ZERO, 0);
        held = start_copy(held, &device, CopyOptions::default().policy(CopyPolicy::Always))?.wait()?;
        let begin = Instant::now();
        for number in 0..BATCHES {
            let mut tensors = empty_batch()?;
            let start = Instant::now();
            let batch = feed.next_within(Duration::from_secs(60))?.ok_or("too few batches")?;
            let there = Instant::now();
            batch.put_into(&mut tensors)?;
            drop(batch);
            let copy = start_copy_into(tensors, held, CopyOptions::default())?;
            called += there.elapsed();
            let (filled, report) = copy.wait_with_report()?;
            (held, waited, copied) = (filled, waited + (there - start), copied + there.elapsed());
            staged += report.pinned_staging_bytes + report.pageable_staging_bytes;
            // The program computes here. This one looks at every batch once.
            let label =
                start_copy(held["labels"].clone(), &Device::host(), CopyOptions::default())?.wait()?;
            assert_eq!(label.to_bytes()?, vec![number as u8; IMAGES * 8]);
        }
        assert!(feed.next_within(Duration::from_secs(60))?.is_none());
        for mut loader in loaders {
            assert!(loader.wait()?.success());
        }
        let (total, count) = (begin.elapsed(), BATCHES as u32);
        println!(
            "{BATCHES} batches of {:.1} MB to {}: {:.2?} in all",
            bytes as f64 / 1e6,
            device.id(),
            total
        );
        let (waited, called, copied) = (waited / count, called / count, copied / count);
        let speed = bytes as f64 / 1e9 / copied.as_secs_f64();
        println!(
            "each: waited {waited:.2?} for loaders; {called:.2?} until its copy had begun, {copied:.2?} until it was there"
        );
        println!("{speed:.1} GB/s, {} bytes of each copied by the host", staged / u64::from(count));
        Ok(())
    }

    fn start_loader(path: &Path) -> Result<Child, Box<dyn Error>> {
        Ok(Command::new(std::env::current_exe()?).arg(path).spawn()?)
    }
}
