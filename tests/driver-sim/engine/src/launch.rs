//! Launching kernels.

use crate::entries::{Cast, Entry, Scatter, Strided};
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
                    Argument::Strided(Box::new(entry(read::<{ size_of::<Strided>() }>(&argument, index))))
                }
                Parameter::Scatter => {
                    Argument::Scatter(Box::new(entry(read::<{ size_of::<Scatter>() }>(&argument, index))))
                }
                Parameter::Cast => {
                    Argument::Cast(Box::new(entry(read::<{ size_of::<Cast>() }>(&argument, index))))
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

/// The entry that these bytes are.
fn entry<E: Entry, const BYTES: usize>(bytes: [u8; BYTES]) -> E {
    const { assert!(BYTES == size_of::<E>()) };
    // SAFETY: there are as many bytes as an entry has, and any bytes are one (`Entry`).
    unsafe { bytes.as_ptr().cast::<E>().read_unaligned() }
}

fn read<const BYTES: usize>(argument: &impl Fn(usize, &mut [u8]), index: usize) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    argument(index, &mut bytes);
    bytes
}
