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
// Shapes are row major. Widths are padded with zeros to what a kernel takes at a time, so that no kernel has
// a ragged end. Each kernel takes one struct; the host's twins are in device/gpu/kernels.rs.

#include "prelude.h"

// Rows of a pass through the kernels for few rows.
#define MAX_ROWS 16
// Planes of a row's value: high, middle and low eight bits of its mantissa.
#define PLANES 3
// Positions of the cache that one block of attention takes: fixed, so that sums do not depend on lengths.
#define CHUNK 64

// A matrix that is added to the residual stream: a block has all of k, in so many waves of so many tiles, so that no
// other block's sums are to be waited for.
#ifndef ADD_K
#define ADD_K 16
#endif
#ifndef ADD_TILES
#define ADD_TILES 2
#endif
#ifndef ADD_UNROLL
#define ADD_UNROLL 2
#endif
#ifndef ADD_BLOCKS
#define ADD_BLOCKS 1
#endif
#define ADD_THREADS (ADD_K * 32)
#define ADD_OUTPUTS (ADD_TILES * 16)

// How every kernel begins, unless it has something to do that depends on no kernel before it.
DEVICE void begin() {
    next_may_begin();
    previous_done();
}

// Splits `value` into its planes at index `at`.
DEVICE void store_planes(u16 *planes, u64 plane, u64 at, float value) {
    u16 high = to_bf16(value);
    float rest = value - from_bf16(high);
    u16 middle = to_bf16(rest);
    planes[at] = high;
    planes[plane + at] = middle;
    planes[2 * plane + at] = to_bf16(rest - from_bf16(middle));
}

// The same for four values that follow each other.
DEVICE void store_planes(u16 *planes, u64 plane, u64 at, f32x4 values) {
    u16x4 parts[PLANES];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float rest = values[i];
#pragma unroll
        for (int p = 0; p < PLANES; ++p) {
            parts[p][i] = to_bf16(rest);
            rest -= from_bf16(parts[p][i]);
        }
    }
#pragma unroll
    for (int p = 0; p < PLANES; ++p) *(u16x4 *)(planes + p * plane + at) = parts[p];
}

// The sum over a block of `threads` threads, the same in every one. `scratch` holds one value a wave.
DEVICE float block_sum(float value, float *scratch, u32 threads) {
    value = wave_sum(value);
    barrier();
    if (lane() == 0) scratch[thread_x() / 32] = value;
    barrier();
    float sum = 0;
    for (u32 wave = 0; wave < threads / 32; ++wave) sum += scratch[wave];
    return sum;
}

// ---- the residual stream --------------------------------------------------------------------------

// How rows come in: x[row] = the embedding of tokens[row], or x is there. With a norm also what `Add` leaves, the same
// bits for the same x. A wave takes ADD_OUTPUTS values.
struct Embed {
    float *x;          // [rows, width]
    const u32 *tokens; // [rows]
    const u16 *table;  // [vocab, w_planes, width], or null: x is there
    const float *norm; // [width] or null: only x
    u16 *out;          // planes [PLANES, MAX_ROWS, width]
    float *squares;    // [MAX_ROWS, square_parts]
    u32 width, w_planes, square_parts;
};
KERNEL THREADS(256, 1) void embed(Embed a) {
    begin();
    u32 row = block_x(), part = block_y() * 8 + thread_x() / 32;
    if (part >= a.square_parts) return;
    float squares = 0;
#pragma unroll
    for (u32 n = 0; n < ADD_OUTPUTS; n += 32) {
        u32 i = part * ADD_OUTPUTS + n + lane();
        if (i >= a.width) continue;
        u64 at = (u64)row * a.width + i;
        float value = 0;
        if (a.table) {
            const u16 *from = a.table + (u64)a.tokens[row] * a.w_planes * a.width;
            for (u32 plane = a.w_planes; plane-- > 0;) value += from_bf16(from[plane * a.width + i]);
            a.x[at] = value;
        } else {
            value = a.x[at];
        }
        if (a.norm) store_planes(a.out, (u64)MAX_ROWS * a.width, at, value * a.norm[i]);
        squares += value * value;
    }
    if (!a.norm) return;
    squares = wave_sum(squares);
    if (lane() == 0) a.squares[row * a.square_parts + part] = squares;
}

// x[row] += the sum over splits of partial[split][row], plus bias; then planes = RMS norm of x[row] times weight.
// One block a row, of `threads` threads that hold four values each, four times over at most.
#define NORM_TIMES 4
struct Norm {
    float *x;             // [rows, width]
    const float *partial; // [splits, rows, partial_width]; not read when splits is 0
    const float *bias;    // [width] or null
    const float *weight;  // [width], or null: only the sum
    u16 *planes;          // [PLANES, MAX_ROWS, width], or [rows, width] when `dense`
    // `hidden` values are behind the mean. `first`: the row of x and partial that is block 0's.
    u32 hidden, width, partial_width, splits, rows, first, threads, dense;
    float epsilon;
};
KERNEL THREADS(1024, 1) void norm(Norm a) {
    begin();
    SHARED float scratch[32];
    u32 row = block_x();
    float *x = a.x + (u64)(row + a.first) * a.width;
    const float *partial = a.partial + (u64)(row + a.first) * a.partial_width;
    u64 split_stride = (u64)a.rows * a.partial_width;
    f32x4 values[NORM_TIMES];
    float squares = 0;
#pragma unroll
    for (u32 time = 0; time < NORM_TIMES; ++time) {
        u32 i = (time * a.threads + thread_x()) * 4;
        if (i >= a.width) break;
        f32x4 value = *(const f32x4 *)(x + i);
        f32x4 sum = {0, 0, 0, 0};
#pragma unroll 8
        for (u32 split = 0; split < a.splits; ++split) sum += *(const f32x4 *)(partial + split * split_stride + i);
        value += sum;
        if (a.bias) value += *(const f32x4 *)(a.bias + i);
        if (a.splits) *(f32x4 *)(x + i) = value;
        values[time] = value;
        squares += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
    }
    if (!a.weight) return;
    float scale = rsqrt(block_sum(squares, scratch, a.threads) / (float)a.hidden + a.epsilon);
#pragma unroll
    for (u32 time = 0; time < NORM_TIMES; ++time) {
        u32 i = (time * a.threads + thread_x()) * 4;
        if (i >= a.width) break;
        f32x4 value = values[time] * scale * *(const f32x4 *)(a.weight + i);
        u64 at = (u64)row * a.width + i;
        if (a.dense) {
            *(u16x4 *)(a.planes + at) = u16x4{to_bf16(value.x), to_bf16(value.y), to_bf16(value.z), to_bf16(value.w)};
        } else {
            store_planes(a.planes, (u64)MAX_ROWS * a.width, at, value);
        }
    }
}

// ---- a matrix times few rows ----------------------------------------------------------------------

// A block has FEW_M waves along the outputs, each with FEW_TILES tiles of 16, times FEW_K waves along k.
#ifndef FEW_TILES
#define FEW_TILES 2
#endif
#ifndef FEW_M
#define FEW_M 4
#endif
#ifndef FEW_K
#define FEW_K 2
#endif
// Steps of k whose weights are on their way while as many are multiplied.
#ifndef FEW_UNROLL
#define FEW_UNROLL 2
#endif
#ifndef FEW_BLOCKS
#define FEW_BLOCKS 2
#endif
#define FEW_THREADS (FEW_M * FEW_K * 32)
#define FEW_OUTPUTS (FEW_M * FEW_TILES * 16)

struct Few {
    void *out;            // f32 partial [splits, rows, outputs], or planes [PLANES, MAX_ROWS, out_width] of gated rows
    const u16 *planes;    // [PLANES, MAX_ROWS, width]
    const u16 *weights;   // [outputs, w_planes, width]; gated: all gates, then all ups
    const float *bias;    // gated only: [outputs] or null
    const float *squares; // of rows that are normed here: [MAX_ROWS, square_parts], or null: see `Add`
    const u8 *ahead;      // weights that are read next: this many bytes of them, a line every so many bytes
    u32 ahead_bytes, ahead_line;
    u32 outputs, width, w_planes, rows, splits, out_width, square_parts, hidden;
    float epsilon;
};

// A matrix that ends a half of a layer. x += its products with the rows, plus bias; `out` is the new x times the next
// norm's weight. That norm's scale is a number a row, so whoever multiplies `out` next applies it to the product:
// `squares` are the sums of x squared over each block's outputs.
struct Add {
    float *x;           // [rows, x_width]
    u16 *out;           // planes [PLANES, MAX_ROWS, x_width]
    float *squares;     // [MAX_ROWS, outputs / ADD_OUTPUTS]
    const u16 *planes;  // [PLANES, MAX_ROWS, width]
    const u16 *weights; // [outputs, w_planes, width]
    const float *bias;  // [outputs] or null
    const float *norm;  // [outputs] or null: only x
    const u8 *ahead;
    u32 ahead_bytes, ahead_line;
    u32 outputs, width, w_planes, rows, x_width;
};

// A matrix is read at the memory's full rate, and between two of them come small kernels that leave it idle. So
// every block asks for its share of the next matrix as it ends.
template <class Argument>
DEVICE void ask_for_next(const Argument &a, u64 block, u64 blocks, u32 threads) {
    for (u64 at = (block * threads + thread_x()) * a.ahead_line; at < a.ahead_bytes;
         at += blocks * threads * a.ahead_line)
        ask_ahead(a.ahead + at);
}

// Where a wave's weights are.
struct Strip {
    const u16 *weights;
    u64 stride, half, tile; // between outputs, between a tile's halves, between tiles
};

template <int UNROLL, int TILES>
DEVICE void load_steps(Weights (*w)[TILES], const Strip &strip, u32 step, u32 last) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            // Behind the end the last step comes again, so that no load waits for a branch.
            u32 at = min_of(step + u, last - 1);
            w[u][t] = load_weights(strip.weights + t * strip.tile + (u64)at * 32, strip.stride, strip.half);
        }
}

// Adds to `sums` the products of steps `first..last` of k. COLUMNS tiles of rows, `count` of the rows real. `meanwhile`
// is done while the first weights are on their way.
template <int UNROLL, int TILES, int COLUMNS, class Meanwhile>
DEVICE void accumulate(Sums (*sums)[COLUMNS], const Strip &strip, const u16 *rows, u32 width, u32 count, u32 first,
                       u32 last, Meanwhile meanwhile) {
    u64 plane = (u64)MAX_ROWS * width;
    u32 steps = width / 32;
    Weights next[UNROLL][TILES];
    // Weights depend on no kernel; rows do.
    next_may_begin();
    if (first < last) load_steps<UNROLL>(next, strip, first, last);
    previous_done();
    meanwhile();
    for (u32 step = first; step < last; step += UNROLL) {
        Weights w[UNROLL][TILES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int t = 0; t < TILES; ++t) w[u][t] = next[u][t];
        if (step + UNROLL < last) load_steps<UNROLL>(next, strip, step + UNROLL, last);
        Rows x[UNROLL][COLUMNS][PLANES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            u32 at = min_of(step + u, last - 1);
            // The planes of a weight all meet the same rows.
            if (at >= steps) at -= steps;
            if (at >= steps) at -= steps;
#pragma unroll
            for (u32 c = 0; c < COLUMNS; ++c)
#pragma unroll
                for (int p = 0; p < PLANES; ++p) {
                    u32 row = c * TILE_ROWS;
                    x[u][c][p] = load_rows(rows + p * plane + (u64)row * width + at * 32, width,
                                           count > row ? count - row : 0);
                }
        }
        // The matrix units cut what does not fit beside a large sum; a fresh sum for each few steps keeps f32's
        // precision over a long k.
        Sums part[TILES][COLUMNS];
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                for (int i = 0; i < ELEMENTS; ++i) part[t][c][i] = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (step + u >= last) break;
#pragma unroll
            for (int p = PLANES - 1; p >= 0; --p)
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c) multiply(part[t][c], w[u][t], x[u][c][p]);
        }
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) sums[t][c] += part[t][c];
    }
}

// What the norm scales each row by: 1 where there is none. For all threads, in shared memory.
DEVICE const float *row_scales(const Few &a) {
    SHARED float scales[MAX_ROWS];
    for (u32 row = thread_x() / 32; row < MAX_ROWS; row += FEW_THREADS / 32) {
        float sum = 0;
        if (a.squares && row < a.rows) {
            for (u32 part = lane(); part < a.square_parts; part += 32) sum += a.squares[row * a.square_parts + part];
            sum = wave_sum(sum);
        }
        if (lane() == 0) scales[row] = a.squares ? rsqrt(sum / (float)a.hidden + a.epsilon) : 1.0f;
    }
    return scales;
}

// The sums of this block's tiles, complete in the waves that are first along k; and what their rows are scaled by.
template <int COLUMNS>
DEVICE const float *tile_sums(const Few &a, const Strip &strip, Sums (*sums)[COLUMNS]) {
    SHARED float scratch[FEW_K - 1][FEW_M][FEW_TILES * COLUMNS * ELEMENTS * 32];
    u32 wave = thread_x() / 32, m = wave % FEW_M, k = wave / FEW_M;
    u32 steps = a.w_planes * a.width / 32, parts = FEW_K * a.splits, part = FEW_K * block_y() + k;
#pragma unroll
    for (int t = 0; t < FEW_TILES; ++t)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) sums[t][c][i] = 0;
    const float *scales;
    accumulate<FEW_UNROLL, FEW_TILES, COLUMNS>(sums, strip, a.planes, a.width, a.rows, steps * part / parts,
                                   steps * (part + 1) / parts, [&] { scales = row_scales(a); });
    u32 blocks = a.outputs / FEW_OUTPUTS;
    ask_for_next(a, (u64)block_y() * blocks + block_x(), (u64)blocks * a.splits, FEW_THREADS);
    if (k > 0) {
#pragma unroll
        for (int t = 0; t < FEW_TILES; ++t)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                for (int i = 0; i < ELEMENTS; ++i)
                    scratch[k - 1][m][((t * COLUMNS + c) * ELEMENTS + i) * 32 + lane()] = sums[t][c][i];
    }
    barrier();
    if (k > 0) return scales;
#pragma unroll
    for (int other = 0; other < FEW_K - 1; ++other)
#pragma unroll
        for (int t = 0; t < FEW_TILES; ++t)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                for (int i = 0; i < ELEMENTS; ++i)
                    sums[t][c][i] += scratch[other][m][((t * COLUMNS + c) * ELEMENTS + i) * 32 + lane()];
    return scales;
}

template <int COLUMNS>
DEVICE void few(const Few &a) {
    Sums sums[FEW_TILES][COLUMNS];
    u32 wave = thread_x() / 32, tile = (block_x() * FEW_M + wave % FEW_M) * FEW_TILES;
    u64 stride = (u64)a.w_planes * a.width;
    const float *scales = tile_sums<COLUMNS>(a, Strip{a.weights + tile * 16 * stride, stride, 8 * stride, 16 * stride}, sums);
    if (wave >= FEW_M) return;
    float *out = (float *)a.out + (u64)block_y() * a.rows * a.outputs;
#pragma unroll
    for (int t = 0; t < FEW_TILES; ++t)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) {
                u32 row = c * TILE_ROWS + tile_n(i);
                if (row < a.rows)
                    out[(u64)row * a.outputs + (tile + t) * 16 + tile_m(i)] = sums[t][c][i] * scales[row];
            }
}

// Eight gates and their eight ups are one tile of outputs; silu(gate) * up goes on as planes.
template <int COLUMNS>
DEVICE void gated(const Few &a) {
    Sums sums[FEW_TILES][COLUMNS];
    u32 wave = thread_x() / 32, tile = (block_x() * FEW_M + wave % FEW_M) * FEW_TILES, half = a.outputs / 2;
    u64 stride = (u64)a.w_planes * a.width;
    const float *scales = tile_sums<COLUMNS>(a, Strip{a.weights + tile * 8 * stride, stride, half * stride, 8 * stride}, sums);
    if (wave >= FEW_M) return;
#pragma unroll
    for (int t = 0; t < FEW_TILES; ++t)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int i = 0; i < ELEMENTS / 2; ++i) {
                u32 row = c * TILE_ROWS + tile_n(i), column = (tile + t) * 8 + tile_m(i);
                if (row >= a.rows || column >= a.out_width) continue;
                float gate = sums[t][c][i] * scales[row], up = sums[t][c][i + ELEMENTS / 2] * scales[row];
                if (a.bias) gate += a.bias[column], up += a.bias[half + column];
                float value = gate / (1.0f + exp2(gate * -1.44269504f)) * up;
                store_planes((u16 *)a.out, (u64)MAX_ROWS * a.out_width, (u64)row * a.out_width + column, value);
            }
}

// Up to 8 rows and up to 16. Where a tile has 16 rows anyway they are the same.
KERNEL THREADS(FEW_THREADS, FEW_BLOCKS) void few_8(Few a) { few<8 / TILE_ROWS + (TILE_ROWS > 8)>(a); }
KERNEL THREADS(FEW_THREADS, 1) void few_16(Few a) { few<16 / TILE_ROWS>(a); }
KERNEL THREADS(FEW_THREADS, FEW_BLOCKS) void gated_8(Few a) { gated<8 / TILE_ROWS + (TILE_ROWS > 8)>(a); }
KERNEL THREADS(FEW_THREADS, 1) void gated_16(Few a) { gated<16 / TILE_ROWS>(a); }

template <int COLUMNS>
DEVICE void add(const Add &a) {
    constexpr u32 VALUES = ADD_TILES * COLUMNS * ELEMENTS * 32;
    SHARED float scratch[ADD_K][VALUES];
    SHARED float squares[MAX_ROWS][ADD_OUTPUTS];
    u32 t = thread_x(), k = t / 32, steps = a.w_planes * a.width / 32;
    u64 stride = (u64)a.w_planes * a.width;
    Sums sums[ADD_TILES][COLUMNS];
#pragma unroll
    for (int tile = 0; tile < ADD_TILES; ++tile)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) sums[tile][c][i] = 0;
    Strip strip{a.weights + (u64)block_x() * ADD_OUTPUTS * stride, stride, 8 * stride, 16 * stride};
    accumulate<ADD_UNROLL, ADD_TILES, COLUMNS>(sums, strip, a.planes, a.width, a.rows, steps * k / ADD_K, steps * (k + 1) / ADD_K,
                                   [] {});
    ask_for_next(a, block_x(), a.outputs / ADD_OUTPUTS, ADD_THREADS);
#pragma unroll
    for (int tile = 0; tile < ADD_TILES; ++tile)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i)
                scratch[k][((tile * COLUMNS + c) * ELEMENTS + i) * 32 + lane()] = sums[tile][c][i];
    barrier();
    // A sum a thread: of the same place in every wave's tiles, in order.
    for (u32 at = t; at < VALUES; at += ADD_THREADS) {
        u32 i = at / 32 % ELEMENTS, c = at / 32 / ELEMENTS % COLUMNS, tile = at / 32 / ELEMENTS / COLUMNS;
        u32 row = c * TILE_ROWS + tile_n(i), within = tile * 16 + tile_m(i), output = block_x() * ADD_OUTPUTS + within;
        float value = 0;
        if (row < a.rows && output < a.x_width) {
#pragma unroll
            for (int wave = 0; wave < ADD_K; ++wave) value += scratch[wave][at];
            u64 to = (u64)row * a.x_width + output;
            value += a.x[to];
            if (a.bias) value += a.bias[output];
            a.x[to] = value;
            if (a.norm) store_planes(a.out, (u64)MAX_ROWS * a.x_width, to, value * a.norm[output]);
        }
        if (row < MAX_ROWS) squares[row][within] = value * value;
    }
    barrier();
    if (!a.norm) return;
    for (u32 row = k; row < a.rows; row += ADD_K) {
        float sum = 0;
        for (u32 i = lane(); i < ADD_OUTPUTS; i += 32) sum += squares[row][i];
        sum = wave_sum(sum);
        if (lane() == 0) a.squares[row * (a.outputs / ADD_OUTPUTS) + block_x()] = sum;
    }
}
KERNEL THREADS(ADD_THREADS, ADD_BLOCKS) void add_8(Add a) { add<8 / TILE_ROWS + (TILE_ROWS > 8)>(a); }
KERNEL THREADS(ADD_THREADS, 1) void add_16(Add a) { add<16 / TILE_ROWS>(a); }

// ---- rotary embedding, and the cache --------------------------------------------------------------

// Sums of queries, keys and values of a pass's rows, and what becomes of them.
struct Qkv {
    const float *partial; // [splits, rows, partial_width]: q heads, k heads, v heads
    const float *bias;    // [(heads + 2 kv_heads) * head_dim] or null
    const float *q_norm;  // [head_dim] or null
    const float *k_norm;  // [head_dim] or null
    const float *cosines; // [context, head_dim / 2]
    const float *sines;   // [context, head_dim / 2]
    const u32 *start;     // position of the first row
    u32 heads, kv_heads, head_dim, splits, rows, partial_width;
    float epsilon, scale; // queries are scaled: by log2(e) / sqrt(head_dim)
};

// One head of a row, queries first, then keys, then values, by one wave: added up, normed, turned to its position,
// and written to `to`. At most 256 wide; a lane takes pairs.
DEVICE void take_head(const Qkv &a, u32 row, u32 head, u32 position, float *to) {
    constexpr int TIMES = 2, AT_ONCE = 4;
    u32 half = a.head_dim / 2;
    bool is_query = head < a.heads, turns = head < a.heads + a.kv_heads;
    const float *weight = is_query ? a.q_norm : turns ? a.k_norm : 0;
    const float *from = a.partial + (u64)row * a.partial_width + head * a.head_dim;
    const float *bias = a.bias ? a.bias + head * a.head_dim : 0;
    u64 split_stride = (u64)a.rows * a.partial_width;
    auto pair = [&](const float *at, bool is_there) { return is_there ? *(const f32x2 *)at : f32x2{0, 0}; };
    f32x2 low[TIMES] = {}, high[TIMES] = {}, c[TIMES], s[TIMES];
#pragma unroll
    for (u32 n = 0; n < TIMES; ++n) {
        u32 i = 2 * (lane() + 32 * n);
        u64 angle = (u64)position * half + i;
        c[n] = turns ? pair(a.cosines + angle, i < half) : f32x2{1, 1};
        s[n] = pair(a.sines + angle, turns && i < half);
    }
    // Some splits at once, so that their loads overlap.
    for (u32 base = 0; base < a.splits; base += AT_ONCE) {
        f32x2 lows[TIMES][AT_ONCE], highs[TIMES][AT_ONCE];
#pragma unroll
        for (u32 n = 0; n < TIMES; ++n)
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) {
                u32 i = 2 * (lane() + 32 * n);
                bool is_there = i < half && base + j < a.splits;
                lows[n][j] = pair(from + (base + j) * split_stride + i, is_there);
                highs[n][j] = pair(from + (base + j) * split_stride + i + half, is_there);
            }
#pragma unroll
        for (u32 n = 0; n < TIMES; ++n)
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; ++j) low[n] += lows[n][j], high[n] += highs[n][j];
    }
    float squares = 0, scale = 1;
#pragma unroll
    for (u32 n = 0; n < TIMES; ++n) {
        u32 i = 2 * (lane() + 32 * n);
        if (bias) low[n] += pair(bias + i, i < half), high[n] += pair(bias + i + half, i < half);
        squares += low[n].x * low[n].x + low[n].y * low[n].y + high[n].x * high[n].x + high[n].y * high[n].y;
    }
    if (weight) scale = rsqrt(wave_sum(squares) / (float)a.head_dim + a.epsilon);
#pragma unroll
    for (u32 n = 0; n < TIMES; ++n) {
        u32 i = 2 * (lane() + 32 * n);
        if (i >= half) break;
        f32x2 first = low[n], second = high[n];
        if (weight) first *= scale * pair(weight + i, true), second *= scale * pair(weight + i + half, true);
        f32x2 turned = first * c[n] - second * s[n];
        second = second * c[n] + first * s[n];
        if (is_query) turned *= a.scale, second *= a.scale;
        *(f32x2 *)(to + i) = turned;
        *(f32x2 *)(to + i + half) = second;
    }
}

struct Rotate {
    Qkv qkv;
    float *q;             // [rows, heads, head_dim]
    float *keys, *values; // [context, kv_heads, head_dim]
};
KERNEL THREADS(128, 1) void rotate(Rotate a) {
    begin();
    u32 row = block_x(), head = block_y() * 4 + thread_x() / 32, position = *a.qkv.start + row;
    if (head >= a.qkv.heads + 2 * a.qkv.kv_heads) return;
    float *to;
    if (head < a.qkv.heads) {
        to = a.q + ((u64)row * a.qkv.heads + head) * a.qkv.head_dim;
    } else {
        u32 kv = (head - a.qkv.heads) % a.qkv.kv_heads;
        to = head < a.qkv.heads + a.qkv.kv_heads ? a.keys : a.values;
        to += ((u64)position * a.qkv.kv_heads + kv) * a.qkv.head_dim;
    }
    take_head(a.qkv, row, head, position, to);
}

// ---- attention of few rows over the cache ---------------------------------------------------------

struct Attend {
    Qkv qkv;
    const float *q;       // [rows, heads, head_dim] after `rotate`; null: that is done here
    float *keys, *values; // [context, kv_heads, head_dim]
    float *sums;          // [MAX_ROWS, heads, chunks, head_dim]: of weights times values
    float *stats;         // [MAX_ROWS, heads, chunks, 2]: maximum score, sum of weights
    u16 *planes;          // [PLANES, MAX_ROWS, width], width at least heads * head_dim
    u32 *done;            // [blocks of queries, kv_heads], zeros before and after: chunks that are done
    u32 chunks, width, together;
};

// Queries of a block at most; half of them where heads are wider than KEY_DIM, which is as much of a key as is in
// shared memory at once.
#define QUERIES 16
#define KEY_DIM 128
#define KEY_STRIDE (KEY_DIM / 4 + 1)
#define SCORES (QUERIES + 4)
// Positions whose values come at once.
#ifndef ATTEND_UNROLL
#define ATTEND_UNROLL 8
#endif

// One block: one key/value head, one chunk of positions, `together` queries of that head, row by row. For very few rows
// a block turns its queries itself, and appends the new positions of its chunk that its rows see. The last block of
// the same queries puts their chunks together.
//
// A row's sums are in the order of its own positions and dimensions, whatever other rows and blocks there are.
KERNEL THREADS(256, 2) void attend(Attend a) {
    SHARED f32x4 tile[CHUNK * KEY_STRIDE]; // keys; then, for half of the queries, parts of their sums
    SHARED f32x4 q[QUERIES * KEY_DIM / 4];
    SHARED __attribute__((aligned(16))) float scores[CHUNK * SCORES];
    SHARED float totals[QUERIES];
    SHARED u32 before;
    u32 kv = block_x(), chunk = block_y(), t = thread_x(), wave = t / 32, from = chunk * CHUNK;
    u32 quads = a.qkv.head_dim / 4, heads = a.qkv.heads, group = heads / a.qkv.kv_heads;
    u32 base = block_z() * a.together, queries = min_of(a.qkv.rows * group - base, a.together);
    auto row_of = [&](u32 query) { return (base + query) / group; };
    auto head_of = [&](u32 query) { return kv * group + (base + query) % group; };
    // Where the pass begins, and what was cached before, depend on no kernel of this pass.
    next_may_begin();
    u32 start = *a.qkv.start, end = start + row_of(queries - 1) + 1;
    u32 count = end > from ? min_of(end - from, CHUNK) : 0, old = start > from ? min_of(start - from, count) : 0;
    u64 stride = (u64)a.qkv.kv_heads * quads;
    float *new_keys = a.keys + ((u64)from * stride + kv * quads) * 4;
    float *new_values = a.values + ((u64)from * stride + kv * quads) * 4;
    const f32x4 *keys = (const f32x4 *)new_keys, *values = (const f32x4 *)new_values;
    for (u32 i = 8 * t; i < old * quads; i += 8 * 256) {
        ask_ahead(keys + i / quads * stride + i % quads);
        ask_ahead(values + i / quads * stride + i % quads);
    }
    previous_done();
    if (count == 0) return;
    u32 wide = min_of(quads, KEY_DIM / 4), there = a.q ? count : old;
    for (u32 i = t; i < there * wide; i += 256)
        copy_later(tile + i / wide * KEY_STRIDE + i % wide, keys + i / wide * stride + i % wide);
    copy_group();
    if (a.q) {
        for (u32 i = t; i < queries * quads; i += 256) {
            u32 query = i / quads;
            q[i] = ((const f32x4 *)a.q)[((u64)row_of(query) * heads + head_of(query)) * quads + i % quads];
        }
    } else {
        for (u32 i = wave; i < queries + 2 * (count - old); i += 8) {
            u32 row = row_of(i), head = head_of(i);
            float *to = (float *)(q + i * quads);
            if (i >= queries) {
                u32 p = old + (i - queries) / 2, is_value = (i - queries) % 2;
                row = from + p - start, head = heads + is_value * a.qkv.kv_heads + kv;
                to = (is_value ? new_values : new_keys) + p * stride * 4;
            }
            take_head(a.qkv, row, head, start + row, to);
        }
    }
    copy_wait<0>();
    barrier();
    if (there < count) {
        for (u32 i = there * wide + t; i < count * wide; i += 256)
            tile[i / wide * KEY_STRIDE + i % wide] = keys[i / wide * stride + i % wide];
        barrier();
    }
    // A thread: one position, every fourth query.
    u32 position = t % CHUNK, which = t / CHUNK;
    float dots[QUERIES / 4] = {};
    for (u32 slice = 0; slice < quads; slice += KEY_DIM / 4) {
        u32 wide = min_of(quads - slice, KEY_DIM / 4);
        if (slice) {
            barrier();
            for (u32 i = t; i < count * wide; i += 256)
                tile[i / wide * KEY_STRIDE + i % wide] = keys[i / wide * stride + slice + i % wide];
            barrier();
        }
        if (position < count)
#pragma unroll 4
            for (u32 d = 0; d < wide; ++d) {
                f32x4 key = tile[position * KEY_STRIDE + d];
#pragma unroll
                for (u32 j = 0; j < QUERIES / 4; ++j)
                    if (which + 4 * j < queries) {
                        f32x4 query = q[(which + 4 * j) * quads + slice + d];
                        dots[j] += key.x * query.x + key.y * query.y + key.z * query.z + key.w * query.w;
                    }
            }
    }
#pragma unroll
    for (u32 j = 0; j < QUERIES / 4; ++j) scores[position * SCORES + which + 4 * j] = dots[j];
    barrier();
    // One wave a query: weights relative to the chunk's own maximum. What the row does not see weighs nothing.
    for (u32 i = wave; i < queries; i += 8) {
        u32 sees = start + row_of(i) + 1, seen = sees > from ? min_of(sees - from, count) : 0;
        float top = -3.0e38f, total = 0;
        for (u32 p = lane(); p < seen; p += 32) top = max_of(top, scores[p * SCORES + i]);
        top = wave_max(top);
        for (u32 p = lane(); p < count; p += 32) {
            float weight = p < seen ? exp2(scores[p * SCORES + i] - top) : 0.0f;
            scores[p * SCORES + i] = weight;
            total += weight;
        }
        total = wave_sum(total);
        if (lane() == 0) {
            totals[i] = total;
            float *stats = a.stats + (((u64)row_of(i) * heads + head_of(i)) * a.chunks + chunk) * 2;
            if (seen) stats[0] = top, stats[1] = total;
        }
    }
    barrier();
    u32 parts = 256 / quads, part = t / quads, d = t % quads;
    for (u32 half = 0; half < queries; half += QUERIES / 2) {
        u32 some = min_of(queries - half, QUERIES / 2);
        f32x4 sum[QUERIES / 2] = {};
        if (part < parts) {
#pragma unroll ATTEND_UNROLL
            for (u32 p = part; p < count; p += parts) {
                f32x4 value = values[p * stride + d];
                const f32x4 *weights = (const f32x4 *)(scores + p * SCORES + half);
                f32x4 one = weights[0];
#pragma unroll
                for (u32 j = 0; j < 4; ++j) sum[j] += one[j] * value;
                if (some > 4) {
                    f32x4 other = weights[1];
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) sum[4 + j] += other[j] * value;
                }
            }
        }
        if (half) barrier();
#pragma unroll
        for (u32 j = 0; j < QUERIES / 2; ++j)
            if (j < some) tile[j * 256 + t] = sum[j];
        barrier();
        for (u32 i = t; i < some * quads; i += 256) {
            u32 j = i / quads, d = i % quads, row = row_of(half + j), head = head_of(half + j);
            f32x4 sum = {0, 0, 0, 0};
#pragma unroll 8
            for (u32 p = 0; p < parts; ++p) sum += tile[j * 256 + p * quads + d];
            if (a.chunks == 1) {
                u64 at = (u64)row * a.width + (head * quads + d) * 4;
                store_planes(a.planes, (u64)MAX_ROWS * a.width, at, sum / totals[half + j]);
            } else if (start + row >= from) {
                ((f32x4 *)a.sums)[(((u64)row * heads + head) * a.chunks + chunk) * quads + d] = sum;
            }
        }
    }
    if (a.chunks == 1) return;
    u32 *done = a.done + block_z() * a.qkv.kv_heads + kv;
    barrier();
    if (t == 0) before = count_up(done);
    barrier();
    if (before != (end - 1) / CHUNK) return;
    if (t == 0) *done = 0;
    for (u32 i = t; i < queries * quads; i += 256) {
        u32 d = i % quads, row = row_of(i / quads), head = head_of(i / quads), used = (start + row) / CHUNK + 1;
        u64 first = ((u64)row * heads + head) * a.chunks;
        const f32x2 *stats = (const f32x2 *)a.stats + first;
        float top = -3.0e38f, total = 0;
#pragma unroll 8
        for (u32 chunk = 0; chunk < used; ++chunk) top = max_of(top, stats[chunk].x);
        f32x4 sum = {0, 0, 0, 0};
#pragma unroll 8
        for (u32 chunk = 0; chunk < used; ++chunk) {
            float share = exp2(stats[chunk].x - top);
            total += stats[chunk].y * share;
            sum += ((const f32x4 *)a.sums)[(first + chunk) * quads + d] * share;
        }
        store_planes(a.planes, (u64)MAX_ROWS * a.width, (u64)row * a.width + (head * quads + d) * 4, sum / total);
    }
}

// ---- a matrix times many rows ----------------------------------------------------------------------
//
// Dense prefill: rows are bf16. A block computes DENSE_ROWS rows by DENSE_OUTPUTS outputs, 32 k at a time, from
// shared memory that DENSE_STAGES copies fill in turn. Rows lie 64 bytes apart there; the four parts of a row
// change places with the row, so that sixteen rows are read without two in one bank.

#define DENSE_ROWS 128
#define DENSE_THREADS 256
#define DENSE_M 64                  // rows of a wave
#define DENSE_N (DENSE_OUTPUTS / 4) // outputs of a wave
#define DENSE_STAGE ((DENSE_ROWS + DENSE_OUTPUTS) * 32)

struct Dense {
    void *out;          // f32 [rows, outputs], or bf16 [rows, out_width] of gated rows
    const u16 *x;       // [rows, width], rows allocated to a multiple of DENSE_ROWS
    const u16 *weights; // [outputs, w_planes, width]; gated: all gates, then all ups
    const float *bias;  // gated only: [outputs] or null
    u32 outputs, width, w_planes, rows, out_width;
};

DEVICE u16 *dense_at(u16 *stage, u32 row, u32 part) { return stage + row * 32 + (part ^ (row / 2 % 4)) * 8; }

template <bool GATED>
DEVICE void dense(const Dense &a) {
    begin();
    extern SHARED __attribute__((aligned(16))) u16 stages[];
    u32 t = thread_x(), wave = t / 32, m0 = wave % 2 * DENSE_M, n0 = wave / 2 * DENSE_N;
    u32 first_row = block_x() * DENSE_ROWS, steps = a.w_planes * a.width / 32, per_plane = a.width / 32;
    u64 stride = (u64)a.w_planes * a.width;
    // A thread copies the same part of every 64th row.
    const u16 *x = a.x + (u64)(first_row + t / 4) * a.width + t % 4 * 8;
    const u16 *weights[DENSE_OUTPUTS / 64];
#pragma unroll
    for (int i = 0; i < DENSE_OUTPUTS / 64; ++i) {
        u32 n = t / 4 + 64 * i, output;
        if (GATED) {
            // A wave's outputs are gates and their ups, in halves.
            u32 within = n % DENSE_N, half = within / (DENSE_N / 2);
            u32 column = block_y() * (DENSE_OUTPUTS / 2) + n / DENSE_N * (DENSE_N / 2) + within % (DENSE_N / 2);
            output = half * (a.outputs / 2) + min_of(column, a.outputs / 2 - 1);
        } else {
            output = min_of(block_y() * DENSE_OUTPUTS + n, a.outputs - 1);
        }
        weights[i] = a.weights + output * stride + t % 4 * 8;
    }
    auto copy = [&](u32 step) {
        u16 *stage = stages + step % DENSE_STAGES * DENSE_STAGE;
        u32 at = step;
        if (at >= per_plane) at -= per_plane;
        if (at >= per_plane) at -= per_plane;
#pragma unroll
        for (int i = 0; i < DENSE_ROWS / 64; ++i)
            copy_later(dense_at(stage, t / 4 + 64 * i, t % 4), x + (u64)i * 64 * a.width + at * 32);
#pragma unroll
        for (int i = 0; i < DENSE_OUTPUTS / 64; ++i)
            copy_later(dense_at(stage + DENSE_ROWS * 32, t / 4 + 64 * i, t % 4), weights[i] + (u64)step * 32);
    };
    Square sums[DENSE_M / 16][DENSE_N / 16];
#pragma unroll
    for (int m = 0; m < DENSE_M / 16; ++m)
#pragma unroll
        for (int n = 0; n < DENSE_N / 16; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i) sum_of(sums[m][n], i) = 0;
    for (u32 step = 0; step < DENSE_STAGES - 1; ++step) {
        if (step < steps) copy(step);
        copy_group();
    }
    // Sixteen k are multiplied while the next sixteen come from shared memory.
    Tile rows[2][DENSE_M / 16], outputs[2][DENSE_N / 16];
    auto load = [&](u32 half, u32 step) {
        u16 *stage = stages + step % DENSE_STAGES * DENSE_STAGE;
#pragma unroll
        for (u32 m = 0; m < DENSE_M / 16; ++m)
            rows[half][m] = load_tile([&](u32 row, u32 part) { return dense_at(stage, m0 + 16 * m + row, 2 * half + part); });
#pragma unroll
        for (u32 n = 0; n < DENSE_N / 16; ++n)
            outputs[half][n] = load_tile([&](u32 row, u32 part) {
                return dense_at(stage + DENSE_ROWS * 32, n0 + 16 * n + row, 2 * half + part);
            });
    };
    auto multiply_all = [&](u32 half) {
#pragma unroll
        for (u32 n = 0; n < DENSE_N / 16; ++n)
#pragma unroll
            for (u32 m = 0; m < DENSE_M / 16; ++m) multiply(sums[m][n], rows[half][m], outputs[half][n]);
    };
    copy_wait<DENSE_STAGES - 2>();
    barrier();
    load(0, 0);
    for (u32 step = 0; step < steps; ++step) {
        load(1, step);
        // Everybody has read the stage before this one, so its room is free.
        if (step + DENSE_STAGES - 1 < steps) copy(step + DENSE_STAGES - 1);
        copy_group();
        multiply_all(0);
        copy_wait<DENSE_STAGES - 2>();
        barrier();
        if (step + 1 < steps) load(0, step + 1);
        multiply_all(1);
    }
#pragma unroll
    for (u32 m = 0; m < DENSE_M / 16; ++m)
#pragma unroll
        for (u32 n = 0; n < (GATED ? DENSE_N / 32 : DENSE_N / 16); ++n)
#pragma unroll
            for (u32 i = 0; i < 8; i += SUM_PAIR) {
                u32 row = first_row + m0 + 16 * m + sum_m(i);
                if (row >= a.rows) continue;
                if (GATED) {
                    u32 column = block_y() * (DENSE_OUTPUTS / 2) + n0 / 2 + 16 * n + sum_n(i);
                    if (column >= a.out_width) continue;
                    u16 values[SUM_PAIR];
#pragma unroll
                    for (int j = 0; j < SUM_PAIR; ++j) {
                        float gate = sum_of(sums[m][n], i + j), up = sum_of(sums[m][n + DENSE_N / 32], i + j);
                        if (a.bias) gate += a.bias[column + j], up += a.bias[a.outputs / 2 + column + j];
                        values[j] = to_bf16(gate / (1.0f + exp2(gate * -1.44269504f)) * up);
                    }
                    u16 *to = (u16 *)a.out + (u64)row * a.out_width + column;
                    if (SUM_PAIR == 2) *(u32 *)to = values[0] | (u32)values[SUM_PAIR - 1] << 16;
                    else *to = values[0];
                } else {
                    u32 output = block_y() * DENSE_OUTPUTS + n0 + 16 * n + sum_n(i);
                    if (output >= a.outputs) continue;
                    float *to = (float *)a.out + (u64)row * a.outputs + output;
                    if (SUM_PAIR == 2) *(f32x2 *)to = f32x2{sum_of(sums[m][n], i), sum_of(sums[m][n], i + SUM_PAIR - 1)};
                    else *to = sum_of(sums[m][n], i);
                }
            }
}
KERNEL THREADS(DENSE_THREADS, 1) void dense_rows(Dense a) { dense<false>(a); }
KERNEL THREADS(DENSE_THREADS, 1) void dense_gated(Dense a) { dense<true>(a); }

// ---- attention of many rows -------------------------------------------------------------------------
//
// A block takes FLASH_ROWS rows of one head, a wave sixteen of them, and walks over the cache by FLASH_KEYS
// positions, keeping each row's maximum, sum and result so far. Widths are padded with zeros to 16 * TILES.

#define FLASH_ROWS 128
#define FLASH_KEYS 64
// Rows in shared memory are padded, so that sixteen rows are read without two in one bank.
#define FLASH_PAD 8

struct Flash {
    const float *q;             // [rows, heads, head_dim], scaled by log2(e) / sqrt(head_dim)
    const float *keys, *values; // [context, kv_heads, head_dim]
    u16 *out;                   // bf16 [rows, width]
    u32 start, rows, heads, kv_heads, head_dim, width;
};

template <int TILES>
DEVICE void flash(const Flash &a) {
    begin();
    constexpr u32 DIM = 16 * TILES, KEY = DIM + FLASH_PAD, SHARE = FLASH_KEYS + FLASH_PAD;
    constexpr u32 SHARES = FLASH_ROWS * SHARE, KEYS = FLASH_KEYS * KEY;
    // Keys, and once they were used the rows' shares.
    SHARED __attribute__((aligned(16))) u16 keys[SHARES > KEYS ? SHARES : KEYS];
    SHARED __attribute__((aligned(16))) u16 values[DIM * SHARE]; // turned over: [dim][position]
    u32 t = thread_x(), wave = t / 32, head = block_y(), kv = head / (a.heads / a.kv_heads);
    // The blocks with the longest way come first.
    u32 last_block = (a.rows + FLASH_ROWS - 1) / FLASH_ROWS - 1;
    u32 first = (last_block - block_x()) * FLASH_ROWS, count = min_of(a.rows - first, FLASH_ROWS);
    Tile q[TILES];
    // Queries come through the keys' room, sixty-four at a time.
    for (u32 begin = 0; begin < FLASH_ROWS; begin += FLASH_KEYS) {
        barrier();
        for (u32 i = t; i < FLASH_KEYS * DIM / 4; i += 256) {
            u32 row = i / (DIM / 4), d = i % (DIM / 4) * 4;
            f32x4 value = {0, 0, 0, 0};
            if (begin + row < count && d < a.head_dim)
                value = *(const f32x4 *)(a.q + ((u64)(first + begin + row) * a.heads + head) * a.head_dim + d);
            *(u16x4 *)(keys + row * KEY + d) =
                u16x4{to_bf16(value.x), to_bf16(value.y), to_bf16(value.z), to_bf16(value.w)};
        }
        barrier();
        if (wave * 16 / FLASH_KEYS * FLASH_KEYS == begin) {
            u32 from = wave * 16 % FLASH_KEYS;
#pragma unroll
            for (u32 k = 0; k < TILES; ++k)
                q[k] = load_tile([&](u32 row, u32 part) { return keys + (from + row) * KEY + 16 * k + 8 * part; });
        }
    }
    Square out[TILES];
    float top[SUM_ROWS], total[SUM_ROWS];
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int i = 0; i < 8; ++i) sum_of(out[n], i) = 0;
#pragma unroll
    for (int r = 0; r < SUM_ROWS; ++r) top[r] = -3.0e38f, total[r] = 0;
    u32 end = a.start + first + count;
    for (u32 from = 0; from < end; from += FLASH_KEYS) {
        // Where a thread copies from and to, for all steps below, is more than registers hold beside the sums.
        u32 t = anew(thread_x());
        barrier();
        // Positions behind the end are not seen by any row, but must be numbers: the last one comes again.
#pragma unroll
        for (u32 step = 0; step < FLASH_KEYS * DIM / 4 / 256; ++step) {
            u32 i = step * 256 + t, p = i / (DIM / 4), d = i % (DIM / 4) * 4;
            const float *key = a.keys + ((u64)min_of(from + p, end - 1) * a.kv_heads + kv) * a.head_dim;
            f32x4 value = d < a.head_dim ? *(const f32x4 *)(key + d) : f32x4{0, 0, 0, 0};
            *(u16x4 *)(keys + p * KEY + d) =
                u16x4{to_bf16(value.x), to_bf16(value.y), to_bf16(value.z), to_bf16(value.w)};
        }
        // Four positions of one of the head's values a thread: neighbours in the turned room.
#pragma unroll
        for (u32 step = 0; step < FLASH_KEYS * DIM / 4 / 256; ++step) {
            u32 i = step * 256 + t, p = i / DIM * 4, d = i % DIM;
            u16x4 turned = {0, 0, 0, 0};
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const float *value = a.values + ((u64)min_of(from + p + j, end - 1) * a.kv_heads + kv) * a.head_dim;
                turned[j] = d < a.head_dim ? to_bf16(value[d]) : 0;
            }
            *(u16x4 *)(values + d * SHARE + p) = turned;
        }
        barrier();
        Square scores[FLASH_KEYS / 16];
#pragma unroll
        for (u32 n = 0; n < FLASH_KEYS / 16; ++n) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sum_of(scores[n], i) = 0;
#pragma unroll
            for (u32 k = 0; k < TILES; ++k) {
                Tile key =
                    load_tile([&](u32 row, u32 part) { return keys + (16 * n + row) * KEY + 16 * k + 8 * part; });
                multiply(scores[n], q[k], key);
            }
        }
        barrier();
        // A row sees the positions up to its own.
        float now[SUM_ROWS], shrink[SUM_ROWS];
#pragma unroll
        for (int r = 0; r < SUM_ROWS; ++r) now[r] = top[r];
#pragma unroll
        for (u32 n = 0; n < FLASH_KEYS / 16; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float &score = sum_of(scores[n], i);
                if (from + 16 * n + sum_n(i) > a.start + first + wave * 16 + sum_m(i)) score = -3.0e38f;
                now[sum_row(i)] = max_of(now[sum_row(i)], score);
            }
#pragma unroll
        for (int r = 0; r < SUM_ROWS; ++r) {
#pragma unroll
            for (u32 mask = SUM_LANES / 2; mask; mask >>= 1) now[r] = max_of(now[r], other_lane(now[r], mask));
            shrink[r] = exp2(top[r] - now[r]);
            top[r] = now[r];
            total[r] *= shrink[r];
        }
        u16 *shares = keys + wave * 16 * SHARE;
#pragma unroll
        for (u32 n = 0; n < FLASH_KEYS / 16; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float share = exp2(sum_of(scores[n], i) - top[sum_row(i)]);
                u16 bits = to_bf16(share);
                total[sum_row(i)] += from_bf16(bits);
                shares[sum_m(i) * SHARE + 16 * n + sum_n(i)] = bits;
            }
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i) sum_of(out[n], i) *= shrink[sum_row(i)];
        wave_barrier();
#pragma unroll
        for (u32 k = 0; k < FLASH_KEYS / 16; ++k) {
            Tile share = load_tile([&](u32 row, u32 part) { return shares + row * SHARE + 16 * k + 8 * part; });
#pragma unroll
            for (u32 n = 0; n < TILES; ++n) {
                Tile value =
                    load_tile([&](u32 row, u32 part) { return values + (16 * n + row) * SHARE + 16 * k + 8 * part; });
                multiply(out[n], share, value);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < SUM_ROWS; ++r)
#pragma unroll
        for (u32 mask = SUM_LANES / 2; mask; mask >>= 1) total[r] += other_lane(total[r], mask);
#pragma unroll
    for (u32 n = 0; n < TILES; ++n)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            u32 row = wave * 16 + sum_m(i), d = 16 * n + sum_n(i);
            if (row < count && d < a.head_dim)
                a.out[(u64)(first + row) * a.width + head * a.head_dim + d] =
                    to_bf16(sum_of(out[n], i) / total[sum_row(i)]);
        }
}
KERNEL THREADS(256, 1) void flash_32(Flash a) { flash<2>(a); }
KERNEL THREADS(256, 1) void flash_64(Flash a) { flash<4>(a); }
KERNEL THREADS(256, 1) void flash_128(Flash a) { flash<8>(a); }

// ---- choosing -------------------------------------------------------------------------------------

// A larger logit, or the same at a lower id. NaN never wins.
DEVICE void prefer(float &top, u32 &id, float other, u32 other_id) {
    if (other > top || (other == top && other_id < id)) top = other, id = other_id;
}

// The best of a block of `threads` threads, in every thread of the first wave.
DEVICE void block_best(float &top, u32 &id, u32 threads) {
    SHARED float tops[32];
    SHARED u32 ids[32];
    for (u32 round = 0; round < 2; ++round) {
        for (u32 mask = 16; mask; mask >>= 1) {
            float other = other_lane(top, mask);
            u32 other_id = __builtin_bit_cast(u32, other_lane(__builtin_bit_cast(float, id), mask));
            prefer(top, id, other, other_id);
        }
        if (round) break;
        if (lane() == 0) tops[thread_x() / 32] = top, ids[thread_x() / 32] = id;
        barrier();
        bool real = lane() < threads / 32;
        top = real ? tops[lane()] : -__builtin_inff();
        id = real ? ids[lane()] : 0xffffffff;
    }
}

// tokens[row] = the id of the row's largest logit, the lowest on a tie. Each of `parts` blocks a row takes its
// share of the ids; with more than one, `choose` has the last word.
struct Argmax {
    const float *logits; // [rows, stride]
    u32 *tokens;         // [rows]
    float *tops;         // [rows, parts]
    u32 *ids;            // [rows, parts]
    u32 vocab, stride, parts;
};
KERNEL THREADS(1024, 1) void argmax(Argmax a) {
    begin();
    u32 row = block_x(), part = block_y(), id = 0xffffffff;
    u32 first = (u64)a.vocab * part / a.parts, last = (u64)a.vocab * (part + 1) / a.parts;
    const float *logits = a.logits + (u64)row * a.stride;
    float top = -__builtin_inff();
#pragma unroll 4
    for (u32 i = first + thread_x(); i < last; i += 1024) prefer(top, id, logits[i], i);
    block_best(top, id, 1024);
    if (thread_x()) return;
    if (a.parts > 1) {
        a.tops[row * a.parts + part] = top, a.ids[row * a.parts + part] = id;
    } else {
        a.tokens[row] = id == 0xffffffff ? 0 : id;
    }
}
KERNEL THREADS(32, 1) void choose(Argmax a) {
    begin();
    u32 row = block_x(), id = 0xffffffff;
    float top = -__builtin_inff();
    for (u32 part = thread_x(); part < a.parts; part += 32)
        prefer(top, id, a.tops[row * a.parts + part], a.ids[row * a.parts + part]);
    block_best(top, id, 32);
    if (thread_x() == 0) a.tokens[row] = id == 0xffffffff ? 0 : id;
}

// How many of the proposed tokens the model says itself, up to the first that it does not. At most 31.
struct Accept {
    const u32 *said;     // [count + 1]: after the last emitted token and each proposed one
    const u32 *proposed; // [count]
    u32 *accepted;
    u32 count;
};
KERNEL THREADS(32, 1) void accept(Accept a) {
    begin();
    u32 i = lane();
    bool stands = i < a.count && a.said[i] == a.proposed[i];
    // The first lane that does not stand; the one behind the last proposal never does.
    float first = -wave_max(stands ? -32.0f : -(float)i);
    if (i == 0) *a.accepted = (u32)first;
}

// ---- for the host's tests -------------------------------------------------------------------------

// Offset and size of each field, so that the host's structs can be compared with these.
#define FIELD(s, f) (u32) __builtin_offsetof(s, f), (u32)sizeof(((s *)0)->f)
#define LAYOUT(s, ...) extern "C" __attribute__((constant, used)) const u32 layout_##s[] = {__VA_ARGS__};
#define F(f) FIELD(S, f)
#define S Embed
LAYOUT(Embed, F(x), F(tokens), F(table), F(norm), F(out), F(squares), F(width), F(w_planes), F(square_parts))
#undef S
#define S Norm
LAYOUT(Norm, F(x), F(partial), F(bias), F(weight), F(planes), F(hidden), F(width), F(partial_width), F(splits), F(rows),
       F(first), F(threads), F(dense), F(epsilon))
#undef S
#define S Few
LAYOUT(Few, F(out), F(planes), F(weights), F(bias), F(squares), F(ahead), F(ahead_bytes), F(ahead_line), F(outputs),
       F(width), F(w_planes), F(rows), F(splits), F(out_width), F(square_parts), F(hidden), F(epsilon))
#undef S
#define S Add
LAYOUT(Add, F(x), F(out), F(squares), F(planes), F(weights), F(bias), F(norm), F(ahead), F(ahead_bytes), F(ahead_line),
       F(outputs), F(width), F(w_planes), F(rows), F(x_width))
#undef S
#define S Qkv
LAYOUT(Qkv, F(partial), F(bias), F(q_norm), F(k_norm), F(cosines), F(sines), F(start), F(heads), F(kv_heads),
       F(head_dim), F(splits), F(rows), F(partial_width), F(epsilon), F(scale))
#undef S
#define S Rotate
LAYOUT(Rotate, F(qkv), F(q), F(keys), F(values))
#undef S
#define S Attend
LAYOUT(Attend, F(qkv), F(q), F(keys), F(values), F(sums), F(stats), F(planes), F(done), F(chunks), F(width), F(together))
#undef S
#define S Dense
LAYOUT(Dense, F(out), F(x), F(weights), F(bias), F(outputs), F(width), F(w_planes), F(rows), F(out_width))
#undef S
#define S Flash
LAYOUT(Flash, F(q), F(keys), F(values), F(out), F(start), F(rows), F(heads), F(kv_heads), F(head_dim), F(width))
#undef S
#define S Argmax
LAYOUT(Argmax, F(logits), F(tokens), F(tops), F(ids), F(vocab), F(stride), F(parts))
#undef S
#define S Accept
LAYOUT(Accept, F(said), F(proposed), F(accepted), F(count))
#undef S
