//! The process that starts the others, tells them when, and takes the times.

use std::collections::BTreeMap;
use std::fs::{create_dir_all, remove_dir_all};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Result;
use crate::options::Options;
use crate::processes::{Event, Processes, TRAINER, name};
use crate::table::{Report, Row, Table};

/// All rounds. Fails if a request has seen weights of several versions, or a process has ended that was not killed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = Folder::new()?;
    let processes = Processes::start(options, &folder.0)?;
    let there = (1..=options.inference).collect();
    let mut coordinator = Coordinator { options, processes, there, gone: Vec::new(), last: Duration::ZERO };
    coordinator.meet()?;
    let mut table = Table::new(options);
    for version in 1..=options.rounds {
        let row = coordinator.round(version)?;
        table.add(&row);
        row.check()?;
    }
    let newest = options.rounds.to_string();
    for place in coordinator.there.clone() {
        coordinator.ask(place, &["verify", &newest], "verified")?;
    }
    coordinator.processes.finish(&coordinator.gone)?;
    table.end();
    Ok(())
}

struct Coordinator<'a> {
    options: &'a Options,
    processes: Processes,
    /// The places of inference processes.
    there: Vec<usize>,
    /// The places of those that were killed.
    gone: Vec<usize>,
    /// How long the last round has taken.
    last: Duration,
}

/// What has come of one sending of the weights.
#[derive(Default)]
struct Sending {
    /// The trainer is done.
    is_sent: bool,
    /// By place: when, and how many requests were served meanwhile.
    updated: BTreeMap<usize, (Duration, u64)>,
    /// By place, the reasons that an inference process has, or the trainer.
    missed: BTreeMap<usize, String>,
    failed: BTreeMap<usize, String>,
    killed: Option<Killed>,
}

struct Killed {
    place: usize,
    has_ended: bool,
}

impl Coordinator<'_> {
    /// Each inference process and the trainer.
    fn meet(&mut self) -> Result<()> {
        let hello = self.ask_one(TRAINER, &["hello"], "hello")?;
        for place in self.there.clone() {
            let other = self.ask_one(place, &["hello"], "hello")?;
            // Both wait for each other.
            self.processes.say(place, &["meet", &hello])?;
            self.processes.say(TRAINER, &["meet", &number(place), &other])?;
            self.all_say(&[TRAINER, place], "met")?;
        }
        self.begin()
    }

    fn begin(&mut self) -> Result<()> {
        let processes = (1 + self.there.len()).to_string();
        self.processes.say(TRAINER, &["begin", &processes])?;
        for (rank, place) in self.there.clone().into_iter().enumerate() {
            self.processes.say(place, &["begin", &rank.to_string(), &processes])?;
        }
        self.all_say(&[&[TRAINER], &self.there[..]].concat(), "begun")
    }

    /// A new version goes to all inference processes.
    fn round(&mut self, version: u16) -> Result<Row> {
        let bytes = self.ask_one(TRAINER, &["train", &version.to_string()], "trained")?.parse()?;
        let mut kills = self.options.kill && version == self.options.rounds / 2 + 1;
        let begun = Instant::now();
        let mut sending = self.send(kills)?;
        while !sending.missed.is_empty() {
            // One that misses weights because another one has gone gets them once those that are left have met.
            if sending.killed.is_none() {
                let reasons: Vec<_> = sending.failed.values().chain(sending.missed.values()).collect();
                return Err(format!("weights did not arrive: {reasons:?}").into());
            }
            self.lose(&sending)?;
            kills = false;
            sending = self.send(kills)?;
        }
        let seconds = begun.elapsed();
        if kills {
            self.lose(&sending)?;
        }
        if let Some((place, reason)) = sending.failed.iter().find(|(place, _)| self.there.contains(place)) {
            return Err(format!("the trainer could not reach {}: {reason}", name(*place)).into());
        }
        let seconds = sending.updated.values().map(|(time, _)| *time).max().unwrap_or(seconds);
        self.last = seconds;
        let mut reports = Vec::new();
        for place in self.there.clone() {
            let words = self.ask(place, &["report", &version.to_string()], "report")?;
            let meanwhile = sending.updated.get(&place).map_or(0, |(_, requests)| *requests);
            reports.push(Report::parse(meanwhile, &words)?);
        }
        let one_copy = if self.options.one_copy { Some(self.one_copy(version)?) } else { None };
        Ok(Row { version, seconds, bytes, reports, one_copy })
    }

    /// The time of one copy of as many bytes, with as much time before it as before a round: links between devices go to sleep.
    fn one_copy(&mut self, version: u16) -> Result<Duration> {
        self.ask_one(TRAINER, &["train", &version.to_string()], "trained")?;
        let nanoseconds = self.ask_one(TRAINER, &["copy"], "copied")?.parse()?;
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// One sending, from the word to the trainer until all that are there have the weights, or have not got them.
    fn send(&mut self, kills: bool) -> Result<Sending> {
        let (begun, mut sending) = (Instant::now(), Sending::default());
        for place in self.there.clone() {
            self.processes.say(place, &["update"])?;
        }
        self.processes.say(TRAINER, &["send"])?;
        let mut kills_at = kills.then(|| begun + self.last / 2);
        while kills_at.is_some() || !sending.is_over(&self.there) {
            match self.processes.next(kills_at)? {
                Some(event) => self.take(event, &mut sending, begun.elapsed())?,
                None => {
                    kills_at = None;
                    let place = *self.there.last().ok_or("nobody to kill")?;
                    self.processes.kill(place)?;
                    sending.killed = Some(Killed { place, has_ended: false });
                }
            }
        }
        Ok(sending)
    }

    fn take(&mut self, event: Event, sending: &mut Sending, time: Duration) -> Result<()> {
        let place = event.place;
        let Some(words) = event.words else {
            let killed = sending.killed.as_mut().filter(|killed| killed.place == place);
            killed.ok_or_else(|| self.processes.ended(place))?.has_ended = true;
            return Ok(());
        };
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["updated", requests, _] => {
                sending.updated.insert(place, (time, requests.parse()?));
            }
            ["missed", reason] => {
                sending.missed.insert(place, reason.to_owned());
            }
            ["failed", number, reason] => {
                sending.failed.insert(1 + number.parse::<usize>()?, reason.to_owned());
            }
            ["sent"] => sending.is_sent = true,
            _ => return Err(format!("{} says {words:?} in the middle of a round", name(place)).into()),
        }
        Ok(())
    }

    /// The trainer goes on without the process that was killed.
    fn lose(&mut self, sending: &Sending) -> Result<()> {
        let Some(Killed { place, .. }) = sending.killed else { return Ok(()) };
        self.there.retain(|other| *other != place);
        self.gone.push(place);
        let when = if sending.updated.contains_key(&place) {
            "behind its update"
        } else {
            "in the middle of its update"
        };
        println!("{} {when}", self.processes.ended(place));
        match sending.failed.get(&place) {
            Some(reason) => println!("the trainer says: {reason}"),
            None => println!("the trainer had nothing left to send to it"),
        }
        self.processes.say(TRAINER, &["lost", &number(place)])?;
        let event = self.processes.next(None)?.ok_or("no answer")?;
        match event.words.unwrap_or_default().iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["goes on"] => {}
            ["hello", hello] => {
                for place in self.there.clone() {
                    self.ask(place, &["meet", hello], "met")?;
                }
                self.begin()?;
            }
            _ => return Err("the trainer does not go on".into()),
        }
        println!(
            "the trainer goes on with {}",
            self.there.iter().map(|place| name(*place)).collect::<Vec<_>>().join(", ")
        );
        Ok(())
    }

    /// Tells one process something, and gives the words behind the first one of its answer.
    fn ask(&mut self, place: usize, words: &[&str], first: &str) -> Result<Vec<String>> {
        self.processes.say(place, words)?;
        self.processes.answer(place, first)
    }

    fn ask_one(&mut self, place: usize, words: &[&str], first: &str) -> Result<String> {
        Ok(self.ask(place, words, first)?.into_iter().next().ok_or("an answer without a word")?)
    }

    /// Waits until these have said one word, in any order.
    fn all_say(&mut self, places: &[usize], expected: &str) -> Result<()> {
        let mut left = places.to_vec();
        while !left.is_empty() {
            let Event { place, words } = self.processes.next(None)?.ok_or("no answer")?;
            match words {
                Some(words) if words == [expected] => left.retain(|other| *other != place),
                Some(words) => {
                    return Err(format!("{} says {words:?}, and not {expected}", name(place)).into());
                }
                None => return Err(self.processes.ended(place).into()),
            }
        }
        Ok(())
    }
}

impl Sending {
    fn is_over(&self, places: &[usize]) -> bool {
        let is_killed = |place: usize| self.killed.as_ref().is_some_and(|killed| killed.place == place);
        let has_ended = self.killed.as_ref().is_none_or(|killed| killed.has_ended);
        let is_done = |place: &usize| {
            is_killed(*place) || self.updated.contains_key(place) || self.missed.contains_key(place)
        };
        self.is_sent && has_ended && places.iter().all(is_done)
    }
}

/// The number of the inference process at a place.
fn number(place: usize) -> String {
    (place - 1).to_string()
}

/// A folder for sockets, which goes at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("transship-weight-sync-{}", std::process::id()));
        create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = remove_dir_all(&self.0);
    }
}
