//! What a simulated device says of itself and of its memory.

use transship_core::Result;
use transship_core::backend::{DeviceMemory, DeviceProperties, DeviceUuid, PciAddress};

use crate::calls::Call;
use crate::instance::{Instance, State};

/// The most that was in use, and held, since a reset.
#[derive(Default, Clone, Copy)]
pub(crate) struct Most {
    used: u64,
    reserved: u64,
}

impl Instance {
    /// What is known of a device, opened or not.
    pub(crate) fn properties(&self, device: usize) -> DeviceProperties {
        let mut properties = DeviceProperties::new("simulated device that copies as late as it may");
        let mut uuid = [0xfe; 16];
        uuid[15] = device as u8;
        properties.uuid = Some(DeviceUuid(uuid));
        // No machine has so many buses.
        properties.pci = Some(PciAddress { domain: u32::MAX, bus: device as u8, device: 0, function: 0 });
        properties.host_node = self.config.host_nodes.get(device).copied();
        properties.total_memory = Some(self.config.device_memory as u64);
        properties
    }

    /// What a device has, and what of it is held and used.
    pub(crate) fn memory(&self, device: usize) -> Result<DeviceMemory> {
        self.collect();
        let state = self.enter(Call::Memory, false, device)?;
        let total = self.config.device_memory as u64;
        let (now, most) = (state.held(device), state.most[device]);
        let mut memory = DeviceMemory::default();
        memory.total = Some(total);
        memory.free = Some(total.saturating_sub(now.reserved));
        memory.reserved = Some(now.reserved);
        memory.used = Some(now.used);
        memory.peak_reserved = Some(most.reserved.max(now.reserved));
        memory.peak_used = Some(most.used.max(now.used));
        Ok(memory)
    }

    /// The peaks begin anew.
    pub(crate) fn reset_peaks(&self, device: usize) -> Result<()> {
        self.enter(Call::Memory, false, device)?.most[device] = Most::default();
        Ok(())
    }
}

impl State {
    /// A device holds more than before.
    pub(crate) fn note_most(&mut self, device: usize) {
        let (now, most) = (self.held(device), &mut self.most[device]);
        most.used = most.used.max(now.used);
        most.reserved = most.reserved.max(now.reserved);
    }

    fn held(&self, device: usize) -> Most {
        let reserved = self.counters[device].device_bytes;
        Most { used: reserved - self.hoards[device] as u64, reserved }
    }
}
