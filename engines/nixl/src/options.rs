//! What an agent is made with.

/// What an [`Agent`](crate::Agent) is made with.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    pub(crate) backend: String,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) arena_bytes: usize,
}

impl Default for AgentOptions {
    /// UCX with its own parameters, and 256 MiB.
    fn default() -> Self {
        Self { backend: "UCX".to_owned(), parameters: Vec::new(), arena_bytes: 256 << 20 }
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
}
