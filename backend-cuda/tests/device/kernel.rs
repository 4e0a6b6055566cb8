//! A kernel, as PTX text: the driver compiles it for whatever device there is.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, CudaView, LaunchConfig, PushKernelArg,
};

/// `to[i] = from[i] + 1`.
const ADD_ONE: &str = "
.version 7.0
.target sm_70
.address_size 64

.visible .entry add_one(.param .u64 from, .param .u64 to, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;

    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f1, [%rd6];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd7], %f2;
DONE:
    ret;
}
";

/// The kernel, loaded.
pub(crate) struct AddOne(CudaFunction);

impl AddOne {
    /// Loads the kernel and runs it once: the driver may load code at the first launch, which waits for the device.
    pub(crate) fn load(context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Self {
        let module = context.load_module(ADD_ONE.into()).unwrap();
        let kernel = Self(module.load_function("add_one").unwrap());
        let from = stream.alloc_zeros::<f32>(4).unwrap();
        let mut to = stream.alloc_zeros::<f32>(4).unwrap();
        kernel.launch(stream, &from.as_view(), &mut to);
        assert_eq!(stream.clone_dtoh(&to).unwrap(), [1.0; 4]);
        kernel
    }

    /// Submits it to `stream`; does not wait.
    pub(crate) fn launch(&self, stream: &Arc<CudaStream>, from: &CudaView<'_, f32>, to: &mut CudaSlice<f32>) {
        assert_eq!(from.len(), to.len());
        let count = u32::try_from(from.len()).unwrap();
        let mut launch = stream.launch_builder(&self.0);
        launch.arg(from).arg(to).arg(&count);
        // SAFETY: both have `count` floats; the arguments are those of the kernel.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }.unwrap();
    }

    /// The same over `count` floats at these addresses, for streams that are captured: cudarc makes slices wait for events, which a
    /// capture does not know.
    ///
    /// # Safety
    ///
    /// They are there until the work is done, captured or not.
    pub(crate) unsafe fn launch_at(&self, stream: &Arc<CudaStream>, from: u64, to: u64, count: usize) {
        let count = u32::try_from(count).unwrap();
        let mut launch = stream.launch_builder(&self.0);
        launch.arg(&from).arg(&to).arg(&count);
        // SAFETY: the caller's promise; the arguments are those of the kernel.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }.unwrap();
    }
}
