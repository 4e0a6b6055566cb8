// Gathers the elements of strided tensors side by side, and casts them, or writes to where tensors have gaps. A thread makes whole words of
// four bytes.
//
// `Part::entry` in `strided_entry.rs` writes the entries of the table, a group of threads reads one: in `group.x` its number. The groups of
// one entry differ in `group.y`.

@group(0) @binding(0) var<storage, read> table: array<u32>;
@group(0) @binding(1) var<storage, read_write> written: array<u32>;
@group(0) @binding(2) var<storage, read> source: array<u32>;

// The fields of an entry, and how many there are.
const FROM = 0u;      // the first element, in bytes
const TO = 1u;        // the first word that is written; that is read, of what is scattered
const WORDS = 2u;     // how many are written
const ITEMS = 3u;     // how many items they are made of
const RUN = 4u;       // items that lie side by side
const AHEAD = 5u;     // items of the first run that are left out
const WIDTH = 6u;     // bytes of an item: 1, 2, 4, and 8 where it is cast
const TO_WIDTH = 7u;  // bytes of what it becomes
const FROM_TYPE = 8u;
const TO_TYPE = 9u;
const HALF = 10u;     // whether the first word is the second one of an item
const MADE = 11u;     // where in the table stands what each u8 becomes; 0: it is computed
const RANK = 12u;     // dimensions of runs
const DIMS = 13u;     // of each: how many runs, bytes from one to the next, the index of the first one; the outermost first
const FIELDS = 37u;

// Where an item lies, in bytes, and how many more lie behind it in its run.
struct Place {
    at: u32,
    behind: u32,
}

// Indices of dimensions are added like the digits of a number: those of the first item, and the number of the item.
fn place(entry: u32, item: u32) -> Place {
    let run = table[entry + RUN];
    let ahead = table[entry + AHEAD] + item;
    var rest = ahead / run;
    let in_run = ahead - rest * run;
    var at = table[entry + FROM] + in_run * table[entry + WIDTH];
    for (var dim = table[entry + RANK]; dim > 0u; dim--) {
        let fields = entry + DIMS + (dim - 1u) * 3u;
        let size = table[fields];
        let index = table[fields + 2u] + rest;
        rest = index / size;
        at += (index - rest * size) * table[fields + 1u];
    }
    return Place(at, run - 1u - in_run);
}

fn ones(bits: u32) -> u32 {
    return 0xffffffffu >> (32u - bits);
}

// Up to four bytes from anywhere.
fn load_word(at: u32, width: u32) -> u32 {
    let shift = (at % 4u) * 8u;
    var bits = source[at / 4u] >> shift;
    if (at % 4u) + width > 4u {
        bits |= source[at / 4u + 1u] << (32u - shift);
    }
    return bits & ones(8u * width);
}

fn gathered_word(entry: u32, word: u32) -> u32 {
    let width = table[entry + WIDTH];
    let items = 4u / width;
    let first = word * items;
    let left = table[entry + ITEMS] - first;
    let place_of_first = place(entry, first);
    let together = min(items, left);
    if place_of_first.behind >= together - 1u {
        return load_word(place_of_first.at, together * width);
    }
    var bits = load_word(place_of_first.at, width);
    for (var item = 1u; item < together; item++) {
        bits |= load_word(place(entry, first + item).at, width) << (8u * width * item);
    }
    return bits;
}

@compute @workgroup_size(64)
fn gather_parts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let entry = group.x * FIELDS;
    let to = table[entry + TO];
    let words = table[entry + WORDS];
    for (var word = group.y * 64u + lane; word < words; word += groups.y * 64u) {
        written[to + word] = gathered_word(entry, word);
    }
}

// What lies side by side goes to where the entry says. All of it is whole words, none of which is that of two threads.
@compute @workgroup_size(64)
fn scatter_parts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let entry = group.x * FIELDS;
    let packed = table[entry + TO];
    let words = table[entry + WORDS];
    for (var word = group.y * 64u + lane; word < words; word += groups.y * 64u) {
        written[place(entry, word).at / 4u] = source[packed + word];
    }
}

// Casts, by integer arithmetic alone: devices round otherwise, make other NaNs, and have no types of 64 bits. An element is its bits, the
// low word first, behind zeros.

// Types by their numbers.
const U64 = 3u;
const I8 = 4u;
const F16 = 8u;
const BF16 = 9u;
const F32 = 10u;
const F64 = 11u;

// Each floating point number is one of `float64`, whose bits these are. NaN keeps its sign and its first bits, and is quiet.
fn widened(bits: u32, fraction_bits: u32, exponent_bits: u32) -> vec2<u32> {
    let sign = (bits >> (fraction_bits + exponent_bits)) << 31u;
    let largest = ones(exponent_bits);
    let exponent = (bits >> fraction_bits) & largest;
    var fraction = bits & ones(fraction_bits);
    if exponent == largest {
        let quiet = select(0u, 0x80000u, fraction != 0u);
        let first = fraction << (23u - fraction_bits);
        return vec2(first << 29u, sign | 0x7ff00000u | quiet | (first >> 3u));
    }
    var bias = 1023u - (largest >> 1u);
    if exponent == 0u {
        if fraction == 0u {
            return vec2(0u, sign);
        }
        let shift = countLeadingZeros(fraction) - (31u - fraction_bits);
        fraction = (fraction << shift) & ones(fraction_bits);
        bias = bias + 1u - shift;
    }
    let first = fraction << (23u - fraction_bits);
    return vec2(first << 29u, sign | ((exponent + bias) << 20u) | (first >> 3u));
}

// The nearest number of a type, ties to even, of bits of `float64`.
fn narrowed(bits: vec2<u32>, fraction_bits: u32, exponent_bits: u32) -> u32 {
    let sign = (bits.y >> 31u) << (fraction_bits + exponent_bits);
    let largest = ones(exponent_bits);
    let infinite = sign | (largest << fraction_bits);
    let exponent = (bits.y >> 20u) & 0x7ffu;
    let fraction = bits.y & 0xfffffu;
    if exponent == 0x7ffu {
        let first = (fraction << 3u) | (bits.x >> 29u);
        let quiet = 1u << (fraction_bits - 1u);
        return infinite | select(0u, quiet | (first >> (23u - fraction_bits)), (fraction | bits.x) != 0u);
    }
    let biased = i32(exponent) + i32(largest >> 1u) - 1023;
    if biased >= i32(largest) {
        return infinite;
    }
    // So many bits behind the last one that is kept; of a subnormal number more.
    var dropped = 52u - fraction_bits;
    var kept = 0u;
    if biased >= 1 {
        kept = u32(biased - 1) << fraction_bits;
    } else {
        dropped += u32(1 - biased);
    }
    // What is less than half of the least number.
    if dropped > 53u || exponent == 0u {
        return sign;
    }
    let low = bits.x;
    let high = fraction | 0x100000u;
    // Those bits, at the upper end of 64.
    let up = 64u - dropped;
    var rest = vec2(0u, 0u);
    if dropped >= 32u {
        kept += high >> (dropped - 32u);
    } else {
        kept += (high << (32u - dropped)) | (low >> dropped);
    }
    if up >= 32u {
        rest.y = low << (up - 32u);
    } else {
        rest = vec2(low << up, (high << up) | (low >> (32u - up)));
    }
    let is_half = rest.y == 0x80000000u && rest.x == 0u;
    let is_more = rest.y >= 0x80000000u && !is_half;
    // What is too large becomes infinite by that.
    return sign | (kept + select(0u, 1u, is_more || (is_half && (kept & 1u) == 1u)));
}

fn cast_float(bits: vec2<u32>, from_type: u32, to_type: u32) -> vec2<u32> {
    var double = bits;
    switch from_type {
        case F16: { double = widened(bits.x, 10u, 5u); }
        case BF16: { double = widened(bits.x, 7u, 8u); }
        case F32: { double = widened(bits.x, 23u, 8u); }
        default: {}
    }
    switch to_type {
        case F16: { return vec2(narrowed(double, 10u, 5u), 0u); }
        case BF16: { return vec2(narrowed(double, 7u, 8u), 0u); }
        case F32: { return vec2(narrowed(double, 23u, 8u), 0u); }
        default: { return double; }
    }
}

// The nearest integer that the type has.
fn cast_integer(bits: vec2<u32>, from_type: u32, width: u32, to_type: u32, to_width: u32) -> vec2<u32> {
    var low = bits.x;
    var high = bits.y;
    if from_type <= U64 {
        // What is larger is too large for every other type.
        if (high >> 31u) == 1u {
            low = 0xffffffffu;
            high = 0x7fffffffu;
        }
    } else if width < 8u {
        let unused = 32u - 8u * width;
        low = u32(i32(low << unused) >> unused);
        high = u32(i32(low) >> 31u);
    }
    let is_negative = (high >> 31u) == 1u;
    let is_unsigned = to_type <= U64;
    if is_negative && is_unsigned {
        return vec2(0u, 0u);
    }
    if to_width == 8u {
        return vec2(low, high);
    }
    let largest = ones(8u * to_width - select(1u, 0u, is_unsigned));
    if is_negative {
        let fits = high == 0xffffffffu && i32(low) < 0 && i32(low) >= i32(~largest);
        return vec2(select(~largest, low, fits) & ones(8u * to_width), 0u);
    }
    return vec2(select(largest, low, high == 0u && low <= largest), 0u);
}

fn cast_item(entry: u32, item: u32) -> vec2<u32> {
    let width = table[entry + WIDTH];
    let at = place(entry, item).at;
    var bits = vec2(load_word(at, min(width, 4u)), 0u);
    let made = table[entry + MADE];
    if made != 0u {
        return vec2(table[made + bits.x], 0u);
    }
    if width == 8u {
        bits.y = load_word(at + 4u, 4u);
    }
    let from_type = table[entry + FROM_TYPE];
    let to_type = table[entry + TO_TYPE];
    if from_type >= F16 {
        return cast_float(bits, from_type, to_type);
    }
    return cast_integer(bits, from_type, width, to_type, table[entry + TO_WIDTH]);
}

fn cast_word(entry: u32, word: u32) -> u32 {
    let to_width = table[entry + TO_WIDTH];
    if to_width == 8u {
        let half = table[entry + HALF] + word;
        let bits = cast_item(entry, half / 2u);
        return select(bits.x, bits.y, half % 2u == 1u);
    }
    let items = 4u / to_width;
    let together = min(items, table[entry + ITEMS] - word * items);
    var bits = 0u;
    for (var item = 0u; item < together; item++) {
        bits |= cast_item(entry, word * items + item).x << (8u * to_width * item);
    }
    return bits;
}

@compute @workgroup_size(64)
fn cast_parts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let entry = group.x * FIELDS;
    let to = table[entry + TO];
    let words = table[entry + WORDS];
    for (var word = group.y * 64u + lane; word < words; word += groups.y * 64u) {
        written[to + word] = cast_word(entry, word);
    }
}
