//! Hands trees of tensors to another process, on a GPU without a copy by the host: `cargo run --release --features cuda,ipc --example hand_over`.
//!
//! The program starts itself as the process that gets them, and says how long that takes: from the call of `export` until the other process has its tensors. An argument
//! is the device, such as `cuda:0`; without one it is the best there is, or the host.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("processes share memory on Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => processes::export(&transship::Device::best()?),
        [device] => processes::export(&transship::Device::open(device.parse()?)?),
        [device, path, ..] => processes::import(&transship::Device::open(device.parse()?)?, path.as_ref()),
    }
}

#[cfg(target_os = "linux")]
mod processes {
    use std::error::Error;
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use transship::ipc::{Exporter, Importer};
    use transship::prelude::*;

    const TREES: u8 = 30;
    const TENSORS: usize = 528;
    const BYTES: usize = 290;
    const LIMIT: Duration = Duration::from_secs(30);

    type Tree = Vec<Tensor>;

    fn tree(number: u8) -> Tree {
        (0..TENSORS).map(|_| Tensor::from(vec![number; BYTES])).collect()
    }

    pub(super) fn export(device: &Device) -> Result<(), Box<dyn Error>> {
        let folder = std::env::temp_dir().join(format!("transship-hand-over-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("trees");
        let exporter = Exporter::bind(&path)?;
        let mut importer = Command::new(std::env::current_exe()?)
            .arg(device.id().to_string())
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(importer.stdout.take().ok_or("no output")?).lines();
        let mut connection = exporter.accept_within(LIMIT)?;
        for number in 0..TREES {
            let there = start_copy(tree(number), device, CopyOptions::default())?.wait()?;
            let begin = now()?;
            let offer = connection.export(&there)?;
            let exported = now()?;
            let usable: Duration =
                Duration::from_nanos(said.next().ok_or("the importer has gone")??.parse()?);
            offer.wait_released(LIMIT)?;
            let released = now()?;
            println!(
                "tree {number}: exported after {:.0} us, its tensors usable after {:.0}, released after {:.0}",
                micros(exported, begin),
                micros(usable, begin),
                micros(released, begin),
            );
        }
        drop(connection);
        let is_right = importer.wait()?.success();
        std::fs::remove_dir_all(folder)?;
        if is_right { Ok(()) } else { Err("the importer has failed".into()) }
    }

    pub(super) fn import(device: &Device, path: &Path) -> Result<(), Box<dyn Error>> {
        let mut importer = Importer::connect(path, device)?;
        let like = tree(0);
        for number in 0..TREES {
            let mut tensors = like.clone();
            if !importer.put_next_within(&mut tensors, LIMIT)? {
                return Err("the exporter has gone".into());
            }
            println!("{}", now()?.as_nanos());
            let back = start_copy(tensors, &Device::host(), CopyOptions::default())?.wait()?;
            for tensor in back {
                assert_eq!(tensor.as_slice::<u8>()?, [number; BYTES]);
            }
        }
        Ok(())
    }

    /// The same clock in both processes.
    fn now() -> Result<Duration, Box<dyn Error>> {
        Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
    }

    fn micros(end: Duration, begin: Duration) -> f64 {
        (end.as_secs_f64() - begin.as_secs_f64()) * 1e6
    }
}
