//! The cases, by subject.

mod allocator;
mod awaiting;
mod cast;
mod devices;
#[cfg(feature = "dlpack")]
mod dlpack;
mod dtypes;
mod errors;
mod fan_out;
mod gathering;
mod granules;
mod into;
mod lifetimes;
mod memory;
mod policies;
mod prefetch;
mod random;
mod register;
mod reports;
mod scatter;
mod shapes;
mod split;
mod strangers;
mod streams;
mod strided;
mod trees;
mod visits;

use crate::suite::Case;

/// Every case, made anew for each backend.
pub(crate) fn all() -> Vec<Case> {
    let subjects = [
        allocator::cases,
        awaiting::cases,
        cast::cases,
        devices::cases,
        #[cfg(feature = "dlpack")]
        dlpack::cases,
        dtypes::cases,
        errors::cases,
        fan_out::cases,
        gathering::cases,
        granules::cases,
        into::cases,
        lifetimes::cases,
        memory::cases,
        policies::cases,
        prefetch::cases,
        random::cases,
        register::cases,
        reports::cases,
        scatter::cases,
        shapes::cases,
        split::cases,
        strangers::cases,
        streams::cases,
        strided::cases,
        trees::cases,
        visits::cases,
    ];
    subjects.into_iter().flat_map(|cases| cases()).collect()
}
