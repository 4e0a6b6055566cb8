//! Page-locked memory: blocks, pooled and budgeted, and memory of the program.

pub(crate) mod acquire;
pub(crate) mod block;
pub(crate) mod block_accounts;
pub(crate) mod copy_share;
pub(crate) mod grow;
pub(crate) mod locked_pages;
pub(crate) mod page_locked;
pub(crate) mod pool;
pub(crate) mod size_class;
pub(crate) mod waiting_line;
