// What the two GPU makers' compilers spell differently, and nothing else: indices, barriers, cross-lane
// sums, exp2, and one tile of the matrix units. No toolkit's headers: only the compilers' own builtins.
//
// Everything below `#if defined(__AMDGCN__)` has a twin of the same name and meaning below `#else`.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __attribute__((global))
#define DEVICE static __attribute__((device)) inline __attribute__((always_inline))
#define SHARED __attribute__((shared))
// At most this many threads a block, and this many blocks that a compute unit should hold at once: both bound
// the registers that a thread may take.
#if defined(__AMDGCN__)
#define THREADS(n, blocks) __attribute__((amdgpu_flat_work_group_size(32, n)))
#else
#define THREADS(n, blocks) __attribute__((launch_bounds(n, blocks)))
#endif

// Sixteen bytes that a lane loads at once.
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef u16 u16x4 __attribute__((ext_vector_type(4)));

#if defined(__AMDGCN__)

typedef short bf16x16 __attribute__((ext_vector_type(16)));
typedef float f32x8 __attribute__((ext_vector_type(8)));

DEVICE u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }
DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// Among the lanes of one wave: what they wrote to shared memory is there for all of them.
DEVICE void wave_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
// The value of the lane whose number differs in the bits of `mask`.
DEVICE float other_lane(float value, u32 mask) {
    u32 lane = thread_x() & 31;
    int got = __builtin_amdgcn_ds_bpermute((int)((lane ^ mask) * 4), __builtin_bit_cast(int, value));
    return __builtin_bit_cast(float, got);
}
// Sixteen bytes that are read once: they should not push out of the cache what is read again.
DEVICE u32x4 load_once(const u32x4 *from) { return __builtin_nontemporal_load(from); }
// Where a kernel may begin before the one before it has ended: lets the next one begin, and waits until all work
// before this kernel is done. Here each kernel begins when the one before has ended.
DEVICE void next_may_begin() {}
DEVICE void previous_done() {}
// Asks for a line of memory that will be read soon. Not on this processor.
DEVICE void ask_ahead(const void *) {}
// Counts in device memory, after what this block wrote is there for the others; what they wrote before they counted
// is there for this one. One thread calls it, between barriers.
DEVICE u32 count_up(u32 *counter) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    u32 before = __hip_atomic_fetch_add(counter, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    return before;
}
// The same value, but unknown to the compiler each time: in a loop, what follows from it is computed again, and not kept
// in registers from before the loop on. Adds a zero, in a register that all lanes share.
DEVICE u32 anew(u32 value) {
    u32 zero = 0;
    asm volatile("" : "+r"(zero));
    return value + zero;
}
DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
DEVICE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

#else

DEVICE u32 thread_x() { return __nvvm_read_ptx_sreg_tid_x(); }
DEVICE u32 block_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEVICE u32 block_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
DEVICE u32 block_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
DEVICE void barrier() { __syncthreads(); }
// Among the lanes of one wave: what they wrote to shared memory is there for all of them.
DEVICE void wave_barrier() { __nvvm_bar_warp_sync(0xffffffff); }
// The value of the lane whose number differs in the bits of `mask`.
DEVICE float other_lane(float value, u32 mask) {
    return __nvvm_shfl_sync_bfly_f32(0xffffffff, value, (int)mask, 0x1f);
}
// Sixteen bytes that are read once: they should not push out of the cache what is read again.
DEVICE u32x4 load_once(const u32x4 *from) {
    u32x4 got;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w)
        : "l"(from));
    return got;
}
// Where a kernel may begin before the one before it has ended (from sm_90 on): lets the next one begin, and waits
// until all work before this kernel is done.
#if __CUDA_ARCH__ >= 900
DEVICE void next_may_begin() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }
DEVICE void previous_done() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
#else
DEVICE void next_may_begin() {}
DEVICE void previous_done() {}
#endif
// Asks for a line of memory that will be read soon.
DEVICE void ask_ahead(const void *at) { asm volatile("prefetch.global.L2 [%0];" : : "l"(at)); }
// Counts in device memory, after what this block wrote is there for the others; what they wrote before they counted
// is there for this one. One thread calls it, between barriers.
DEVICE u32 count_up(u32 *counter) {
    __nvvm_membar_gl();
    u32 before;
    asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    __nvvm_membar_gl();
    return before;
}
// The same value. Where registers are short, what follows from it is computed again in each round of a loop.
DEVICE u32 anew(u32 value) { return value; }
DEVICE float exp2(float x) { return __nvvm_ex2_approx_f(x); }
DEVICE float rsqrt(float x) { return 1.0f / __nvvm_sqrt_rn_f(x); }

#endif

DEVICE float max_of(float a, float b) { return a > b ? a : b; }
DEVICE u32 min_of(u32 a, u32 b) { return a < b ? a : b; }

// Sum and maximum over the 32 lanes of a wave, the same in every lane.
DEVICE float wave_sum(float value) {
    for (u32 mask = 16; mask; mask >>= 1) value += other_lane(value, mask);
    return value;
}
DEVICE float wave_max(float value) {
    for (u32 mask = 16; mask; mask >>= 1) value = max_of(value, other_lane(value, mask));
    return value;
}

// bf16 is the upper half of an f32.
DEVICE float from_bf16(u16 bits) { return __builtin_bit_cast(float, (u32)bits << 16); }
// Round to nearest even; not for NaN.
DEVICE u16 to_bf16(float value) {
    u32 bits = __builtin_bit_cast(u32, value);
    return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// ---- one tile of the matrix units --------------------------------------------------------------
//
// A tile is 16 outputs (m) by TILE_ROWS rows of the pass (n), and a step takes 32 inputs (k). A lane holds
// ELEMENTS of the tile's sums. Which lane takes which k is the same for weights and rows, so any
// permutation of k inside a step is sound; it lets every lane load 16 bytes at a time.
// Element i is output `tile_m(i)` of row `tile_n(i)`; element i + ELEMENTS / 2 is 8 outputs further, same row.

#if defined(__AMDGCN__)

#define TILE_ROWS 16
#define ELEMENTS 8
// Every lane holds whole rows of a tile here, so fewer steps fit the registers: two need more than the 256 that a lane
// has. With one, two blocks of `add` fit a pair of compute units, on both of which a block's waves are, and as many
// weights are on their way as with two steps of one block.
#define FEW_UNROLL 1
#define ADD_UNROLL 1
// Lanes leave this loop one after the other. Unrolled it would keep sums for each round, and a round's loads would still
// wait for the one before it.
#define ATTEND_UNROLL 1
// A step's weights or rows as a lane holds them.
struct Fragment {
    u32x4 part[4];
};
typedef Fragment Weights;
typedef Fragment Rows;
typedef f32x8 Sums;

DEVICE u32 lane() { return thread_x() & 31; }
DEVICE u32 tile_m(u32 i) { return 2 * i + lane() / 16; }
DEVICE u32 tile_n(u32) { return lane() % 16; }

// `weights` points at the tile's first output, k of the step. The next seven outputs are `stride` values apart,
// the other eight lie `half` values behind them.
DEVICE Fragment load_weights(const u16 *weights, u64 stride, u64 half) {
    u32 m = lane() % 16;
    const u32x4 *from = (const u32x4 *)(weights + (m % 8) * stride + (m / 8) * half);
    return Fragment{{load_once(from), load_once(from + 1), load_once(from + 2), load_once(from + 3)}};
}
// `rows` points at the tile's first row, k of the step. Rows from `count` on are zero.
DEVICE Fragment load_rows(const u16 *rows, u64 stride, u32 count) {
    const u32x4 zero = {0, 0, 0, 0};
    u32 n = lane() % 16;
    if (n >= count) return Fragment{{zero, zero, zero, zero}};
    const u32x4 *from = (const u32x4 *)(rows + n * stride);
    return Fragment{{from[0], from[1], from[2], from[3]}};
}
DEVICE void multiply(Sums &sums, const Fragment &weights, const Fragment &rows) {
    union Operand {
        u32x4 half[2];
        bf16x16 all;
    };
    for (int step = 0; step < 2; ++step) {
        Operand w, x;
        w.half[0] = weights.part[2 * step], w.half[1] = weights.part[2 * step + 1];
        x.half[0] = rows.part[2 * step], x.half[1] = rows.part[2 * step + 1];
        sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(w.all, x.all, sums);
    }
}

// ---- a tile of 16 by 16 through shared memory ---------------------------------------------------
//
// For many rows: sums[m][n] += sum over 16 k of a[m][k] * b[n][k]. A lane holds eight sums; element i is
// `sum_m(i)`, `sum_n(i)`. Lanes that hold the same m differ in the bits below `SUM_LANES`. SUM_PAIR elements
// from an even one on are neighbours in n.

#define SUM_LANES 16
#define SUM_PAIR 1
#define SUM_ROWS 8
struct Tile {
    u32x4 half[2];
};
struct Square {
    f32x8 all;
};
DEVICE float &sum_of(Square &square, int i) { return ((float *)&square)[i]; }
DEVICE u32 sum_m(u32 i) { return 2 * i + lane() / 16; }
DEVICE u32 sum_n(u32) { return lane() % 16; }
// Which of a lane's SUM_ROWS different m an element is of.
DEVICE constexpr int sum_row(int i) { return i; }
// `at(row, part)` is where the eight k from `8 * part` on of a row are, for 16 rows.
template <class At>
DEVICE Tile load_tile(At at) {
    return Tile{{*(const u32x4 *)at(lane() % 16, 0), *(const u32x4 *)at(lane() % 16, 1)}};
}
DEVICE void multiply(Square &sums, const Tile &a, const Tile &b) {
    sums.all = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(bf16x16, a), __builtin_bit_cast(bf16x16, b),
                                                          sums.all);
}
// Sixteen bytes from memory to shared memory: at once here.
DEVICE void copy_later(void *to, const void *from) { *(u32x4 *)to = *(const u32x4 *)from; }
DEVICE void copy_group() {}
template <int GROUPS>
DEVICE void copy_wait() {}
// Tiles of the dense kernels: outputs of a block, copies of the inputs in flight.
#define DENSE_OUTPUTS 128
#define DENSE_STAGES 2

#else

#define TILE_ROWS 8
#define ELEMENTS 4
struct Weights {
    u32x4 upper, lower;
};
struct Rows {
    u32x4 all;
};
typedef f32x4 Sums;

DEVICE u32 lane() { return thread_x() & 31; }
DEVICE u32 tile_m(u32 i) { return lane() / 4 + 8 * (i / 2); }
DEVICE u32 tile_n(u32 i) { return 2 * (lane() % 4) + i % 2; }

// A lane of a quad takes eight consecutive k of two outputs, 8 apart.
DEVICE Weights load_weights(const u16 *weights, u64 stride, u64 half) {
    const u16 *from = weights + (lane() / 4) * stride + (lane() % 4) * 8;
    return Weights{load_once((const u32x4 *)from), load_once((const u32x4 *)(from + half))};
}
DEVICE Rows load_rows(const u16 *rows, u64 stride, u32 count) {
    u32 n = lane() / 4;
    if (n >= count) return Rows{{0, 0, 0, 0}};
    return Rows{*(const u32x4 *)(rows + n * stride + (lane() % 4) * 8)};
}
DEVICE void multiply(Sums &sums, const Weights &weights, const Rows &rows) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums.x), "+f"(sums.y), "+f"(sums.z), "+f"(sums.w)
                     : "r"(weights.upper[2 * step]), "r"(weights.lower[2 * step]), "r"(weights.upper[2 * step + 1]),
                       "r"(weights.lower[2 * step + 1]), "r"(rows.all[2 * step]), "r"(rows.all[2 * step + 1]));
    }
}

#define SUM_LANES 4
#define SUM_PAIR 2
#define SUM_ROWS 2
struct Tile {
    u32x4 all;
};
struct Square {
    f32x4 left, right;
};
DEVICE float &sum_of(Square &square, int i) { return ((float *)&square)[i]; }
DEVICE u32 sum_m(u32 i) { return lane() / 4 + 8 * (i % 4 / 2); }
DEVICE u32 sum_n(u32 i) { return 8 * (i / 4) + 2 * (lane() % 4) + i % 2; }
// Which of a lane's SUM_ROWS different m an element is of.
DEVICE constexpr int sum_row(int i) { return i % 4 / 2; }
DEVICE u32 shared_address(const void *at) { return (u32)(u64)(const __attribute__((address_space(3))) void *)at; }
// `at(row, part)` is where the eight k from `8 * part` on of a row are, for 16 rows.
template <class At>
DEVICE Tile load_tile(At at) {
    Tile tile;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tile.all.x), "=r"(tile.all.y), "=r"(tile.all.z), "=r"(tile.all.w)
                 : "r"(shared_address(at(lane() % 16, lane() / 16))));
    return tile;
}
DEVICE void multiply(Square &sums, const Tile &a, const Tile &b) {
#define HALF(sums, b0, b1)                                                                                             \
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"   \
        : "+f"(sums.x), "+f"(sums.y), "+f"(sums.z), "+f"(sums.w)                                                       \
        : "r"(a.all.x), "r"(a.all.y), "r"(a.all.z), "r"(a.all.w), "r"(b0), "r"(b1))
    HALF(sums.left, b.all.x, b.all.z);
    HALF(sums.right, b.all.y, b.all.w);
#undef HALF
}
// Sixteen bytes from memory to shared memory, later: a group is what was copied since the last `copy_group`.
DEVICE void copy_later(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void copy_group() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Waits until at most GROUPS groups are under way.
template <int GROUPS>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(GROUPS) : "memory");
}
// Tiles of the dense kernels: outputs of a block, copies of the inputs in flight.
#define DENSE_OUTPUTS 256
#define DENSE_STAGES 4

#endif
