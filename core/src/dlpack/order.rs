//! What a tensor that goes out must come behind.

use std::sync::Arc;

use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::in_flight::stream_uses::StreamUses;
use crate::runtime::fork;
use crate::tensor::tensor::Tensor;

/// Makes `consumer` wait, on the device, for whatever fills or uses the tensor, and records it as a use. Without one, or on the host, fails
/// unless all of that is done.
pub(crate) fn order(tensor: &mut Tensor, consumer: Option<&Stream>) -> Result<()> {
    let storage = tensor.storage_mut()?;
    drop(storage.take_over_uses());
    let is_unused = storage.is_unused();
    let mut uses = StreamUses::new();
    storage.add_uses(&mut uses);
    match consumer.filter(|_| storage.device().is_some()) {
        Some(consumer) => {
            fork::check()?;
            let own = consumer.backend_stream();
            for (stream, position) in uses.iter().filter(|(stream, _)| !Arc::ptr_eq(stream, own)) {
                let position = position.map_or_else(|| stream.record(), Ok)?;
                if stream.reached()? < position {
                    own.wait_for(&**stream, position)?;
                }
            }
            tensor.record_stream(consumer)
        }
        None => {
            storage.check_ready()?;
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
