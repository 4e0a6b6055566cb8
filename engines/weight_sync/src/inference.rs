//! A process that serves requests, with the newest weights that it has.

use std::io::{stdin, stdout};
use std::sync::Arc;
use std::time::Instant;

use crate::Result;
use crate::lines::{from_hex, hear, say, to_hex};
use crate::options::Options;
use crate::served::Served;
use crate::serving::{Seen, Serving};
use crate::ways::{Receiver, receiver};
use crate::weights::Weights;

/// Serves, and takes new weights when it is told to, until nobody is left to tell it anything.
pub(crate) fn run(options: &Options, number: usize) -> Result<()> {
    let device = options.device_of_inference(number)?;
    let mut receiver = receiver(options, number)?;
    let sets = if options.in_place { 1 } else { 2 };
    let sets = (0..sets).map(|_| Weights::zeros(options, &device)).collect::<Result<Vec<_>>>()?;
    let served = Arc::new(Served::new(sets));
    let serving = Serving::start(Arc::clone(&served), options.pause)?;
    let (mut from, mut to) = (stdin().lock(), stdout());
    while let Some(words) = hear(&mut from)? {
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["hello"] => say(&mut to, &["hello", &to_hex(&receiver.hello()?)])?,
            ["meet", hello] => {
                receiver.meet(&from_hex(hello)?)?;
                say(&mut to, &["met"])?;
            }
            ["begin", number, processes] => {
                receiver.begin(number.parse()?, processes.parse()?)?;
                say(&mut to, &["begun"])?;
            }
            ["update"] => update(&mut *receiver, &served, &serving)?,
            ["report", version] => report(&serving.report(version.parse()?, options.limit)?)?,
            ["verify", version] => {
                served.read()?.verify(version.parse()?)?;
                say(&mut to, &["verified"])?;
            }
            _ => return Err(format!("an inference process does not understand {words:?}").into()),
        }
    }
    Ok(())
}

/// Gets the next weights into the set that is not in use.
fn update(receiver: &mut dyn Receiver, served: &Served, serving: &Serving) -> Result<()> {
    let (before, begun) = (serving.requests(), Instant::now());
    let updated = receiver.arrive().and_then(|()| served.update(|held| receiver.receive(held)));
    let meanwhile = (serving.requests() - before).to_string();
    match updated {
        Ok(()) => {
            say(&mut stdout(), &["updated", &meanwhile, &begun.elapsed().as_micros().to_string()])?;
            served.retire(|held| receiver.retire(held));
            Ok(())
        }
        Err(error) => say(&mut stdout(), &["missed", &error.to_string()]),
    }
}

fn report(seen: &Seen) -> Result<()> {
    let versions: Vec<String> = seen.versions.iter().map(u16::to_string).collect();
    let (requests, mixtures) = (seen.requests.to_string(), seen.mixtures.to_string());
    say(
        &mut stdout(),
        &["report", &requests, &mixtures, &seen.longest.as_micros().to_string(), &versions.join(" ")],
    )
}
