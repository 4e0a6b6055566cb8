// Makes many small copies: block i of the grid copies what entry i of the table says. Addresses may lie in device memory, in
// that of a peer, or in page-locked host memory.
//
// The widest access that both addresses are aligned for serves all but the last bytes.

typedef unsigned long long u64;

struct Entry {
    u64 from;
    u64 to;
    u64 bytes;
};

struct alignas(16) Quad {
    unsigned int words[4];
};

// Copies as many whole `T`s as there are; answers how many bytes that is.
template <typename T>
__device__ u64 copy_as(const Entry& entry) {
    const u64 count = entry.bytes / sizeof(T);
    const T* from = reinterpret_cast<const T*>(entry.from);
    T* to = reinterpret_cast<T*>(entry.to);
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) {
        to[i] = from[i];
    }
    return count * sizeof(T);
}

extern "C" __global__ void transship_gather(const Entry* table) {
    // One thread reads the entry, which may lie in host memory, for all of the block.
    __shared__ Entry entry;
    if (threadIdx.x == 0) {
        entry = table[blockIdx.x];
    }
    __syncthreads();

    const u64 both = entry.from | entry.to;
    u64 done = 0;
    if (both % sizeof(Quad) == 0) {
        done = copy_as<Quad>(entry);
    } else if (both % sizeof(unsigned int) == 0) {
        done = copy_as<unsigned int>(entry);
    }
    const char* from = reinterpret_cast<const char*>(entry.from);
    char* to = reinterpret_cast<char*>(entry.to);
    for (u64 i = done + threadIdx.x; i < entry.bytes; i += blockDim.x) {
        to[i] = from[i];
    }
}
