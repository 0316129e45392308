// The engine's kernels, one source for both GPU makers. What differs between them is in prelude.h.
//
// Arithmetic is f32. Weights are bf16; a weight that bf16 cannot hold exactly is the sum of two or three bf16
// planes that follow each other along k. The rows of a pass are split into three bf16 planes that add up to
// the f32 value exactly, so the matrix units lose nothing but the order of the sums.
//
// Batch invariance: a row is one column of the matrix units' tile, columns do not meet, and the order in which
// a row's products are added depends on the shape of the weights only. So a row's result is the same to
// the bit however many rows a pass has. Partial sums meet in a fixed order, never through atomics.
//
// Shapes are row major. `rows` is at most MAX_ROWS here; longer passes go through the dense kernels.

#include "prelude.h"

#define MAX_ROWS 16
// Planes of a row's value: high, middle and low eight bits of its mantissa.
#define PLANES 3
// Positions of the cache that one block of attention takes: fixed, so that sums do not depend on lengths.
#define CHUNK 128
// Query heads of one key/value head that are taken together.
#define GROUP 8

// Splits `value` into its planes at index `at`.
DEVICE void store_planes(u16 *planes, u64 plane, u64 at, float value) {
    u16 high = to_bf16(value);
    float rest = value - from_bf16(high);
    u16 middle = to_bf16(rest);
    planes[at] = high;
    planes[plane + at] = middle;
    planes[2 * plane + at] = to_bf16(rest - from_bf16(middle));
}

// The sum over a block of `waves` waves, the same in every thread. `scratch` holds one value a wave.
DEVICE float block_sum(float value, float *scratch, u32 waves) {
    value = wave_sum(value);
    barrier();
    if (lane() == 0) scratch[thread_x() / 32] = value;
    barrier();
    float sum = 0;
    for (u32 wave = 0; wave < waves; ++wave) sum += scratch[wave];
    return sum;
}

// x[row] = the embedding of tokens[row]. `table`: [vocab, w_planes, hidden].
struct Embed {
    float *x;
    const u32 *tokens;
    const u16 *table;
    u32 hidden, w_planes;
};
KERNEL THREADS(256) void embed(Embed a) {
    u32 row = block_x();
    const u16 *from = a.table + (u64)a.tokens[row] * a.w_planes * a.hidden;
    for (u32 i = thread_x(); i < a.hidden; i += 256) {
        float value = 0;
        for (u32 plane = a.w_planes; plane-- > 0;) value += from_bf16(from[plane * a.hidden + i]);
        a.x[(u64)row * a.hidden + i] = value;
    }
}

// x[row] += sum over splits of partial[split][row] + bias, then planes[row] = RMS norm of x[row] times weight.
struct Norm {
    float *x;             // [rows, hidden]
    const float *partial; // [splits, rows, partial_width]
    const float *bias;    // [hidden] or null
    const float *weight;  // [hidden], or null: only the sum
    u16 *planes;          // [PLANES, MAX_ROWS, width]
    u32 hidden, width, partial_width, splits, rows, first;
    float epsilon;
};
KERNEL THREADS(1024) void norm(Norm a) {
    SHARED float scratch[32];
    u32 row = block_x();
    float *x = a.x + (u64)(row + a.first) * a.hidden;
    float squares = 0;
    for (u32 i = thread_x(); i < a.hidden; i += 1024) {
        float value = x[i];
        for (u32 split = 0; split < a.splits; ++split)
            value += a.partial[((u64)split * a.rows + row) * a.partial_width + i];
        if (a.bias) value += a.bias[i];
        x[i] = value;
        squares += value * value;
    }
    if (!a.weight) return;
    float scale = rsqrt(block_sum(squares, scratch, 32) / (float)a.hidden + a.epsilon);
    u64 plane = (u64)MAX_ROWS * a.width;
    for (u32 i = thread_x(); i < a.hidden; i += 1024)
        store_planes(a.planes, plane, (u64)row * a.width + i, x[i] * scale * a.weight[i]);
}

// ---- a matrix times few rows --------------------------------------------------------------------

// Steps whose weights are on their way at once.
#define UNROLL 4
// Waves of a block: four tiles of outputs, each by two waves that share its inputs.
#define FEW_TILES 4
#define FEW_THREADS (FEW_TILES * 2 * 32)

// Adds to `sums` the products of steps `first..last` for one tile of outputs. `weights` points at its first
// output; `width` is k, the inputs of one plane.
template <int TILES>
DEVICE void accumulate(Sums *sums, const u16 *weights, u64 weight_stride, const u16 *rows, u32 width, u32 count,
                       u32 first, u32 last) {
    u64 plane = (u64)MAX_ROWS * width;
    u32 steps = width / 32;
    u32 at = first % steps;
    for (u32 step = first; step < last; step += UNROLL) {
        Weights w[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (step + u < last) w[u] = load_weights(weights + (u64)(step + u) * 32, weight_stride);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (step + u >= last) break;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int p = PLANES - 1; p >= 0; --p) {
                    u32 from = tile * TILE_ROWS;
                    Rows x = load_rows(rows + p * plane + (u64)from * width + at * 32, width,
                                       count > from ? count - from : 0);
                    multiply(sums[tile], w[u], x);
                }
            at = at + 1 == steps ? 0 : at + 1;
        }
    }
}

struct Few {
    void *out;          // f32 partial [splits, rows, outputs], or planes of the gated rows
    const u16 *planes;  // [PLANES, MAX_ROWS, width]
    const u16 *weights; // [outputs, w_planes, width]
    const float *bias;  // [outputs] or null; gated only
    u32 outputs, width, w_planes, rows, splits, out_width;
};

// The sums of this block's four tiles, each complete in the wave that has `half` zero.
template <int TILES>
DEVICE void tile_sums(const Few &a, Sums *sums, float (*scratch)[ELEMENTS * TILES * 32]) {
    u32 wave = thread_x() / 32, tile = wave / 2, half = wave % 2;
    u32 steps = a.w_planes * a.width / 32, parts = 2 * a.splits, part = 2 * block_y() + half;
    u64 stride = (u64)a.w_planes * a.width;
    const u16 *weights = a.weights + (u64)(block_x() * FEW_TILES + tile) * 16 * stride;
    for (int t = 0; t < TILES; ++t)
        for (int i = 0; i < ELEMENTS; ++i) sums[t][i] = 0;
    accumulate<TILES>(sums, weights, stride, a.planes, a.width, a.rows, steps * part / parts,
                      steps * (part + 1) / parts);
    for (int t = 0; t < TILES; ++t)
        for (int i = 0; i < ELEMENTS; ++i)
            if (half == 1) scratch[tile][(t * ELEMENTS + i) * 32 + lane()] = sums[t][i];
    barrier();
    for (int t = 0; t < TILES; ++t)
        for (int i = 0; i < ELEMENTS; ++i)
            if (half == 0) sums[t][i] += scratch[tile][(t * ELEMENTS + i) * 32 + lane()];
}

template <int TILES>
DEVICE void few(const Few &a) {
    SHARED float scratch[FEW_TILES][ELEMENTS * TILES * 32];
    Sums sums[TILES];
    tile_sums<TILES>(a, sums, scratch);
    u32 wave = thread_x() / 32;
    if (wave % 2) return;
    float *out = (float *)a.out + (u64)block_y() * a.rows * a.outputs + (block_x() * FEW_TILES + wave / 2) * 16;
    for (u32 t = 0; t < TILES; ++t)
        for (u32 i = 0; i < ELEMENTS; ++i) {
            u32 row = t * TILE_ROWS + tile_n(i);
            if (row < a.rows) out[(u64)row * a.outputs + tile_m(i)] = sums[t][i];
        }
}

// Eight gates and their eight ups are one tile of outputs; silu(gate) * up goes on as planes.
template <int TILES>
DEVICE void gated(const Few &a) {
    SHARED float scratch[FEW_TILES][ELEMENTS * TILES * 32];
    Sums sums[TILES];
    tile_sums<TILES>(a, sums, scratch);
    u32 wave = thread_x() / 32;
    if (wave % 2) return;
    u32 tile = block_x() * FEW_TILES + wave / 2;
    for (u32 t = 0; t < TILES; ++t)
        for (u32 i = 0; i < ELEMENTS / 2; ++i) {
            u32 row = t * TILE_ROWS + tile_n(i), m = tile_m(i), column = tile * 8 + m;
            if (row >= a.rows || column >= a.out_width) continue;
            float gate = sums[t][i], up = sums[t][i + ELEMENTS / 2];
            if (a.bias) gate += a.bias[tile * 16 + m], up += a.bias[tile * 16 + m + 8];
            float value = gate / (1.0f + exp2(gate * -1.44269504f)) * up;
            store_planes((u16 *)a.out, (u64)MAX_ROWS * a.out_width, (u64)row * a.out_width + column, value);
        }
}

KERNEL THREADS(FEW_THREADS) void few_8(Few a) { few<8 / TILE_ROWS + (TILE_ROWS > 8)>(a); }
KERNEL THREADS(FEW_THREADS) void few_16(Few a) { few<16 / TILE_ROWS>(a); }
KERNEL THREADS(FEW_THREADS) void gated_8(Few a) { gated<8 / TILE_ROWS + (TILE_ROWS > 8)>(a); }
KERNEL THREADS(FEW_THREADS) void gated_16(Few a) { gated<16 / TILE_ROWS>(a); }

// ---- rotary embedding, and the cache ------------------------------------------------------------

struct Rotate {
    const float *partial;  // [splits, rows, partial_width]: q heads, k heads, v heads
    const float *bias;     // [(heads + 2 kv_heads) * head_dim] or null
    const float *q_norm;   // [head_dim] or null
    const float *k_norm;   // [head_dim] or null
    const float *cosines;  // [context, head_dim / 2]
    const float *sines;    // [context, head_dim / 2]
    float *q;              // [rows, heads * head_dim], times `scale`
    float *keys, *values;  // [kv_heads, context, head_dim]
    const u32 *start;      // position of the first row
    u32 heads, kv_heads, head_dim, context, splits, rows, partial_width;
    float epsilon, scale;
};
KERNEL THREADS(128) void rotate(Rotate a) {
    SHARED float scratch[4];
    u32 row = block_x(), head = block_y(), half = a.head_dim / 2, i = thread_x();
    u32 position = *a.start + row;
    bool is_query = head < a.heads, is_key = !is_query && head < a.heads + a.kv_heads;
    float low = 0, high = 0;
    if (i < half) {
        u64 at = (u64)row * a.partial_width + head * a.head_dim + i;
        u64 split_stride = (u64)a.rows * a.partial_width;
        for (u32 split = 0; split < a.splits; ++split) {
            low += a.partial[split * split_stride + at];
            high += a.partial[split * split_stride + at + half];
        }
        if (a.bias) low += a.bias[head * a.head_dim + i], high += a.bias[head * a.head_dim + i + half];
    }
    const float *weight = is_query ? a.q_norm : is_key ? a.k_norm : 0;
    if (weight) {
        float scale = rsqrt(block_sum(low * low + high * high, scratch, 4) / (float)a.head_dim + a.epsilon);
        if (i < half) low *= scale * weight[i], high *= scale * weight[i + half];
    }
    if (i >= half) return;
    if (is_query || is_key) {
        float c = a.cosines[(u64)position * half + i], s = a.sines[(u64)position * half + i];
        float turned = low * c - high * s;
        high = high * c + low * s;
        low = turned;
    }
    float *to;
    if (is_query) {
        to = a.q + ((u64)row * a.heads + head) * a.head_dim;
        low *= a.scale, high *= a.scale;
    } else {
        u32 kv = (head - a.heads) % a.kv_heads;
        to = (is_key ? a.keys : a.values) + ((u64)kv * a.context + position) * a.head_dim;
    }
    to[i] = low;
    to[i + half] = high;
}

// ---- attention of few rows over the cache -------------------------------------------------------

struct Attend {
    const float *q;             // [rows, heads * head_dim], scaled by log2(e) / sqrt(head_dim)
    const float *keys, *values; // [kv_heads, context, head_dim]
    float *sums;                // [rows, heads, chunks, head_dim]: of weights times values
    float *stats;               // [rows, heads, chunks, 2]: maximum score, sum of weights
    u16 *planes;                // [PLANES, MAX_ROWS, heads * head_dim]
    const u32 *start;
    u32 heads, kv_heads, head_dim, context, chunks, width;
};

// One block: one row, one key/value head, one chunk of positions, all query heads of that head.
KERNEL THREADS(256) void attend(Attend a) {
    SHARED float q[GROUP * 256];
    SHARED float scores[GROUP][CHUNK];
    SHARED float sums[256 * GROUP];
    u32 kv = block_x(), chunk = block_y(), row = block_z(), t = thread_x(), wave = t / 32;
    u32 position = *a.start + row, from = chunk * CHUNK;
    if (from > position) return;
    u32 count = min_of(position + 1 - from, CHUNK), dim = a.head_dim, group = a.heads / a.kv_heads;
    const float *keys = a.keys + ((u64)kv * a.context + from) * dim;
    const float *values = a.values + ((u64)kv * a.context + from) * dim;
    for (u32 base = 0; base < group; base += GROUP) {
        u32 heads = min_of(group - base, GROUP);
        u64 first = (u64)row * a.heads + kv * group + base;
        barrier();
        for (u32 i = t; i < heads * dim; i += 256) q[i] = a.q[first * dim + i];
        barrier();
        for (u32 p = wave; p < count; p += 8) {
            float dot[GROUP] = {};
            for (u32 d = lane(); d < dim; d += 32) {
                float key = keys[(u64)p * dim + d];
#pragma unroll
                for (u32 h = 0; h < GROUP; ++h)
                    if (h < heads) dot[h] += key * q[h * dim + d];
            }
#pragma unroll
            for (u32 h = 0; h < GROUP; ++h)
                if (h < heads) {
                    float score = wave_sum(dot[h]);
                    if (lane() == 0) scores[h][p] = score;
                }
        }
        barrier();
        // One wave a head: weights relative to the chunk's own maximum.
        if (wave < heads) {
            float top = -3.0e38f, total = 0;
            for (u32 p = lane(); p < count; p += 32) top = max_of(top, scores[wave][p]);
            top = wave_max(top);
            for (u32 p = lane(); p < count; p += 32) {
                float weight = exp2(scores[wave][p] - top);
                scores[wave][p] = weight;
                total += weight;
            }
            total = wave_sum(total);
            if (lane() == 0) {
                float *stats = a.stats + ((first + wave) * a.chunks + chunk) * 2;
                stats[0] = top, stats[1] = total;
            }
        }
        barrier();
        u32 parts = 256 / dim, part = t / dim, d = t % dim;
        if (part < parts) {
            float sum[GROUP] = {};
            for (u32 p = part; p < count; p += parts) {
                float value = values[(u64)p * dim + d];
#pragma unroll
                for (u32 h = 0; h < GROUP; ++h)
                    if (h < heads) sum[h] += scores[h][p] * value;
            }
#pragma unroll
            for (u32 h = 0; h < GROUP; ++h) sums[h * 256 + t] = sum[h];
        }
        barrier();
        for (u32 i = t; i < heads * dim; i += 256) {
            u32 h = i / dim, d = i % dim;
            float sum = 0;
            for (u32 p = 0; p < parts; ++p) sum += sums[h * 256 + p * dim + d];
            a.sums[((first + h) * a.chunks + chunk) * dim + d] = sum;
        }
    }
}

// Puts the chunks of one row and head together, in order.
KERNEL THREADS(128) void merge(Attend a) {
    u32 row = block_x(), head = block_y(), used = (*a.start + row) / CHUNK + 1;
    u64 first = (u64)row * a.heads + head;
    const float *stats = a.stats + first * a.chunks * 2;
    float top = -3.0e38f, total = 0;
    for (u32 chunk = 0; chunk < used; ++chunk) top = max_of(top, stats[2 * chunk]);
    for (u32 chunk = 0; chunk < used; ++chunk) total += stats[2 * chunk + 1] * exp2(stats[2 * chunk] - top);
    for (u32 d = thread_x(); d < a.head_dim; d += 128) {
        float sum = 0;
        for (u32 chunk = 0; chunk < used; ++chunk)
            sum += a.sums[(first * a.chunks + chunk) * a.head_dim + d] * exp2(stats[2 * chunk] - top);
        store_planes(a.planes, (u64)MAX_ROWS * a.width, (u64)row * a.width + head * a.head_dim + d, sum / total);
    }
}

// ---- choosing ------------------------------------------------------------------------------------

// tokens[row] = the id of the largest logit, the lowest on a tie. NaN never wins.
struct Argmax {
    const float *logits; // [rows, stride]
    u32 *tokens;
    u32 vocab, stride;
};
KERNEL THREADS(1024) void argmax(Argmax a) {
    SHARED float tops[32];
    SHARED u32 ids[32];
    const float *logits = a.logits + (u64)block_x() * a.stride;
    float top = -__builtin_inff();
    u32 id = 0xffffffff;
    for (u32 i = thread_x(); i < a.vocab; i += 1024)
        if (logits[i] > top) top = logits[i], id = i;
    for (u32 round = 0; round < 2; ++round) {
        for (u32 mask = 16; mask; mask >>= 1) {
            float other = other_lane(top, mask);
            u32 other_id = __builtin_bit_cast(u32, other_lane(__builtin_bit_cast(float, id), mask));
            if (other > top || (other == top && other_id < id)) top = other, id = other_id;
        }
        if (round) break;
        if (lane() == 0) tops[thread_x() / 32] = top, ids[thread_x() / 32] = id;
        barrier();
        top = tops[lane()], id = ids[lane()];
    }
    if (thread_x() == 0) a.tokens[block_x()] = id == 0xffffffff ? 0 : id;
}
