//! Over memory that both processes have, of the host or of a GPU.

use std::path::PathBuf;
use std::time::Duration;

use transship::Device;
use transship::ipc::{Connection, Exporter, Imported, Importer};

use crate::Result;
use crate::options::Options;
use crate::weights::Weights;

pub(crate) struct Sender {
    exporter: Exporter,
    connections: Vec<(usize, Connection)>,
    limit: Duration,
}

impl Sender {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let exporter = Exporter::bind(socket(options))?;
        Ok(Self { exporter, connections: Vec::new(), limit: options.limit })
    }
}

impl super::Sender for Sender {
    fn hello(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn meet(&mut self, number: usize, _: &[u8]) -> Result<()> {
        self.connections.push((number, self.exporter.accept_within(self.limit)?));
        Ok(())
    }

    fn begin(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, weights: &Weights) -> Vec<(usize, String)> {
        let limit = self.limit;
        let offers: Vec<_> = self
            .connections
            .iter_mut()
            .map(|(number, connection)| (*number, connection.export(weights)))
            .collect();
        // An offer to a process that has gone is given back as well: that is no failure of the trainer's.
        let ends = offers
            .into_iter()
            .map(|(number, offer)| (number, offer.and_then(|offer| offer.wait_released(limit))));
        ends.filter_map(|(number, end)| Some((number, end.err()?.to_string()))).collect()
    }

    fn lose(&mut self, number: usize) -> Result<Option<Vec<u8>>> {
        self.connections.retain(|(other, _)| *other != number);
        Ok(None)
    }
}

pub(crate) struct Receiver {
    path: PathBuf,
    /// Where weights come to.
    device: Device,
    importer: Option<Importer>,
    arrived: Option<Imported>,
    limit: Duration,
}

impl Receiver {
    pub(crate) fn new(options: &Options, number: usize) -> Result<Self> {
        let of_trainer = options.device_of_trainer()?;
        // What lies on the host is page-locked for the GPU that it goes to.
        let device = if of_trainer.is_host() { options.device_of_inference(number)? } else { of_trainer };
        Ok(Self { path: socket(options), device, importer: None, arrived: None, limit: options.limit })
    }
}

impl super::Receiver for Receiver {
    fn hello(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn meet(&mut self, _: &[u8]) -> Result<()> {
        self.importer = Some(Importer::connect(&self.path, &self.device)?);
        Ok(())
    }

    fn begin(&mut self, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn arrive(&mut self) -> Result<()> {
        let importer = self.importer.as_mut().ok_or("the trainer was not met")?;
        self.arrived = Some(importer.next_within(self.limit)?.ok_or("the trainer has ended")?);
        Ok(())
    }

    fn receive(&mut self, held: &mut Weights) -> Result<()> {
        let mut there = held.clone(); // what they look like
        self.arrived.take().ok_or("nothing has arrived")?.put_into(&mut there)?;
        Ok(there.copy_into(held)?)
    }
}

fn socket(options: &Options) -> PathBuf {
    options.folder.join("weights")
}
