// What the kernels ask of their compiler, for hiprtc, which knows blocks and threads by itself.

#define DEVICE __device__ static inline
#define SEPARATE __device__ __attribute__((noinline)) static
#define KERNEL(name, Type, parameter)                                                                                \
    DEVICE void name##_by(Type parameter, unsigned block, unsigned blocks, unsigned thread, unsigned threads);       \
    extern "C" __global__ void name(Type parameter) {                                                                \
        name##_by(parameter, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);                                        \
    }                                                                                                                \
    DEVICE void name##_by(Type parameter, unsigned block, unsigned blocks, unsigned thread, unsigned threads)
#define SHARED __shared__
#define EACH_THREAD
#define BARRIER __syncthreads()

