// Stochastic rounding of rotated numbers to a table of integers that all workers share, sums of its entries, and their means.
//
//   codes for the owners of chunks:  of each chunk of the row its codes, packed from a whole byte on
#include "../packing.h"
#include "../rotation.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

constexpr int64_t WHOLE = 8;  // codes that fill whole bytes
constexpr int CELLS = 32;     // all entries are below
constexpr float SMALL = 0x1p96f;  // no block of such numbers is LARGE

// A table of 2 to 16 ascending integers, a power of two, from 0 to less than CELLS; how far each is from the next; what each says in units of a bound.
struct Table {
    int size, bits;
    float entry[16] = {}, gap[16] = {}, share[16] = {};
    int32_t cells[CELLS];  // of each integer below CELLS the entry that is the nearest one from below, not the last
    float half;  // of the largest
    float small_gap[16] = {};  // in units of 2**16
    Table(const float* table, int size_) : size(size_), bits(0), half(table[size_ - 1] / 2) {
        while (1 << bits < size) bits++;
        for (int v = 0, at = 0; v < CELLS; v++) {
            while (at + 2 < size && table[at + 1] <= (float)v) at++;
            cells[v] = at;
        }
        for (int i = 0; i < size; i++) {
            entry[i] = table[i], gap[i] = i + 1 < size ? table[i + 1] - table[i] : 0, small_gap[i] = gap[i] * 0x1p-16f;
            share[i] = (float)((double)table[i] * (2 / (double)table[size - 1]) - 1);
        }
    }

    // Codes of y in units of a bound, of which the opposite is given; 0 where everything is.
    GRACE_MEMBER vi round(vf y, vf opposite, vi nothing, vf u) const {
        const vf one = splat(1.0f);
        vf v = at_most(as_float(as_int(y / opposite) & ~nothing), one);  // -y, at least -1
        v = (at_most(-v, one) + one) * splat(half);
#if GRACE_LANES == 16
        const vf near = (vf)_mm512_roundscale_ps((__m512)v, 0), slack = (vf)_mm512_max_ps((__m512)v, (__m512)one) * splat(1e-6f);
#else
        const vf near = to_float(nearest_int(v)), slack = (v < one ? one : v) * splat(1e-6f);
#endif
        v = select(absolute(v - near) <= slack, near, v);
#if GRACE_LANES == 16
        const __m512i low_cells = _mm512_loadu_si512(cells), high_cells = _mm512_loadu_si512(cells + 16);
        const vi code = (vi)_mm512_permutex2var_epi32(low_cells, (__m512i)truncate(v), high_cells);
        const vf low = lookup(loadf(entry), code), step = lookup(loadf(gap), code);
        const __mmask16 up = _mm512_cmp_ps_mask((__m512)(u * step), (__m512)(v - low), _CMP_LT_OQ);
        return (vi)_mm512_mask_add_epi32((__m512i)code, up, (__m512i)code, _mm512_set1_epi32(1));
#else
        vi code = {};
        vf low = splat(entry[0]), step = splat(gap[0]);
        for (int j = 1; j < size - 1; j++) {
            const vi beyond = v >= splat(entry[j]);
            code -= beyond;
            low = select(beyond, splat(entry[j]), low), step = select(beyond, splat(gap[j]), step);
        }
        return code - (vi)(u * step < v - low);
#endif
    }
};

#if GRACE_LANES == 16
// Codes of y [0, len), which have one bound, 64 at a time: random numbers are made beside them, so that a processor finds work
// while it divides. lo + u (hi - lo) < v is exact: it has 17 bits behind the point and 6 before it. Returns how many. each(i) is
// called for every sixteen.
template <class Each>
int64_t round_many(const Table& table, const float* y, int64_t len, float bound, const Key& key, uint64_t first, uint8_t* codes,
                   Each each) {
    const bool nothing = bound < TINY;
    const __m512 limit = _mm512_set1_ps(nothing ? 0 : bound), minus = -limit, by = _mm512_set1_ps(nothing ? 1 : bound);
    const __m512 one = _mm512_set1_ps(1), half = _mm512_set1_ps(table.half), close = _mm512_set1_ps(1e-6f);
    const __m512 entry = _mm512_loadu_ps(table.entry), gap = _mm512_loadu_ps(table.small_gap);
    const __m512i low_cells = _mm512_loadu_si512(table.cells), high_cells = _mm512_loadu_si512(table.cells + 16);
    __m512i order[4];  // number i of sixteen is lane i % 4 of counter i / 4; above each is what makes it a float from 2**23 on
    for (int k = 0; k < 4; k++) {
        uint16_t at[32];
        for (int i = 0; i < 16; i++) at[2 * i] = (uint16_t)(2 * (4 * k + i / 4) + i % 2 + (i & 2 ? 32 : 0)), at[2 * i + 1] = 0x4B00;
        order[k] = _mm512_loadu_si512(at);
    }
    const vu counters = (vu)iota();
    int64_t i = 0;
    constexpr int CHAINS = 8;
    for (; i + 64 * CHAINS <= len; i += 64 * CHAINS) {
        vu x0[CHAINS], x1[CHAINS];
        threefry<CHAINS>(key, counters + (uint32_t)((first + (uint64_t)i) / 4), x0, x1);
        for (int c = 0; c < CHAINS; c++) {
            vi code[4];
            for (int k = 0; k < 4; k++) {
                each(i + 64 * c + 16 * k);
                const __m512 clipped = _mm512_max_ps(_mm512_min_ps(_mm512_loadu_ps(y + i + 64 * c + 16 * k), limit), minus);
                __m512 v = (clipped / by + one) * half;
                const __m512 off = v - _mm512_roundscale_ps(v, 0), slack = _mm512_max_ps(v * close, close);
                v = _mm512_mask_sub_ps(v, _mm512_cmp_ps_mask(_mm512_abs_ps(off), slack, _CMP_LE_OQ), v, off);
                const __m512i low = _mm512_permutex2var_epi32(low_cells, _mm512_cvttps_epi32(v), high_cells);
                const __m512i lanes = _mm512_mask2_permutex2var_epi16((__m512i)x0[c], order[k], 0x55555555, (__m512i)x1[c]);
                const __m512 u = (__m512)lanes - _mm512_set1_ps(8388607.5f);
                const __m512 edge = _mm512_fmadd_ps(u, _mm512_permutexvar_ps(low, gap), _mm512_permutexvar_ps(low, entry));
                code[k] = (vi)_mm512_mask_add_epi32(low, _mm512_cmp_ps_mask(edge, v, _CMP_LT_OQ), low, _mm512_set1_epi32(1));
            }
            store_u8(codes + i + 64 * c, code[0], code[1], code[2], code[3]);
        }
    }
    return i;
}
#endif

// Codes of y [0, len), which have one bound.
template <class Each>
void round_run(const Table table, const float* y, int64_t len, float bound, const uint16_t* lanes, uint8_t* codes, Each each) {
    const vi nothing = splat(bound < TINY ? -1 : 0);
    const vf by = splat(bound < TINY ? -1.0f : -bound);
    auto of = [&](const float* p, int64_t i) {
        const vf u = (to_float(load_u16(lanes + i)) + splat(0.5f)) * splat(0x1p-16f);
        return table.round(loadf(p), by, nothing, u);
    };
    int64_t i = 0;
    for (; i + L <= len; i += L) {
        if (i % 16 == 0) each(i);
        store_u8(codes + i, of(y + i, i));
    }
    if (i == len) return;
    float p[L] = {};
    uint8_t last[L];
    memcpy(p, y + i, (size_t)(len - i) * 4);
    store_u8(last, of(p, i));
    memcpy(codes + i, last, (size_t)(len - i));
}

struct Chunks {
    int64_t size, count;
    // f(number w of a chunk, its first number, from, to) for its part of [start, stop)
    template <class F>
    void each(int64_t start, int64_t stop, F f) const {
        for (int64_t w = start / size; w * size < stop; w++) {
            const int64_t first = w * size;
            f(w, first, start > first ? start : first, least(stop, first + size));
        }
    }
};

// y [n] has been rotated; p is r's, of which the rest is left.
void encode(const Rows& r, const float* y, const float* bounds, const Table& table, const Chunks& chunks, uint8_t* wire,
            int64_t width, const Key& key, const Key& shared, int threads) {
    const RotationTasks tasks(r.n, r.block);
    const Sixteen shares(table.share);
    const bool streams = r.n >= ALONE && r.block % L == 0 && (uintptr_t)r.rest % (4 * L) == 0;
    auto work = [&](int64_t task) {
        const int64_t start = task * tasks.size, stop = least(r.n, start + tasks.size), end = least(r.n, stop + WHOLE - 1);
        const int64_t last = stop == r.n ? chunks.size * chunks.count : stop;  // behind the row there are zeros
        const int64_t room = tasks.size + chunks.count + WHOLE + 64;
        uint8_t* codes = new uint8_t[(size_t)room];
        Lanes lanes(key);
        for (int64_t at = start, next; at < end; at = next) {
            next = least(least(end, at + PIECE), (at / r.block + 1) * r.block);
            const float bound = bounds[at / r.block];
            // What the rest will be of is asked for here: memory has time while codes are made, and none while the rest is.
            const auto each = [&](int64_t i) {
                if (r.rest) fetch(r, at + i, 16);
            };
            int64_t done = 0;
#if GRACE_LANES == 16
            if (at % 4 == 0) done = round_many(table, y + at, next - at, bound, key, (uint64_t)at, codes + (at - start), each);
#endif
            const int64_t i = at + done, left = next - i;
            if (left) round_run(table, y + i, left, bound, lanes.at((uint64_t)i, left), codes + (i - start), each);
        }
        memset(codes + (end - start), 0, (size_t)(room - (end - start)));
        // A byte belongs to the task in which its first code is.
        chunks.each(start, last, [&](int64_t w, int64_t first, int64_t from, int64_t to) {
            from = first + ceil_div(from - first, WHOLE) * WHOLE;
            to = least(first + chunks.size, first + ceil_div(to - first, WHOLE) * WHOLE);
            if (from < to)
                pack_codes(table.bits, codes + (from - start), to - from, wire + w * width + packed_bytes(from - first, table.bits));
        });
        if (r.rest) {
            const Signs signs(shared, start, stop - start);
            float* said = new float[(size_t)padded(r.block)];
            for (int64_t at = start; at < stop; at += r.block) {
                const int64_t len = least(r.block, stop - at);
                const float bound = bounds[at / r.block];
                const uint8_t* here = codes + (at - start);
                const float *x = r.x + at, *e = r.memory + (r.memory ? at : 0);
                float* rest = r.rest + at;
                if (len == r.block && len >= 16 && bound <= SMALL) {
                    float table_[16];
                    for (int i = 0; i < 16; i++) table_[i] = table.share[i] * bound;
                    const Sixteen values(table_);
                    transform(
                        said, len, [&](int64_t i) { return values.at(load_u8(here + i)); },
                        [&](int64_t i, vf v) { store(said + i, v); });
                    // In a pass of its own: the last round of a transform would stream to eight places in turn.
                    const auto leave = [&](int64_t i, vf p) {
                        const vf v = p - signs.flip(loadf(said + i), at + i);
                        streams ? stream(rest + i, v) : store(rest + i, v);
                    };
                    if (streams) fetch_page(rest, at);
                    if (r.memory) {
                        for (int64_t i = 0; i < len; i += L) leave(i, loadf(x + i) + loadf(e + i));
                    } else {
                        for (int64_t i = 0; i < len; i += L) leave(i, loadf(x + i));
                    }
                    continue;
                }
                for (int64_t i = 0; i < len; i += L) store(said + i, shares.at(load_u8(here + i)) * splat(bound));
                for (int64_t i = len; i < padded(len); i++) said[i] = 0;
                transform_block(said, len, r.block, largest_of(said, len));
                signs.flip(said, at, len, said);
                for (int64_t i = 0; i < len; i++) rest[i] = (r.memory ? x[i] + e[i] : x[i]) - said[i];
            }
            fence();
            delete[] said;
        }
        delete[] codes;
    };
    parallel(tasks.per_row, enough_threads(r.n, threads), work);
}

// Sums of what W workers' codes of a chunk say, packed; below 2**24. Those of at most 8 bits are bytes all the way.
void sum(const uint8_t* received, int64_t W, int64_t width, int64_t n, const Table& table, int bits, uint8_t* out, int threads) {
    const Sixteen entries(table.entry);
    SixteenBytes small;
    for (int i = 0; i < 16; i++) small.all[i] = (uint8_t)table.entry[i];
    auto work = [&](int64_t task) {
        const int64_t at = task * PIECE, len = least(PIECE, n - at);
        alignas(64) uint8_t codes[PIECE + 64] = {};
        uint8_t* to = out + packed_bytes(at, bits);
        const auto codes_of = [&](int64_t w) {
            unpack_codes(table.bits, received + w * width + packed_bytes(at, table.bits), len, codes);
        };
        if (bits <= 8) {
            alignas(64) uint8_t total[PIECE + 64] = {};
            for (int64_t w = 0; w < W; w++) {
                codes_of(w);
                for (int64_t i = 0; i < len; i += 4 * L) store(total + i, load<vb>(total + i) + small.at(load<vb>(codes + i)));
            }
            return pack_codes(bits, total, len, to);
        }
        alignas(64) float total[PIECE + 16] = {};
        alignas(64) int32_t sums[PIECE + 16];
        for (int64_t w = 0; w < W; w++) {
            codes_of(w);
            for (int64_t i = 0; i < len; i += L) store(total + i, loadf(total + i) + entries.at(load_u8(codes + i)));
        }
        for (int64_t i = 0; i < len; i += L) store(sums + i, truncate(loadf(total + i)));
        pack_numbers(bits, sums, len, to);
    };
    parallel(ceil_div(n, PIECE), enough_threads(n * W, threads), work);
}

// out = R^-1 ((s factor - 1) bound) for the sums s of all chunks, of which none is above `most`.
int64_t decode(const uint8_t* sums, const Chunks& chunks, int64_t width, int bits, int64_t most, const float* bounds, float* out,
               int64_t n, int64_t block, double factor, const Key& shared, int threads) {
    const RotationTasks tasks(n, block);
    int64_t refused = OK;
    auto work = [&](int64_t task) {
        const int64_t start = task * tasks.size, stop = least(n, start + tasks.size);
        const int64_t last = stop == n ? chunks.size * chunks.count : stop;
        const Signs signs(shared, start, stop - start);
        const size_t room = (size_t)(WHOLE + tasks.size + chunks.count + 64);
        uint8_t* bytes = new uint8_t[room]();
        int32_t* wide = bits > 8 ? new int32_t[room]() : nullptr;
        float* y = new float[(size_t)padded(block)];
        // Only what a task begins with may begin within a byte: then what comes before it is read, too.
        chunks.each(start, last, [&](int64_t w, int64_t first, int64_t from, int64_t to) {
            const int64_t whole = first + (from - first) / WHOLE * WHOLE, at = WHOLE + whole - start;
            const uint8_t* in = sums + w * width + packed_bytes(whole - first, bits);
            bits > 8 ? unpack_numbers(bits, in, to - whole, wide + at) : unpack_codes(bits, in, to - whole, bytes + at);
        });
        bool bad = false;
        if (bits > 8) {
            for (int64_t i = WHOLE; i < WHOLE + last - start; i++) bad |= (uint32_t)wide[i] > (uint32_t)most;
        } else {
            bad = any_above(bytes + WHOLE, last - start, (uint8_t)least(most, 255), [](vb v) { return v; });
        }
        if (bad) __atomic_store_n(&refused, (int64_t)BAD_CODE, __ATOMIC_RELAXED);
        for (int64_t at = start; at < stop; at += block) {
            const int64_t len = least(block, stop - at), here = WHOLE + at - start;
            const half_vf bound = bounds[at / block] - half_vf{};
            for (int64_t i = 0; i < len; i += L) {
                const vf s = to_float(bits > 8 ? load<vi>(wide + here + i) : load_u8(bytes + here + i));
                store(y + i, s);
                for (int k = 0; k < 2; k++) {
                    float* half = y + i + k * (L / 2);
                    const vd share = __builtin_convertvector(load<half_vf>(half), vd) * factor - 1;
                    store(half, __builtin_convertvector(share, half_vf) * bound);
                }
            }
            for (int64_t i = len; i < padded(len); i++) y[i] = 0;
            transform_block(y, len, block, largest_of(y, len));
            signs.flip(y, at, len, y);
            for (int64_t i = 0; i < len; i += L) store_first(out + at + i, loadf(y + i), len - i);
        }
        delete[] y;
        delete[] wide;
        delete[] bytes;
    };
    parallel(tasks.per_row, enough_threads(n, threads), work);
    return refused;
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// x, memory: null without a rest
GRACE_EXPORT(encode_entries)(const float* y, const float* bounds, int64_t n, int64_t block, const float* table, int size,
                             int64_t count, uint8_t* wire, int64_t width, uint32_t k0, uint32_t k1, uint32_t step, const float* x,
                             const float* memory, float* rest, uint32_t r0, uint32_t r1, uint32_t rstep, int threads) {
    using namespace grace::GRACE_TARGET;
    encode(Rows{x, memory, rest, 1, n, block}, y, bounds, Table(table, size), Chunks{ceil_div(n, count), count}, wire, width,
           Key{k0, k1, step}, Key{r0, r1, rstep}, threads);
    return OK;
}

GRACE_EXPORT(sum_entries)(const uint8_t* received, int64_t W, int64_t width, int64_t n, const float* table, int size, int bits,
                          uint8_t* out, int threads) {
    using namespace grace::GRACE_TARGET;
    sum(received, W, width, n, Table(table, size), bits, out, threads);
    return OK;
}

GRACE_EXPORT(decode_entries)(const uint8_t* sums, int64_t count, int64_t width, int bits, int64_t most, const float* bounds,
                             float* out, int64_t n, int64_t block, double factor, uint32_t r0, uint32_t r1, uint32_t rstep,
                             int threads) {
    using namespace grace::GRACE_TARGET;
    return decode(sums, Chunks{ceil_div(n, count), count}, width, bits, most, bounds, out, n, block, factor, Key{r0, r1, rstep},
                  threads);
}
