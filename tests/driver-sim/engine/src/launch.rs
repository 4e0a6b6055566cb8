//! Launching kernels.

use crate::failure::Failure;
use crate::kernels::{self, Argument, Entry, Grid, Launch, Parameter};
use crate::memory::Side;
use crate::sim::Sim;
use crate::stream::Work;

impl Sim {
    /// Launches a kernel. `argument` reads the argument of this number and of this size in bytes.
    pub fn launch_kernel(
        &mut self,
        function: u64,
        grid: Grid,
        stream: u64,
        argument: impl Fn(usize, usize) -> u64,
    ) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        let kernel = kernels::kernel(function as usize).ok_or(Failure::InvalidHandle)?;
        let context = self.usable_context()?;
        let mut arguments = Vec::new();
        for (index, parameter) in kernel.parameters.iter().enumerate() {
            arguments.push(match parameter {
                Parameter::Word => Argument::Word(argument(index, size_of::<u32>()) as u32),
                // How much it touches is known when it runs.
                Parameter::Pointer => {
                    Argument::Pointer(self.mapped_side(argument(index, size_of::<u64>()), 1, context)?)
                }
            });
        }
        let mut launch = Launch { kernel, arguments, grid, copies: Vec::new(), sides: Vec::new() };
        self.look_up_copies(&mut launch, context)?;
        self.submit(stream, Work::Kernel(launch), Vec::new()).map(drop)
    }

    /// Notes which allocations the kernel is to copy, as they are now.
    fn look_up_copies(&mut self, launch: &mut Launch, context: u64) -> Result<(), Failure> {
        launch.copies = launch.read_copies(&self.memory).map_err(|wrong| {
            self.violation(wrong);
            Failure::InvalidValue
        })?;
        for Entry { from, to, bytes } in &launch.copies {
            let bytes = *bytes as usize;
            let sides = (self.mapped_side(*from, bytes, context)?, self.mapped_side(*to, bytes, context)?);
            launch.sides.push(sides);
        }
        Ok(())
    }

    /// Memory that a kernel can touch: that of a device, or page-locked.
    fn mapped_side(&mut self, address: u64, bytes: usize, context: u64) -> Result<Side, Failure> {
        let found = self.memory.find(address).and_then(|(number, _)| self.memory.block(number));
        match found.is_some_and(|block| block.is_pinned()) {
            true => self.host_side(address, bytes, context),
            false => self.device_side(address, bytes, context),
        }
    }
}
