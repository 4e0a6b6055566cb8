// The kernels. Addresses may lie in device memory, in that of a peer, or in page-locked memory of the host.
//
// What compiles this says before it what DEVICE, SEPARATE, KERNEL, SHARED, EACH_THREAD and BARRIER are: `backend-cuda/src/kernels/clang.h`,
// `backend-hip/src/kernels/hiprtc.h`, and for the host `tests/driver-sim/engine/kernels/host.h`. In a kernel, `block` and `thread`
// count within `blocks` and `threads`; `thread` only in the block behind EACH_THREAD.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
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

// Where an item of the tensor lies. What does not change between items is in registers.
DEVICE u64 place_of(const Strided& entry, u64 from, u64 run, u32 rank, u64 item, u32 width) {
    u64 rest = item / run;
    u64 place = from + (item - rest * run) * width;
    for (u32 dim = rank; dim-- > 0;) {
        const u64 outer = rest / entry.sizes[dim];
        place += (rest - outer * entry.sizes[dim]) * entry.steps[dim];
        rest = outer;
    }
    return place;
}

template <typename T>
DEVICE void gather_as(const Strided& entry, u64 thread, u64 threads) {
    const u64 from = entry.from, first = entry.first, count = entry.count, run = entry.run;
    const u32 rank = entry.rank;
    T* to = reinterpret_cast<T*>(entry.to);
    for (u64 i = thread; i < count; i += threads) {
        to[i] = *reinterpret_cast<const T*>(place_of(entry, from, run, rank, first + i, sizeof(T)));
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

// Each thread of a block reads a word of its entry, or some.
template <typename Entry>
DEVICE void read_entry(Entry& entry, const Entry& from, u32 thread, u32 threads) {
    for (u32 i = thread; i < sizeof(Entry) / sizeof(u64); i += threads) {
        reinterpret_cast<Word*>(&entry)[i] = reinterpret_cast<const Word*>(&from)[i];
    }
}

// Gathers small parts of many tensors: a block of threads for each entry of the table.
KERNEL(transship_gather_strided, const Strided*, table) {
    SHARED Strided entry;
    EACH_THREAD { read_entry(entry, table[block], thread, threads); }
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

// `ScatterEntry` of core: items of `from`, and where in memory they go, which is what `to` calls `from`.
struct Scatter {
    Strided from;
    Strided to;
};

// Divisions take long, and what lies in one run needs none.
DEVICE u64 item_place(const Strided& entry, u64 from, u64 run, u32 rank, u64 item, u32 width) {
    return rank == 0 ? from + item * width : place_of(entry, from, run, rank, item, width);
}

template <typename T>
DEVICE void copy_item(u64 from, u64 to) {
    *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
}

DEVICE void scatter(const Scatter& entry, u64 thread, u64 threads) {
    const u64 from = entry.from.from, from_first = entry.from.first, from_run = entry.from.run;
    const u64 to = entry.to.from, to_first = entry.to.first, to_run = entry.to.run, count = entry.to.count;
    const u32 from_rank = entry.from.rank, to_rank = entry.to.rank, width = entry.to.width;
    for (u64 i = thread; i < count; i += threads) {
        const u64 source = item_place(entry.from, from, from_run, from_rank, from_first + i, width);
        const u64 place = item_place(entry.to, to, to_run, to_rank, to_first + i, width);
        // The places are found by the same code for each width: code that is loaded when a device is opened.
        switch (width) {
            case 16: copy_item<Quad>(source, place); break;
            case 8: copy_item<u64>(source, place); break;
            case 4: copy_item<u32>(source, place); break;
            case 2: copy_item<unsigned short>(source, place); break;
            default: copy_item<unsigned char>(source, place);
        }
    }
}

// Writes to strided places of one tensor, by all blocks. What lies between them is not touched.
KERNEL(transship_scatter_one, Scatter, part) {
    SHARED Scatter entry;
    EACH_THREAD {
        if (thread == 0) {
            entry = part;
        }
    }
    BARRIER;
    EACH_THREAD { scatter(entry, u64(block) * threads + thread, u64(blocks) * threads); }
}

// Casts. An element is a number of up to 64 bits: those of its type, behind zeros.

// `CastEntry` of core: elements, and what they become.
struct Cast {
    Strided elements;
    u64 bytes;
    u32 from_type;
    u32 to_type;
    u32 to_width;
    u32 cut;
    u32 together;
    u32 bytewise;
    float scale;
    float bias;
};

// Types by their numbers: unsigned integers of 8 to 64 bits, signed ones, and floating point.
enum Type { U8, U64 = 3, I8 = 4, I64 = 7, F16, BF16, F32, F64 };

template <typename To, typename From>
DEVICE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "other bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}

// NaN is converted by its bits everywhere: devices would make another one of it. It keeps its sign and its first bits, and is quiet.

DEVICE u32 f32_of_f16(u32 half) {
    const u32 sign = (half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) {
        return sign | 0x7f800000 | (rest > 0x7c00 ? 0x400000 | (rest & 0x3ff) << 13 : 0);
    }
    const u32 small = bits_as<u32>(float(rest) * 5.9604644775390625e-8f);
    return sign | (rest < 0x400 ? small : (rest << 13) + 0x38000000);
}

DEVICE u32 f32_of_bf16(u32 half) {
    return (half & 0x7fff) > 0x7f80 ? (half | 0x40) << 16 : half << 16;
}

DEVICE u32 f16_of_f32(u32 single) {
    const u32 sign = single >> 16 & 0x8000, rest = single & 0x7fffffff;
    if (rest > 0x7f800000) {
        return sign | 0x7e00 | (rest >> 13 & 0x3ff);
    }
    if (rest >= 0x477ff000) {
        return sign | 0x7c00;
    }
    if (rest < 0x38800000) {
        // The sum is rounded at the last bit that such a small number keeps.
        return sign | (bits_as<u32>(bits_as<float>(rest) + 0.5f) - 0x3f000000);
    }
    return sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
}

DEVICE u32 bf16_of_f32(u32 single) {
    const u32 odd = single >> 16 & 1;
    return (single & 0x7fffffff) > 0x7f800000 ? single >> 16 | 0x40 : (single + 0x7fff + odd) >> 16;
}

DEVICE u64 f64_of_f32(u32 single) {
    const u32 rest = single & 0x7fffffff;
    if (rest > 0x7f800000) {
        return u64(single & 0x80000000) << 32 | 0x7ff8000000000000 | u64(rest & 0x7fffff) << 29;
    }
    return bits_as<u64>(double(bits_as<float>(single)));
}

// `to_odd`: rounded such that a second rounding, to 16 bits, ends where a single one would. What is not exact has an odd last bit.
DEVICE u32 f32_of_f64(u64 bits, bool to_odd) {
    const u64 rest = bits & 0x7fffffffffffffff;
    if (rest > 0x7ff0000000000000) {
        return u32(bits >> 32 & 0x80000000) | 0x7fc00000 | u32(rest >> 29 & 0x3fffff);
    }
    const double value = bits_as<double>(bits);
    const float nearest = float(value);
    const u64 back = bits_as<u64>(double(nearest));
    if (!to_odd || back == bits) {
        return bits_as<u32>(nearest);
    }
    return (bits_as<u32>(nearest) - ((back & 0x7fffffffffffffff) > rest)) | 1;
}

DEVICE u64 float_of_f32(u32 single, u32 to) {
    switch (to) {
        case F16: return f16_of_f32(single);
        case BF16: return bf16_of_f32(single);
        case F32: return single;
        default: return f64_of_f32(single);
    }
}

DEVICE u64 cast_float(u64 bits, u32 from, u32 to) {
    switch (from) {
        case F16: return float_of_f32(f32_of_f16(u32(bits)), to);
        case BF16: return float_of_f32(f32_of_bf16(u32(bits)), to);
        case F32: return float_of_f32(u32(bits), to);
        default: return float_of_f32(f32_of_f64(bits, to != F32), to);
    }
}

// The nearest integer that the type has.
DEVICE u64 cast_integer(u64 bits, u32 from, u32 width, u32 to, u32 to_width) {
    const u32 unused = 64 - 8 * width, to_bits = 8 * to_width;
    const i64 largest = 0x7fffffffffffffff;
    i64 value = i64(bits << unused) >> unused;
    if (from <= U64) {
        // What is larger is too large for every other type.
        value = bits > u64(largest) ? largest : i64(bits);
    }
    const i64 high = to_bits == 64 ? largest : (i64(1) << (to <= U64 ? to_bits : to_bits - 1)) - 1;
    const i64 low = to <= U64 ? 0 : -high - 1;
    const i64 clamped = value < low ? low : value > high ? high : value;
    return to_bits == 64 ? u64(clamped) : u64(clamped) & ((u64(1) << to_bits) - 1);
}

DEVICE u64 cast_element(u64 bits, const Cast& cast) {
    if (cast.from_type >= F16) {
        return cast_float(bits, cast.from_type, cast.to_type);
    }
    if (cast.to_type >= F16) {
        // Rounded after the product and after the sum: what compiles this joins no operations.
        const float product = float(u32(bits)) * cast.scale;
        return float_of_f32(bits_as<u32>(product + cast.bias), cast.to_type);
    }
    return cast_integer(bits, cast.from_type, cast.elements.width, cast.to_type, cast.to_width);
}

DEVICE u64 load(u64 place, u32 width, bool bytewise) {
    u64 bits = 0;
    if (bytewise) {
        for (u32 i = 0; i < width; ++i) {
            bits |= u64(reinterpret_cast<const unsigned char*>(place)[i]) << (8 * i);
        }
        return bits;
    }
    switch (width) {
        case 8: return *reinterpret_cast<const u64*>(place);
        case 4: return *reinterpret_cast<const u32*>(place);
        case 2: return *reinterpret_cast<const unsigned short*>(place);
        default: return *reinterpret_cast<const unsigned char*>(place);
    }
}

DEVICE void store(u64 place, u32 width, u64 bits) {
    switch (width) {
        case 8: *reinterpret_cast<u64*>(place) = bits; return;
        case 4: *reinterpret_cast<u32*>(place) = u32(bits); return;
        case 2: *reinterpret_cast<unsigned short*>(place) = (unsigned short)(bits); return;
        default: *reinterpret_cast<unsigned char*>(place) = (unsigned char)(bits); return;
    }
}

// Stores the bytes of an element that belong to the copy; the element would begin `at` bytes behind where the copy is to begin.
DEVICE void store_bytes(const Cast& cast, i64 at, u64 bits) {
    for (u32 i = 0; i < cast.to_width; ++i) {
        if (at + i >= 0 && at + i < i64(cast.bytes)) {
            reinterpret_cast<unsigned char*>(cast.elements.to)[at + i] = (unsigned char)(bits >> (8 * i));
        }
    }
}

struct Four {
    u64 a, b, c, d;
};

DEVICE Four load_four(u64 place, u32 width) {
    switch (width) {
        case 8: {
            const Quad low = reinterpret_cast<const Quad*>(place)[0], high = reinterpret_cast<const Quad*>(place)[1];
            return {low[0] | u64(low[1]) << 32, low[2] | u64(low[3]) << 32, high[0] | u64(high[1]) << 32,
                    high[2] | u64(high[3]) << 32};
        }
        case 4: {
            const Quad all = *reinterpret_cast<const Quad*>(place);
            return {all[0], all[1], all[2], all[3]};
        }
        case 2: {
            const u64 all = *reinterpret_cast<const u64*>(place);
            return {all & 0xffff, all >> 16 & 0xffff, all >> 32 & 0xffff, all >> 48};
        }
        default: {
            const u32 all = *reinterpret_cast<const u32*>(place);
            return {all & 0xff, all >> 8 & 0xff, all >> 16 & 0xff, all >> 24};
        }
    }
}

DEVICE void store_four(u64 place, u32 width, Four four) {
    switch (width) {
        case 8: {
            const Quad low = {u32(four.a), u32(four.a >> 32), u32(four.b), u32(four.b >> 32)};
            const Quad high = {u32(four.c), u32(four.c >> 32), u32(four.d), u32(four.d >> 32)};
            reinterpret_cast<Quad*>(place)[0] = low;
            reinterpret_cast<Quad*>(place)[1] = high;
            return;
        }
        case 4: {
            const Quad all = {u32(four.a), u32(four.b), u32(four.c), u32(four.d)};
            *reinterpret_cast<Quad*>(place) = all;
            return;
        }
        case 2: {
            *reinterpret_cast<u64*>(place) = four.a | four.b << 16 | four.c << 32 | four.d << 48;
            return;
        }
        default: {
            *reinterpret_cast<u32*>(place) = u32(four.a | four.b << 8 | four.c << 16 | four.d << 24);
            return;
        }
    }
}

// Casts four elements at a time, and one where not all ends are aligned for that, and at the end.
SEPARATE void cast_all(const Cast& cast, u64 thread, u64 threads) {
    const Strided& elements = cast.elements;
    const u64 first = elements.from, skipped = elements.first, run = elements.run, count = elements.count;
    const u32 width = elements.width, rank = elements.rank, to_width = cast.to_width;
    const bool bytewise = cast.bytewise;
    const u64 fours = cast.together == 4 ? count / 4 : 0;
    for (u64 turn = thread; turn < count - 3 * fours; turn += threads) {
        const bool together = turn < fours;
        const u64 element = together ? 4 * turn : 3 * fours + turn;
        const u64 from = item_place(elements, first, run, rank, skipped + element, width);
        const u64 to = elements.to + element * to_width;
        Four four = together ? load_four(from, width) : Four{load(from, width, bytewise), 0, 0, 0};
        // The arithmetic is there once: code that is loaded when a device is opened.
        for (u32 i = 0; i < (together ? 4 : 1); ++i) {
            const u64 bits = cast_element(four.a, cast);
            four = {four.b, four.c, four.d, bits};
        }
        if (together) {
            store_four(to, to_width, four);
        } else if (bytewise) {
            store_bytes(cast, i64(element * to_width) - cast.cut, four.d);
        } else {
            store(to, to_width, four.d);
        }
    }
}

// Casts small parts of many tensors: a block of threads for each entry of the table.
KERNEL(transship_cast, const Cast*, table) {
    SHARED Cast entry;
    EACH_THREAD { read_entry(entry, table[block], thread, threads); }
    BARRIER;
    EACH_THREAD { cast_all(entry, thread, threads); }
}

// Casts a large part of one tensor, by all blocks.
KERNEL(transship_cast_one, Cast, part) {
    SHARED Cast entry;
    EACH_THREAD {
        if (thread == 0) {
            entry = part;
        }
    }
    BARRIER;
    EACH_THREAD { cast_all(entry, u64(block) * threads + thread, u64(blocks) * threads); }
}
