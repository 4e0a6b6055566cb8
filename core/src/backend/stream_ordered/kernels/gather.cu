// The kernels. Addresses may lie in device memory, in that of a peer, or in page-locked memory of the host.
//
// What compiles this says before it what DEVICE, KERNEL, SHARED, EACH_THREAD and BARRIER are: `backend-cuda/src/kernels/clang.h`,
// `backend-hip/src/kernels/hiprtc.h`, and for the host `tests/driver-sim/engine/kernels/host.h`. In a kernel, `block` and `thread`
// count within `blocks` and `threads`; `thread` only in the block behind EACH_THREAD.

typedef unsigned int u32;
typedef unsigned long long u64;
// Entries are read a word at a time, whatever their fields are.
typedef u64 __attribute__((may_alias)) Word;

typedef u32 Quad __attribute__((vector_size(16)));

// `GatherEntry` of core.
struct Range {
    u64 from;
    u64 to;
    u64 bytes;
};

// Copies as many whole `T`s as there are; answers how many bytes that is.
template <typename T>
DEVICE u64 copy_as(Range range, u32 thread, u32 threads) {
    const u64 count = range.bytes / sizeof(T);
    const T* from = reinterpret_cast<const T*>(range.from);
    T* to = reinterpret_cast<T*>(range.to);
    for (u64 i = thread; i < count; i += threads) {
        to[i] = from[i];
    }
    return count * sizeof(T);
}

// The widest access that both addresses are aligned for serves all but the last bytes.
DEVICE void copy_range(Range range, u32 thread, u32 threads) {
    const u64 both = range.from | range.to;
    u64 done = 0;
    if (both % sizeof(Quad) == 0) {
        done = copy_as<Quad>(range, thread, threads);
    } else if (both % sizeof(u32) == 0) {
        done = copy_as<u32>(range, thread, threads);
    }
    const char* from = reinterpret_cast<const char*>(range.from);
    char* to = reinterpret_cast<char*>(range.to);
    for (u64 i = done + thread; i < range.bytes; i += threads) {
        to[i] = from[i];
    }
}

// Makes many copies: a block of threads for each entry of the table.
KERNEL(transship_gather, const Range*, table) {
    SHARED Range range;
    EACH_THREAD {
        // Each reads a word or none: the table is far away, and words that one thread reads come one after the other.
        if (thread < sizeof(Range) / sizeof(u64)) {
            reinterpret_cast<Word*>(&range)[thread] = reinterpret_cast<const Word*>(&table[block])[thread];
        }
    }
    BARRIER;
    EACH_THREAD { copy_range(range, thread, threads); }
}

// `StridedEntry` of core: items of `width` bytes, `run` of them side by side, runs at `steps` bytes from each other. Dimensions
// are outermost first.
struct Strided {
    u64 from;
    u64 to;
    u64 first;
    u64 count;
    u64 run;
    u32 width;
    u32 rank;
    u64 sizes[8];
    u64 steps[8];
};

template <typename T>
DEVICE void gather_as(const Strided& entry, u64 thread, u64 threads) {
    const u64 from = entry.from, first = entry.first, count = entry.count, run = entry.run;
    const u32 rank = entry.rank;
    T* to = reinterpret_cast<T*>(entry.to);
    for (u64 i = thread; i < count; i += threads) {
        u64 rest = (first + i) / run;
        u64 place = from + (first + i - rest * run) * sizeof(T);
        for (u32 dim = rank; dim-- > 0;) {
            const u64 outer = rest / entry.sizes[dim];
            place += (rest - outer * entry.sizes[dim]) * entry.steps[dim];
            rest = outer;
        }
        to[i] = *reinterpret_cast<const T*>(place);
    }
}

DEVICE void gather(const Strided& entry, u64 thread, u64 threads) {
    switch (entry.width) {
        case 16: return gather_as<Quad>(entry, thread, threads);
        case 8: return gather_as<u64>(entry, thread, threads);
        case 4: return gather_as<u32>(entry, thread, threads);
        case 2: return gather_as<unsigned short>(entry, thread, threads);
        default: return gather_as<unsigned char>(entry, thread, threads);
    }
}

// Gathers small parts of many tensors: a block of threads for each entry of the table.
KERNEL(transship_gather_strided, const Strided*, table) {
    SHARED Strided entry;
    EACH_THREAD {
        for (u32 i = thread; i < sizeof(Strided) / sizeof(u64); i += threads) {
            reinterpret_cast<Word*>(&entry)[i] = reinterpret_cast<const Word*>(&table[block])[i];
        }
    }
    BARRIER;
    EACH_THREAD { gather(entry, thread, threads); }
}

// Gathers a large part of one tensor, by all blocks.
KERNEL(transship_gather_one, Strided, part) {
    SHARED Strided entry;
    EACH_THREAD {
        if (thread == 0) {
            entry = part;
        }
    }
    BARRIER;
    EACH_THREAD { gather(entry, u64(block) * threads + thread, u64(blocks) * threads); }
}
