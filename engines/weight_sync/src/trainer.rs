//! The process that trains: it has the weights, changes them, and sends them.

use std::io::{stdin, stdout};

use transship::Device;

use crate::Result;
use crate::lines::{from_hex, hear, say, to_hex};
use crate::one_copy::OneCopy;
use crate::options::Options;
use crate::ways::{Sender, sender};
use crate::weights::Weights;

/// Does what it is told until nobody is left to tell it anything.
pub(crate) fn run(options: &Options) -> Result<()> {
    let device = options.device_of_trainer()?;
    let mut sender = sender(options)?;
    let mut model = Model::new(options, &device)?;
    let mut one_copy = None;
    let (mut from, mut to) = (stdin().lock(), stdout());
    while let Some(words) = hear(&mut from)? {
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["hello"] => say(&mut to, &["hello", &to_hex(&sender.hello()?)])?,
            ["meet", number, hello] => {
                sender.meet(number.parse()?, &from_hex(hello)?)?;
                say(&mut to, &["met"])?;
            }
            ["begin", processes] => {
                sender.begin(processes.parse()?)?;
                say(&mut to, &["begun"])?;
            }
            ["train", version] => {
                model.train(version.parse()?)?;
                say(&mut to, &["trained", &model.current().nbytes().to_string()])?;
            }
            ["send"] => {
                for (number, reason) in sender.send(model.current()) {
                    say(&mut to, &["failed", &number.to_string(), &reason])?;
                }
                say(&mut to, &["sent"])?;
            }
            ["copy"] => {
                let of_copy = match &mut one_copy {
                    Some(of_copy) => of_copy,
                    None => one_copy.insert(OneCopy::new(options, model.current().nbytes())?),
                };
                say(&mut to, &["copied", &of_copy.time()?.as_nanos().to_string()])?;
            }
            ["lost", number] => lose(&mut *sender, number.parse()?)?,
            _ => return Err(format!("the trainer does not understand {words:?}").into()),
        }
    }
    Ok(())
}

fn lose(sender: &mut dyn Sender, number: usize) -> Result<()> {
    match sender.lose(number)? {
        Some(hello) => say(&mut stdout(), &["hello", &to_hex(&hello)]),
        None => say(&mut stdout(), &["goes on"]),
    }
}

/// Weights on the host, where they are changed, and on the device of the trainer.
struct Model {
    host: Weights,
    device: Option<Weights>,
    /// The last version has a parameter of the one before.
    mixed: Option<u16>,
}

impl Model {
    fn new(options: &Options, device: &Device) -> Result<Self> {
        let on_device = if device.is_host() { None } else { Some(Weights::zeros(options, device)?) };
        let mixed = options.mix.then_some(options.rounds);
        Ok(Self { host: Weights::trained(options)?, device: on_device, mixed })
    }

    fn train(&mut self, version: u16) -> Result<()> {
        self.host.mark(version)?;
        if self.mixed == Some(version) {
            self.host.mark_one(version - 1)?;
        }
        if let Some(device) = &mut self.device {
            self.host.clone().copy_into(device)?;
        }
        Ok(())
    }

    fn current(&self) -> &Weights {
        self.device.as_ref().unwrap_or(&self.host)
    }
}
