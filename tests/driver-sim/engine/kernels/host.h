// The kernels on the host: blocks and threads one after the other. `name_on_host` runs a whole launch.

#define DEVICE static inline
#define SEPARATE static
#define KERNEL(name, Type, parameter)                                                                        \
    static void name##_by(Type parameter, unsigned block, unsigned blocks, unsigned threads);                \
    extern "C" void name##_on_host(Type parameter, unsigned blocks, unsigned threads) {                      \
        for (unsigned block = 0; block < blocks; ++block) {                                                  \
            name##_by(parameter, block, blocks, threads);                                                    \
        }                                                                                                    \
    }                                                                                                        \
    static void name##_by(Type parameter, unsigned block, unsigned blocks, unsigned threads)
#define SHARED
#define EACH_THREAD for (unsigned thread = 0; thread < threads; ++thread)
#define BARRIER
