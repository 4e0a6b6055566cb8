//! What an agent is made with.

use transship::Device;

/// What an [`Agent`](crate::Agent) is made with.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    pub(crate) backend: String,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) arena_bytes: usize,
    pub(crate) arena_device: Device,
}

impl Default for AgentOptions {
    /// UCX with its own parameters, and 256 MiB of the host's memory.
    fn default() -> Self {
        Self {
            backend: "UCX".to_owned(),
            parameters: Vec::new(),
            arena_bytes: 256 << 20,
            arena_device: Device::host(),
        }
    }
}

impl AgentOptions {
    /// The plugin of the library that moves bytes: `UCX`, `LIBFABRIC`.
    #[must_use]
    pub fn backend(mut self, name: impl Into<String>) -> Self {
        self.backend = name.into();
        self
    }

    /// A parameter of that plugin, such as `engine_config` with `TLS=tcp` for UCX. Its own documentation lists them.
    #[must_use]
    pub fn parameter(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.parameters.push((key.into(), value.into()));
        self
    }

    /// How many bytes of memory are registered, once: all trees that are sent or received at a time lie in there. They are touched, and locked by what needs that,
    /// when they are used or registered.
    #[must_use]
    pub fn arena_bytes(mut self, bytes: usize) -> Self {
        self.arena_bytes = bytes;
        self
    }

    /// Where that memory is: on the host, or on a GPU of CUDA with the feature `cuda`. There trees are packed by kernels of that GPU, NIXL writes from GPU to GPU,
    /// and they are unpacked by kernels of the other one: the memory of the host is not used. It is one allocation of the driver's, and none of its pool. Peers may have theirs
    /// elsewhere. NIXL has to reach memory of GPUs: the parameters of UCX name `cuda` among the transports, if they name any. Whatever is dropped last, the agent or a tensor over a tree that has arrived, frees the memory by
    /// `cuMemFree`, which may wait for all work of the GPU.
    #[must_use]
    pub fn arena_on(mut self, device: &Device) -> Self {
        self.arena_device = device.clone();
        self
    }
}
