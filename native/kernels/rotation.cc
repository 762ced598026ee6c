// Rotations of blocks, and codes of rotated blocks: centroids of the normal distribution and one scale.
//
//   wire of a row:  the key of its stream, if it was rotated in private (two uint32); the scales of its blocks (float32); the
//                   codes of its rotated numbers, packed
#include "../rotation.h"

namespace grace {
namespace GRACE_TARGET {
namespace {

// Copies a block into a buffer, zeros up to a multiple of sixteen, and out of it.
GRACE_INLINE void copy_in(const float* x, int64_t len, float* buffer) {
    memcpy(buffer, x, (size_t)len * 4);
    for (int64_t i = len; i < padded(len); i++) buffer[i] = 0;
}

// out = H x, R x (forward) or R^-1 x, block by block.
enum Way { PLAIN, FORWARD, BACK };
template <Way way>
void rotate_rows(const float* x, float* out, int64_t rows, int64_t n, int64_t block, const Key& key, int threads) {
    const RotationTasks tasks(n, block);
    auto work = [&](int64_t task) {
        const int64_t row = task / tasks.per_row, start = task % tasks.per_row * tasks.size, stop = least(n, start + tasks.size);
        const Signs signs(key, start, way == PLAIN ? 0 : stop - start);
        float* y = new float[(size_t)padded(block)];
        for (int64_t at = start; at < stop; at += block) {
            const int64_t len = least(block, stop - at);
            copy_in(x + row * n + at, len, y);
            const int32_t most = largest_of(y, padded(len));
            if (way == FORWARD) signs.flip(y, at, len, y);
            transform_block(y, len, block, most);
            if (way == BACK) signs.flip(y, at, len, y);
            memcpy(out + row * n + at, y, (size_t)len * 4);
        }
        delete[] y;
    };
    parallel(rows * tasks.per_row, enough_threads(rows * n, threads), work);
}

// y = R p of one row, and the norms of its blocks. Returns whether all numbers were finite.
bool rotate_and_measure(const Rows& r, float* out, float* norms, const Key& key, int threads) {
    const RotationTasks tasks(r.n, r.block);
    const bool streams = r.n >= ALONE && r.block % 16 == 0 && (uintptr_t)out % (4 * L) == 0;
    int32_t bad = 0;
    auto work = [&](int64_t task) {
        const int64_t start = task * tasks.size, stop = least(r.n, start + tasks.size);
        const Signs signs(key, start, stop - start);
        float* y = new float[(size_t)padded(r.block)];
        int32_t seen = 0;
        for (int64_t at = start; at < stop; at += r.block) {
            const int64_t len = least(r.block, stop - at);
            const float *x = r.x + at, *e = r.memory + (r.memory ? at : 0);
            const auto store_y = [&](int64_t i, vf v) { store(y + i, v); };
            vi largest_ = {};
            const auto read = [&](int64_t i, vf v) {
                if (i % 16 == 0) fetch(r, at + AHEAD + i, 16);
                largest_ = max(largest_, magnitude(as_int(v)));
                return signs.flip(v, at + i);
            };
            int32_t most = INT32_MAX;
            if (len == r.block && len >= 16) {
                if (r.memory) {
                    transform(y, len, [&](int64_t i) { return read(i, loadf(x + i) + loadf(e + i)); }, store_y);
                } else {
                    transform(y, len, [&](int64_t i) { return read(i, loadf(x + i)); }, store_y);
                }
                most = largest(largest_);
            }
            if (most > LARGE) {  // the last block, a short one, or one that is transformed in another way
                most = gather(r, at, len, y);
                signs.flip(y, at, len, y);
                for (int64_t i = len; i < padded(len); i++) y[i] = 0;
                transform_block(y, len, r.block, most);
            }
            seen = most > seen ? most : seen;
            if (streams && len % 16 == 0) {
                fetch_page(out + at, at);
                norms[at / r.block] = norm_of(y, len, [&](int64_t i) {
                    for (int64_t j = i; j < i + 16; j += L) stream(out + at + j, loadf(y + j));
                });
            } else {
                norms[at / r.block] = norm_of(y, len);
                for (int64_t i = 0; i < len; i += L) store_first(out + at + i, loadf(y + i), len - i);
            }
        }
        fence();
        delete[] y;
        if (seen >= 0x7F800000) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
    };
    parallel(tasks.per_row, enough_threads(r.n, threads), work);
    return !bad;
}

constexpr int64_t KEY = 8;  // bytes of a key in front of a wire

// The centroids of `bits` bits, ascending, and what is between each and the next.
struct Book {
    int bits, size;
    float centroid[16] = {}, middle[16] = {};
#if GRACE_LANES == 16
    vf centroids, middles;
#endif
    Book(const float* book, int bits_) : bits(bits_), size(1 << bits_) {
        for (int i = 0; i < 16; i++) centroid[i] = book[i < size ? i : size - 1], middle[i] = __builtin_inff();
        for (int i = 0; i + 1 < size; i++) middle[i] = (float)(((double)centroid[i + 1] + (double)centroid[i]) / 2);
#if GRACE_LANES == 16
        centroids = loadf(centroid), middles = loadf(middle);
#endif
    }
    float last() const { return centroid[size - 1]; }

    // The position of the nearest centroid, of two equally near ones the second; and the centroid.
    GRACE_MEMBER vi nearest(vf u, vf& of) const {
#if GRACE_LANES == 16
        __m512i c = _mm512_setzero_si512();
        for (int step = size / 2; step; step /= 2) {
            const __m512 edge = _mm512_permutexvar_ps(_mm512_add_epi32(c, _mm512_set1_epi32(step - 1)), (__m512)middles);
            c = _mm512_mask_add_epi32(c, _mm512_cmp_ps_mask((__m512)u, edge, _CMP_GE_OQ), c, _mm512_set1_epi32(step));
        }
        of = lookup(centroids, (vi)c);
        return (vi)c;
#else
        vi c = {};
        of = splat(centroid[0]);
        for (int j = 0; j + 1 < size; j++) {
            const vi beyond = u >= splat(middle[j]);
            c -= beyond;
            of = select(beyond, splat(centroid[j + 1]), of);
        }
        return c;
#endif
    }
};

// y [len], zeros behind, becomes its centroids times the block's scale, which is returned.
float encode_block(const Book& book, bool mse, float* y, float* centroids, int64_t len, uint8_t* codes) {
    float rms = norm_of(y, len) / (float)__builtin_sqrt((double)len);
    if (rms < TINY) rms = 0;
    const vf by = splat(rms > 0 ? rms : 1.0f);
    vi most = {};
    for (int64_t i = 0; i < len; i += L) {
        const vf u = rms > 0 ? loadf(y + i) / by : vf{};
        vf c;
        store_u8(codes + i, book.nearest(u, c));
        store(y + i, u), store(centroids + i, c);
        if (i + L <= len) most = max(most, magnitude(as_int(c)));
    }
    for (int64_t i = len; i < padded(len); i++) centroids[i] = 0;
    for (int64_t i = len / L * L; i < padded(len); i += L) most = max(most, magnitude(load<vi>(centroids + i)));
    const double product = dot(centroids, y, len);
    const double factor = mse ? product / dot(centroids, centroids, len) : dot(y, y, len) / (product > 1e-300 ? product : 1e-300);
    const int32_t top = largest(most);
    float far;
    memcpy(&far, &top, 4);
    const float greatest = (1 / (far > 1 ? far : 1)) * (float)(0x1.fffffep127 * (1 - 0x1p-20));
    const double exact = factor * (double)rms;
    const float scale = (float)(exact < (double)greatest ? exact : (double)greatest);
    for (int64_t i = 0; i < len; i += L) store(centroids + i, loadf(centroids + i) * splat(scale));
    return scale;
}

bool encode(const Rows& r, const Book& book, bool mse, bool keyed, const Key& key, uint8_t* wire, int64_t stride, int threads) {
    const RotationTasks tasks(r.n, r.block);
    const int64_t heads = 4 * r.blocks();
    int32_t bad = 0;
    if (keyed) {
        const uint32_t words[2] = {key.k0, key.k1};
        for (int64_t row = 0; row < r.rows; row++) memcpy(wire + row * stride, words, KEY);
        wire += KEY;  // rows are as far apart as before
    }
    auto work = [&](int64_t task) {
        const int64_t row = task / tasks.per_row, start = task % tasks.per_row * tasks.size, stop = least(r.n, start + tasks.size);
        const Signs signs(key, start, stop - start);
        const int64_t room = padded(r.block);
        float *p = new float[(size_t)(3 * room)], *y = p + room, *c = y + room;
        uint8_t* codes = new uint8_t[(size_t)tasks.size + 64];
        int32_t seen = 0;
        for (int64_t at = start; at < stop; at += r.block) {
            const int64_t len = least(r.block, stop - at), first = row * r.n + at;
            const int32_t most = gather(r, first, len, p);
            seen = most > seen ? most : seen;
            fetch(r, first + len, least(len, r.rows * r.n - first - len));
            signs.flip(p, at, len, y);
            for (int64_t i = len; i < padded(len); i++) y[i] = 0;
            transform_block(y, len, r.block, most);
            const float scale = encode_block(book, mse, y, c, len, codes + (at - start));
            memcpy(wire + row * stride + at / r.block * 4, &scale, 4);
            if (!r.rest) continue;
            transform_block(c, len, r.block, largest_of(c, len));
            signs.flip(c, at, len, c);
            float* rest = r.rest + first;
            int64_t i = 0;
            for (; i + L <= len; i += L) store(rest + i, loadf(p + i) - loadf(c + i));
            for (; i < len; i++) rest[i] = p[i] - c[i];
        }
        pack_codes(book.bits, codes, stop - start, wire + row * stride + heads + packed_bytes(start, book.bits));
        delete[] p;
        delete[] codes;
        if (seen >= 0x7F800000) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
    };
    parallel(r.rows * tasks.per_row, enough_threads(r.rows * r.n, threads), work);
    return !bad;
}

// Whether a scale is one that a sender writes, with its codes [0, len) from number `at` of the task on.
bool fits(const Book& book, float scale, const uint8_t* codes, int64_t len) {
    if (!(scale >= 0 && scale <= GREATEST)) return false;
    if (book.last() * scale <= GREATEST) return true;
    for (int64_t i = 0; i < len; i++) {
        const float value = book.centroid[codes[i]] * scale;
        if (!(value <= GREATEST && value >= -GREATEST)) return false;
    }
    return true;
}

// y [0, len) += what up to GROUP wires say.
template <int wires>
GRACE_INLINE void add_codes(const uint8_t* const* codes, const Sixteen* tables, int64_t count, int64_t len, float* y) {
    for (int64_t i = 0; i < len; i += L) {
        vf sum = loadf(y + i);
        for (int64_t w = 0; w < (wires ? wires : count); w++) sum += tables[w].at(load_u8(codes[w] + i));
        store(y + i, sum);
    }
}

int64_t sum(const Book& book, const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, float weight,
            bool accumulate, const Key& key, int threads) {
    constexpr int64_t GROUP = 8;  // wires that are added up before their sum is stored
    const RotationTasks tasks(n, block);
    const int64_t heads = 4 * ceil_div(n, block);
    int64_t refused = OK;
    auto work = [&](int64_t task) {
        const int64_t start = task * tasks.size, stop = least(n, start + tasks.size);
        const int64_t unit = block < SIGNS ? SIGNS : block;  // codes of whole bytes
        const Signs signs(key, start, stop - start);
        float* y = new float[(size_t)padded(unit)];
        uint8_t* codes = new uint8_t[(size_t)(GROUP * (unit + 64))];
        int64_t fault = OK;
        for (int64_t at = start; at < stop; at += unit) {
            const int64_t some = least(unit, stop - at);
            for (int64_t i = 0; i < padded(some); i++) y[i] = 0;
            for (int64_t w = 0; w < W; w += GROUP) {
                const int64_t group = least(GROUP, W - w);
                for (int64_t k = 0; k < group; k++) {
                    uint8_t* to = codes + k * (unit + 64);
                    unpack_codes(book.bits, wires[w + k] + heads + packed_bytes(at, book.bits), some, to);
                    memset(to + some, 0, 16);
                }
                for (int64_t i = 0; i < some; i += block) {
                    const int64_t len = least(block, some - i);
                    const uint8_t* here[GROUP];
                    alignas(64) unsigned char room[GROUP * sizeof(Sixteen)];
                    Sixteen* tables = (Sixteen*)room;
                    for (int64_t k = 0; k < group; k++) {
                        float scale, table[16];
                        memcpy(&scale, wires[w + k] + (at + i) / block * 4, 4);
                        here[k] = codes + k * (unit + 64) + i;
                        if (!fits(book, scale, here[k], len)) fault = BAD_HEAD;
                        for (int j = 0; j < 16; j++) table[j] = book.centroid[j] * (scale * weight);
                        const Sixteen one(table);
                        memcpy(tables + k, &one, sizeof one);
                    }
                    if (block < L) {
                        for (int64_t j = 0; j < len; j++)
                            for (int64_t k = 0; k < group; k++) {
                                float table[16];
                                memcpy(table, tables + k, sizeof table);
                                y[i + j] += table[here[k][j]];
                            }
                    } else if (group == GROUP) {
                        add_codes<GROUP>(here, tables, group, len, y + i);
                    } else {
                        add_codes<0>(here, tables, group, len, y + i);
                    }
                }
            }
            for (int64_t i = some; i < padded(some); i++) y[i] = 0;  // what codes behind the last number said
            for (int64_t i = 0; i < some; i += block) {
                const int64_t len = least(block, some - i);
                transform_block(y + i, len, block, len < L ? largest_few(y + i, len) : largest_of(y + i, len));
            }
            signs.flip(y, at, some, y);
            float* to = out + at;
            int64_t i = 0;
            const vf none = {};
            for (; i + L <= some; i += L) store(to + i, (accumulate ? loadf(to + i) : none) + loadf(y + i));
            for (; i < some; i++) to[i] = (accumulate ? to[i] : 0.0f) + y[i];
        }
        delete[] y;
        delete[] codes;
        if (fault != OK) __atomic_store_n(&refused, fault, __ATOMIC_RELAXED);
    };
    parallel(tasks.per_row, enough_threads(n, threads), work);
    return refused;
}

// As sum, of wires that begin with keys: each is rotated back by its own, and added to out.
int64_t sum_keyed(const Book& book, const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, float weight,
                  bool accumulate, uint32_t step, int threads) {
    const RotationTasks tasks(n, block);
    const int64_t heads = KEY + 4 * ceil_div(n, block);
    int64_t refused = OK;
    auto work = [&](int64_t task) {
        const int64_t start = task * tasks.size, stop = least(n, start + tasks.size);
        const int64_t unit = block < SIGNS ? SIGNS : block;  // codes of whole bytes
        float* y = new float[(size_t)padded(unit)];
        uint8_t* codes = new uint8_t[(size_t)(unit + 64)];
        int64_t fault = OK;
        if (!accumulate)
            for (int64_t i = start; i < stop; i++) out[i] = 0;
        for (int64_t w = 0; w < W; w++) {
            uint32_t key[2];
            memcpy(key, wires[w], KEY);
            const Signs signs(Key{key[0], key[1], step}, start, stop - start);
            for (int64_t at = start; at < stop; at += unit) {
                const int64_t some = least(unit, stop - at);
                unpack_codes(book.bits, wires[w] + heads + packed_bytes(at, book.bits), some, codes);
                memset(codes + some, 0, 16);
                for (int64_t i = 0; i < some; i += block) {
                    const int64_t len = least(block, some - i);
                    float scale, table[16];
                    memcpy(&scale, wires[w] + KEY + (at + i) / block * 4, 4);
                    if (!fits(book, scale, codes + i, len)) fault = BAD_HEAD;
                    for (int j = 0; j < 16; j++) table[j] = book.centroid[j] * (scale * weight);
                    if (block < L) {
                        for (int64_t j = i; j < i + len; j++) y[j] = table[codes[j]];
                        transform_block(y + i, len, block, largest_few(y + i, len));
                        continue;
                    }
                    const Sixteen said(table);
                    for (int64_t j = i; j < i + len; j += L) store(y + j, said.at(load_u8(codes + j)));
                    for (int64_t j = i + len; j < i + ceil_div(len, L) * L; j++) y[j] = 0;  // what codes behind the last say
                    transform_block(y + i, len, block, len < L ? largest_few(y + i, len) : largest_of(y + i, len));
                }
                signs.flip(y, at, some, y);
                float* to = out + at;
                int64_t i = 0;
                for (; i + L <= some; i += L) store(to + i, loadf(to + i) + loadf(y + i));
                for (; i < some; i++) to[i] += y[i];
            }
        }
        delete[] y;
        delete[] codes;
        if (fault != OK) __atomic_store_n(&refused, fault, __ATOMIC_RELAXED);
    };
    parallel(tasks.per_row, enough_threads(n, threads), work);
    return refused;
}

}  // namespace
}  // namespace GRACE_TARGET
}  // namespace grace

// way: 0 H x, 1 R x, 2 R^-1 x
GRACE_EXPORT(rotate)(const float* x, float* out, int64_t rows, int64_t n, int64_t block, int way, uint32_t k0, uint32_t k1,
                     uint32_t step, int threads) {
    using namespace grace::GRACE_TARGET;
    const Key key = {k0, k1, step};
    if (way == PLAIN) rotate_rows<PLAIN>(x, out, rows, n, block, key, threads);
    if (way == FORWARD) rotate_rows<FORWARD>(x, out, rows, n, block, key, threads);
    if (way == BACK) rotate_rows<BACK>(x, out, rows, n, block, key, threads);
    return OK;
}

GRACE_EXPORT(rotate_norms)(const float* x, const float* memory, float* out, int64_t n, int64_t block, float* norms, uint32_t k0,
                           uint32_t k1, uint32_t step, int threads) {
    using namespace grace::GRACE_TARGET;
    return rotate_and_measure(Rows{x, memory, nullptr, 1, n, block}, out, norms, Key{k0, k1, step}, threads);
}

GRACE_EXPORT(encode_rotated)(const float* x, const float* memory, float* rest, int64_t rows, int64_t n, int64_t block,
                             uint8_t* wire, int64_t stride, const float* book, int bits, int mse, int keyed, uint32_t k0,
                             uint32_t k1, uint32_t step, int threads) {
    using namespace grace::GRACE_TARGET;
    return encode(Rows{x, memory, rest, rows, n, block}, Book(book, bits), mse != 0, keyed != 0, Key{k0, k1, step}, wire, stride,
                  threads);
}

GRACE_EXPORT(sum_rotated)(const uint8_t* const* wires, int64_t W, float* out, int64_t n, int64_t block, const float* book,
                          int bits, int keyed, float weight, int accumulate, uint32_t k0, uint32_t k1, uint32_t step,
                          int threads) {
    using namespace grace::GRACE_TARGET;
    if (keyed) return sum_keyed(Book(book, bits), wires, W, out, n, block, weight, accumulate != 0, step, threads);
    return sum(Book(book, bits), wires, W, out, n, block, weight, accumulate != 0, Key{k0, k1, step}, threads);
}
