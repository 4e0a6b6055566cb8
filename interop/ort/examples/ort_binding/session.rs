//! ONNX Runtime: its library, its sessions.

use std::ffi::OsString;

use ort::environment::Environment;
use ort::ep::ExecutionProviderDispatch;
use ort::session::Session;
use transship::{Device, Stream};

use crate::Result;

/// Loads the library of ONNX Runtime.
pub(crate) fn environment() -> Result<Environment> {
    let path = std::env::var_os("ORT_DYLIB_PATH").unwrap_or_else(|| OsString::from("libonnxruntime.so"));
    let builder = ort::init_from(&path).map_err(|error| {
        format!("{error}; set ORT_DYLIB_PATH to the library of ONNX Runtime (1.23 or newer)")
    })?;
    Ok(builder.build()?)
}

/// A session that works on `stream`.
pub(crate) fn on_stream(environment: &Environment, model: &[u8], stream: &Stream) -> Result<Session> {
    let provider = cuda::on_stream(stream)?;
    commit(environment, model, &[provider])
}

/// A session with streams of ONNX Runtime's own; none on the host.
pub(crate) fn ordinary(environment: &Environment, model: &[u8], device: &Device) -> Result<Session> {
    match device.is_host() {
        true => commit(environment, model, &[]),
        false => commit(environment, model, &[cuda::of(device)?]),
    }
}

fn commit(
    environment: &Environment,
    model: &[u8],
    providers: &[ExecutionProviderDispatch],
) -> Result<Session> {
    let mut builder =
        Session::builder(environment)?.with_execution_providers(providers).map_err(ort::Error::<()>::from)?;
    Ok(builder.commit_from_memory(model)?)
}

#[cfg(feature = "cuda")]
mod cuda {
    use ort::ep::{self, ExecutionProviderDispatch};
    use transship::{Device, Stream};

    use crate::Result;

    pub(super) fn of(device: &Device) -> Result<ExecutionProviderDispatch> {
        // Otherwise ONNX Runtime says nothing and takes the CPU.
        Ok(provider(device)?.build().error_on_failure())
    }

    pub(super) fn on_stream(stream: &Stream) -> Result<ExecutionProviderDispatch> {
        let raw = transship::cuda::cu_stream(stream)?;
        // SAFETY: `Bound` drops the session before the stream.
        let provider = unsafe { provider(stream.device())?.with_compute_stream(raw.cast()) };
        Ok(provider.build().error_on_failure())
    }

    fn provider(device: &Device) -> Result<ep::CUDA> {
        Ok(ep::CUDA::default().with_device_id(i32::try_from(device.id().ordinal())?))
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use ort::ep::ExecutionProviderDispatch;
    use transship::{Device, Stream};

    use crate::Result;

    pub(super) fn of(device: &Device) -> Result<ExecutionProviderDispatch> {
        Err(format!("no provider for {} was compiled in; add --features cuda", device.id()).into())
    }

    pub(super) fn on_stream(stream: &Stream) -> Result<ExecutionProviderDispatch> {
        of(stream.device())
    }
}
