//! Modules and the gather kernel.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use crate::cuda::Cuda;
use crate::{say, show};

const GATHER: &str = concat!(include_str!("../../../../backend-cuda/src/kernels/gather.ptx"), "\0");
const BYTES: usize = 1000;

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn all(cuda: &Cuda) {
    cuda.start();
    let (stream, mut module, mut function) = (cuda.stream(), 0, 0);
    // SAFETY: results are written to locals; texts end with a zero; tables and memory are there until the end.
    unsafe {
        say("cuModuleLoadData null", (cuda.cuModuleLoadData)(&raw mut module, null()));
        say("cuModuleLoadData null result", (cuda.cuModuleLoadData)(null_mut(), GATHER.as_ptr().cast()));
        say("cuModuleLoadData empty", (cuda.cuModuleLoadData)(&raw mut module, c"".as_ptr()));
        say(
            "cuModuleLoadData garbage",
            (cuda.cuModuleLoadData)(&raw mut module, c"this is no kernel".as_ptr()),
        );
        say("cuModuleLoadData", (cuda.cuModuleLoadData)(&raw mut module, GATHER.as_ptr().cast()));
        let code = (cuda.cuModuleGetFunction)(&raw mut function, module, c"missing".as_ptr());
        say("cuModuleGetFunction missing", code);
        let code = (cuda.cuModuleGetFunction)(&raw mut function, module, c"".as_ptr());
        say("cuModuleGetFunction empty", code);
        say("cuModuleGetFunction null", (cuda.cuModuleGetFunction)(&raw mut function, module, null()));
        let name = c"transship_gather".as_ptr();
        say("cuModuleGetFunction null result", (cuda.cuModuleGetFunction)(null_mut(), module, name));
        say("cuModuleGetFunction", (cuda.cuModuleGetFunction)(&raw mut function, module, name));
        gather(cuda, function, stream);
        say("cuModuleUnload", (cuda.cuModuleUnload)(module));
    }
}

fn gather(cuda: &Cuda, function: usize, stream: usize) {
    let (device, from, to) = (cuda.device_memory(BYTES), cuda.pinned(BYTES, 3), cuda.pinned(BYTES, 0));
    let table = cuda.pinned(4 * size_of::<[usize; 3]>(), 0);
    let entries = [
        [from, device, 512],
        [from + 512, device + 512, 100],
        [from + 612, device + 612, 1],
        [from + 613, device + 613, BYTES - 613],
    ];
    let mut argument = table;
    let mut arguments: [*mut c_void; 1] = [(&raw mut argument).cast()];
    let parameters = arguments.as_mut_ptr();
    // SAFETY: the table has four entries over memory that is there until the end; the kernel takes its address.
    unsafe {
        std::ptr::with_exposed_provenance_mut::<[[usize; 3]; 4]>(table).write(entries);
        let launch = |blocks, threads, parameters| {
            (cuda.cuLaunchKernel)(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, null_mut())
        };
        say("cuLaunchKernel no blocks", launch(0, 256, parameters));
        say("cuLaunchKernel no threads", launch(4, 0, parameters));
        say("cuLaunchKernel 4096 threads", launch(4, 4096, parameters));
        say("cuLaunchKernel", launch(4, 256, parameters));
        say("cuMemcpyDtoHAsync", (cuda.cuMemcpyDtoHAsync_v2)(to, device, BYTES, stream));
        let code = (cuda.cuStreamSynchronize)(stream);
        let bytes = std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(to), BYTES);
        show("synchronised: bytes of 3", code, bytes.iter().filter(|byte| **byte == 3).count());
    }
}
