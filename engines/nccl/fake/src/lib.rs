//! A stand-in for libnccl whose ranks are threads of one process. It really combines, in memory of whatever libcuda there is.
//!
//! Ranks that one thread calls for do what they are called for in the order of their streams, as late as the driver's stand-in likes. Each
//! rank on its own has a thread for it, which waits for the stream, and is waited for by who asks.
//!
//! What a real one would hang or overflow on is an error here: ranks that call different things (`ncclInvalidUsage`). A rank that aborts is
//! seen by all others, as one whose process ends (`ncclRemoteError`).

mod combine;
mod cuda;
mod exports;
mod world;
