//! Into memory of the inference processes, which the trainer writes.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use transship::ipc::{Connection, Exporter, Importer, Window};
use transship::{Device, Error};

use crate::Result;
use crate::options::Options;
use crate::weights::Weights;

pub(crate) struct Sender {
    options: Options,
    importers: Vec<(usize, Importer)>,
}

impl Sender {
    pub(crate) fn new(options: &Options) -> Self {
        Self { options: options.clone(), importers: Vec::new() }
    }
}

impl super::Sender for Sender {
    fn hello(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn meet(&mut self, number: usize, _: &[u8]) -> Result<()> {
        let device = self.options.device_of_inference(number)?;
        self.importers.push((number, Importer::connect(socket(&self.options, number), &device)?));
        Ok(())
    }

    fn begin(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    /// To all of them at once.
    fn send(&mut self, weights: &Weights) -> Vec<(usize, String)> {
        let limit = self.options.limit;
        if let [(number, importer)] = &mut self.importers[..] {
            let written = write(importer, weights, limit);
            return written.err().map(|error| (*number, error.to_string())).into_iter().collect();
        }
        thread::scope(|scope| {
            let importers = self.importers.iter_mut();
            let sending: Vec<_> = importers
                .map(|(number, importer)| (*number, scope.spawn(move || write(importer, weights, limit))))
                .collect();
            let ended = sending.into_iter().map(|(number, thread)| (number, thread.join()));
            let reason = |end: thread::Result<Result<()>>| match end {
                Ok(written) => written.err().map(|error| error.to_string()),
                Err(_) => Some("its thread has panicked".to_owned()),
            };
            ended.filter_map(|(number, end)| Some((number, reason(end)?))).collect()
        })
    }

    fn lose(&mut self, number: usize) -> Result<Option<Vec<u8>>> {
        self.importers.retain(|(other, _)| *other != number);
        Ok(None)
    }
}

fn write(importer: &mut Importer, weights: &Weights, limit: Duration) -> Result<()> {
    let mut turn = importer.next_turn_within(limit)?.ok_or("the process takes no weights any more")?;
    turn.put(weights)?;
    Ok(turn.finish()?)
}

pub(crate) struct Receiver {
    exporter: Exporter,
    /// Where weights come to.
    device: Device,
    /// What they look like.
    like: Weights,
    sets: usize,
    connection: Option<Connection>,
    /// One for each set. The trainer writes them in turn.
    windows: Vec<Window>,
    is_on_host: bool,
    updates: usize,
    limit: Duration,
}

impl Receiver {
    pub(crate) fn new(options: &Options, number: usize) -> Result<Self> {
        Ok(Self {
            exporter: Exporter::bind(socket(options, number))?,
            device: options.device_of_inference(number)?,
            like: Weights::zeros(options, &Device::host())?,
            sets: if options.in_place { 1 } else { 2 },
            connection: None,
            windows: Vec::new(),
            is_on_host: false,
            updates: 0,
            limit: options.limit,
        })
    }

    /// On the device, if that shares memory with other processes.
    fn open(&mut self, connection: &mut Connection) -> Result<Window> {
        if !self.is_on_host {
            match connection.open_window(&self.like, &self.device) {
                Err(transship::ipc::IpcError::Tensors(Error::Unsupported { .. })) => self.is_on_host = true,
                opened => return Ok(opened?),
            }
        }
        Ok(connection.open_window(&self.like, &Device::host())?)
    }
}

impl super::Receiver for Receiver {
    fn hello(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn meet(&mut self, _: &[u8]) -> Result<()> {
        if self.connection.is_none() {
            let mut connection = self.exporter.accept_within(self.limit)?;
            for _ in 0..self.sets {
                let window = self.open(&mut connection)?;
                self.windows.push(window);
            }
            self.connection = Some(connection);
        }
        Ok(())
    }

    fn begin(&mut self, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn receive(&mut self, held: &mut Weights) -> Result<()> {
        let window = self.windows.get(self.updates % self.sets).ok_or("the trainer was not met")?;
        self.updates += 1;
        let mut there = self.like.clone();
        if self.is_on_host {
            window.put_written_within(&mut there, self.limit)?;
            return Ok(there.copy_into(held)?);
        }
        // What lies in the window from the time before goes, or it would not be written. With two sets it has gone already.
        *held = Weights::default();
        window.put_written_within(&mut there, self.limit)?;
        *held = there;
        Ok(())
    }

    /// The window of the version before is the trainer's, long before that comes with the next one.
    fn retire(&mut self, held: &mut Weights) {
        if !self.is_on_host {
            *held = Weights::default();
        }
    }
}

fn socket(options: &Options, number: usize) -> PathBuf {
    options.folder.join(format!("windows-{number}"))
}
