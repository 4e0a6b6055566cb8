//! Kernels and graphs.

use std::ffi::{c_char, c_void};

use driver_sim_engine::{Failure, Grid};

use crate::abi::{In, Out, exports};

/// References are those of the program.
const MOVE: u32 = 1;
/// Added to the number of a kernel, so that its handle is not null.
const FIRST_FUNCTION: u64 = 0xf0;

exports! {
    fn cuModuleLoadData(module: Out<u64>, _image: *const c_void) |sim| module.take(|| sim.load_module());

    fn cuModuleUnload(module: u64) |sim| sim.unload_module(module);

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: In<c_char>) |sim| {
        let kernel = sim.find_kernel(module, &name.text()?)?;
        function.put(FIRST_FUNCTION + kernel)
    };

    fn cuLaunchKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        _shared: u32, stream: u64, parameters: In<u64>, _extra: *const c_void,
    ) |sim| {
        let product = |sizes: [u32; 3]| sizes.into_iter().map(u64::from).product();
        let grid =
            Grid { blocks: product([grid_x, grid_y, grid_z]), threads: product([block_x, block_y, block_z]) };
        let kernel = function.checked_sub(FIRST_FUNCTION).ok_or(Failure::InvalidHandle)?;
        sim.launch_kernel(kernel, grid, stream, |index, bytes| argument(&parameters, index, bytes))
    };

    fn cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, _flags: u64) |sim| {
        executable.take(|| sim.instantiate_graph(graph))
    };

    fn cuGraphLaunch(executable: u64, stream: u64) |sim| sim.launch_graph(executable, stream);

    fn cuGraphExecDestroy(executable: u64) |sim| sim.destroy_graph(executable);

    fn cuUserObjectCreate(
        object: Out<u64>, data: *mut c_void, function: Option<unsafe extern "C" fn(*mut c_void)>, references: u32,
        _flags: u32,
    ) |sim| {
        let function = function.ok_or(Failure::InvalidValue)?;
        object.take(|| sim.create_user_object(function, data, references as usize))
    };

    fn cuUserObjectRelease(object: u64, references: u32) |sim| {
        sim.release_user_object(object, references as usize)
    };

    fn cuGraphRetainUserObject(graph: u64, object: u64, references: u32, flags: u32) |sim| {
        sim.retain_user_object(graph, object, references as usize, flags & MOVE != 0)
    };

    fn cuGraphDestroy(graph: u64) |sim| sim.destroy_graph(graph);
}

/// Writes the argument of this number: the parameters are pointers to them. A missing one reads as 0.
fn argument(parameters: &In<u64>, index: usize, to: &mut [u8]) {
    let pointer = parameters.at(index).unwrap_or(0);
    for (offset, byte) in to.iter_mut().enumerate() {
        *byte = In::<u8>::of(pointer).at(offset).unwrap_or(0);
    }
}
