// CUDA without its headers, from what clang knows of such devices by itself: see `.ci/ptx`.

#define DEVICE __attribute__((device, always_inline)) static inline
#define SEPARATE __attribute__((device, noinline)) static
#define KERNEL(name, Type, parameter)                                                                                \
    DEVICE void name##_by(Type parameter, unsigned block, unsigned blocks, unsigned thread, unsigned threads);       \
    extern "C" __attribute__((global)) void name(Type parameter) {                                                   \
        name##_by(parameter, __nvvm_read_ptx_sreg_ctaid_x(), __nvvm_read_ptx_sreg_nctaid_x(),                        \
                  __nvvm_read_ptx_sreg_tid_x(), __nvvm_read_ptx_sreg_ntid_x());                                      \
    }                                                                                                                \
    DEVICE void name##_by(Type parameter, unsigned block, unsigned blocks, unsigned thread, unsigned threads)
#define SHARED __attribute__((shared)) static
#define EACH_THREAD
#define BARRIER __syncthreads()
