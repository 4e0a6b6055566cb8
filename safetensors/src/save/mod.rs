//! Tensors of devices to `.safetensors` files.

pub(crate) mod error;
pub(crate) mod folder;
pub(crate) mod model_folder;
pub(crate) mod named;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod save;
pub(crate) mod single_file;
pub(crate) mod temporary;
pub(crate) mod window;
pub(crate) mod write;
