//! What a tensor that goes out must come behind.

use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::in_flight::stream_uses::StreamUses;
use crate::tensor::tensor::Tensor;

/// Makes `consumer` wait, on the device, for whatever fills or uses the tensor, and records it as a use. Without one, or on the host, fails
/// unless all of that is done.
pub(crate) fn order(tensor: &mut Tensor, consumer: Option<&Stream>) -> Result<()> {
    let storage = tensor.storage_mut()?;
    drop(storage.take_over_uses());
    let is_unused = storage.is_unused();
    match consumer.filter(|_| storage.device().is_some()) {
        Some(consumer) => {
            tensor.wait_on_uses(consumer)?;
            tensor.record_stream(consumer)
        }
        None => {
            storage.check_ready()?;
            let mut uses = StreamUses::new();
            storage.add_uses(&mut uses);
            for (stream, position) in uses.iter().filter(|_| !is_unused) {
                let position = position.map_or_else(|| stream.record(), Ok)?;
                if stream.reached()? < position {
                    return Err(Error::NotReady);
                }
            }
            Ok(())
        }
    }
}
