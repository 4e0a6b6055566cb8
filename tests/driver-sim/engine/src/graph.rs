//! Modules with kernels, and graphs that were captured.

use crate::failure::Failure;
use crate::kernels;
use crate::sim::{Kind, Sim};
use crate::stream::Work;

/// A module, loaded.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: u64,
    pub(crate) call: &'static str,
}

/// Work that was captured, or is ready to be launched.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) context: u64,
    work: Vec<(Work, &'static str)>,
    /// Objects of the program, as often as it holds them.
    pub(crate) held: Vec<u64>,
    pub(crate) call: &'static str,
}

impl Sim {
    /// Loads a module, whatever is in it: kernels are found by their names.
    pub fn load_module(&mut self) -> Result<u64, Failure> {
        let context = self.usable_context()?;
        let (number, call) = (self.new_handle(Kind::Module), self.call);
        self.modules.insert(number, Module { context, call });
        Ok(number)
    }

    /// Unloads a module.
    pub fn unload_module(&mut self, module: u64) -> Result<(), Failure> {
        self.usable_context()?;
        match self.modules.remove(&module) {
            Some(_) => Ok(()),
            None => Err(self.missing(Kind::Module, module)),
        }
    }

    /// The kernel of this name.
    pub fn find_kernel(&mut self, module: u64, name: &str) -> Result<u64, Failure> {
        self.usable_context()?;
        if !self.modules.contains_key(&module) {
            return Err(self.missing(Kind::Module, module));
        }
        kernels::find(name).map(|index| index as u64).ok_or(Failure::NotFound)
    }

    /// A graph that can be launched.
    pub fn instantiate_graph(&mut self, graph: u64) -> Result<u64, Failure> {
        let context = self.usable_context()?;
        let (work, held) = (self.graph(graph)?.work.clone(), self.graph(graph)?.held.clone());
        self.hold_more(&held);
        let number = self.new_handle(Kind::Graph);
        self.add_graph(number, context, work, held);
        Ok(number)
    }

    /// Submits the work of a graph.
    pub fn launch_graph(&mut self, graph: u64, stream: u64) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        let held = self.graph(graph)?.held.clone();
        for (work, _) in self.graph(graph)?.work.clone() {
            self.submit(stream, work, Vec::new())?;
        }
        // A launch holds what the graph does until it is done; in a capture, the graph of that does.
        self.hold_more(&held);
        match self.stream(stream)?.capture.as_mut() {
            Some(capture) => capture.held.extend(held),
            None if held.is_empty() => {}
            None => drop(self.submit(stream, Work::LetGo { objects: held }, Vec::new())?),
        }
        Ok(())
    }

    /// Destroys a graph.
    pub fn destroy_graph(&mut self, graph: u64) -> Result<(), Failure> {
        self.graph(graph)?;
        let held = self.graphs.remove(&graph).map(|graph| graph.held);
        held.into_iter().flatten().for_each(|object| self.let_go(object));
        Ok(())
    }

    pub(crate) fn add_graph(
        &mut self,
        number: u64,
        context: u64,
        work: Vec<(Work, &'static str)>,
        held: Vec<u64>,
    ) {
        let call = self.call;
        self.graphs.insert(number, Graph { context, work, held, call });
    }

    pub(crate) fn graph(&mut self, graph: u64) -> Result<&mut Graph, Failure> {
        self.check_initialised()?;
        if !self.graphs.contains_key(&graph) {
            return Err(self.missing(Kind::Graph, graph));
        }
        self.graphs.get_mut(&graph).ok_or(Failure::InvalidHandle)
    }
}
