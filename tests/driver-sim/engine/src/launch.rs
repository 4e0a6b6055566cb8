//! Launching kernels.

use crate::entries::Strided;
use crate::failure::Failure;
use crate::kernels::{self, Argument, Grid, Launch, Parameter, Touch};
use crate::memory::Side;
use crate::sim::Sim;
use crate::stream::Work;

impl Sim {
    /// Launches a kernel. `argument` writes the argument of this number to a slice of its size.
    pub fn launch_kernel(
        &mut self,
        function: u64,
        grid: Grid,
        stream: u64,
        argument: impl Fn(usize, &mut [u8]),
    ) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        let kernel = kernels::kernel(function as usize).ok_or(Failure::InvalidHandle)?;
        let context = self.usable_context()?;
        let mut arguments = Vec::new();
        for (index, parameter) in kernel.parameters.iter().enumerate() {
            arguments.push(match parameter {
                Parameter::Word => Argument::Word(u32::from_ne_bytes(read(&argument, index))),
                // How much it touches is known when it runs.
                Parameter::Pointer => {
                    let address = u64::from_ne_bytes(read(&argument, index));
                    Argument::Pointer(self.mapped_side(address, 1, context)?)
                }
                Parameter::Strided => {
                    let bytes = read::<{ size_of::<Strided>() }>(&argument, index);
                    // SAFETY: any bytes are an entry (`Entry`).
                    Argument::Strided(Box::new(unsafe { bytes.as_ptr().cast::<Strided>().read_unaligned() }))
                }
            });
        }
        let mut launch = Launch { kernel, arguments, grid, touches: Vec::new(), sides: Vec::new() };
        self.look_up_touches(&mut launch, context)?;
        self.submit(stream, Work::Kernel(launch), Vec::new()).map(drop)
    }

    /// Notes which allocations the kernel is to touch, as they are now.
    fn look_up_touches(&mut self, launch: &mut Launch, context: u64) -> Result<(), Failure> {
        launch.touches = launch.look_up(&self.memory).map_err(|wrong| {
            self.violation(wrong);
            Failure::InvalidValue
        })?;
        for Touch { address, bytes } in &launch.touches {
            launch.sides.push(self.mapped_side(*address, *bytes, context)?);
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

fn read<const BYTES: usize>(argument: &impl Fn(usize, &mut [u8]), index: usize) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    argument(index, &mut bytes);
    bytes
}
