//! A stand-in for NIXL's C interface: agents of one process, on memory of the host and, with a driver of CUDA, of its devices.
//!
//! It is as strict as it can be about memory of devices: it takes whole allocations of no pool, on threads where the device is current; moves half of a
//! piece when that is posted and the other half when its end is asked for; and orders nothing behind streams.

mod agents;
mod cuda;
mod exports;
mod lists;
