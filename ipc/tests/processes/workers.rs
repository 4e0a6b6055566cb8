//! Loader processes, started again when they have died.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::child::{Dies, environment};

pub(crate) struct Workers {
    path: PathBuf,
    poison: Option<u64>,
    told: Vec<(&'static str, String)>,
    children: Vec<Child>,
}

impl Workers {
    /// One process for each, some of which die.
    pub(crate) fn start(path: &Path, dies: &[Option<Dies>], poison: Option<u64>) -> Self {
        Self::start_told(path, dies, poison, Vec::new())
    }

    /// The same with what they are told beside that.
    pub(crate) fn start_told(
        path: &Path,
        dies: &[Option<Dies>],
        poison: Option<u64>,
        told: Vec<(&'static str, String)>,
    ) -> Self {
        let mut workers = Self { path: path.to_owned(), poison, told, children: Vec::new() };
        workers.children = dies.iter().map(|dies| workers.spawn(*dies)).collect();
        workers
    }

    /// New ones, which do not die, in the place of those that have ended. Says how many had.
    pub(crate) fn renew(&mut self) -> usize {
        self.renew_as(None)
    }

    /// The same with new ones that die in this way.
    pub(crate) fn renew_as(&mut self, dies: Option<Dies>) -> usize {
        let mut ended = 0;
        for index in 0..self.children.len() {
            if self.children[index].try_wait().unwrap().is_some() {
                self.children[index] = self.spawn(dies);
                ended += 1;
            }
        }
        ended
    }

    pub(crate) fn kill(&mut self, index: usize) {
        self.children[index].kill().unwrap();
    }

    /// Waits until this one has ended, however that was.
    pub(crate) fn wait_for(&mut self, index: usize) {
        self.children[index].wait().unwrap();
    }

    /// Waits until all have ended by themselves.
    pub(crate) fn join(mut self) {
        for mut child in self.children.drain(..) {
            assert!(child.wait().unwrap().success());
        }
    }

    fn spawn(&self, dies: Option<Dies>) -> Child {
        let told = environment(self.path.to_str().unwrap(), dies, self.poison);
        Command::new(env::current_exe().unwrap())
            .envs(told)
            .envs(self.told.clone())
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
