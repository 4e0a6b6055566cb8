//! Streams of cudarc, and contexts that are not the primary one.

use transship_core::Error;
use transship_cuda::{cu_stream, stream_from_cudarc, stream_from_raw};

use super::streams;
use crate::bed;
use crate::driver::{OtherContext, RawStream, cudarc_context};
use crate::suite::Outcome;

pub(crate) fn copies_run_on_the_streams_of_cudarc() -> Outcome {
    let device = bed::warm_device(0);
    let context = cudarc_context(&device);
    for stream in [context.new_stream()?, context.default_stream()] {
        let adopted = stream_from_cudarc(&device, &stream)?;
        assert_eq!(cu_stream(&adopted)?, stream.cu_stream());
        streams::there_and_back(&device, &adopted)?;
        // What the tensors of a copy hold on to goes with them.
        stream.synchronize()?;
    }
    Ok(())
}

/// Whoever drops a tensor would record its use on a stream of his own.
pub(crate) fn the_default_stream_of_each_thread_is_refused() -> Outcome {
    let device = bed::device(0);
    let stream = cudarc_context(&device).per_thread_stream();
    let refused = stream_from_cudarc(&device, &stream);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    Ok(())
}

pub(crate) fn a_stream_of_another_context_is_refused() -> Outcome {
    let device = bed::device(0);
    let other = OtherContext::create();
    let raw = RawStream::create(other.0);
    // SAFETY: the stream outlives the call, which refuses it.
    let refused = unsafe { stream_from_raw(&device, raw.handle) };
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    Ok(())
}
