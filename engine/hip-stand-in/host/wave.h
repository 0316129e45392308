// The compiler's builtins for gfx1151, as this processor can do them: so that the kernels' source for AMD, its own
// branches of every `#if` included, runs here and can be compared with f64.
//
// A block's threads are fibers. A fiber runs until it needs others: at a barrier all of its block, where lanes exchange
// values all of its wave. Lanes that part ways before such an instruction, or halves of a wave that should hold the same
// and do not, end the process.

#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace host {

constexpr unsigned MOST_THREADS = 1024, LANES = 32, STACK = 256 << 10;

// Those who meet: when all who live have come, they go on.
struct Meeting {
    unsigned live, came, round;
};

struct Wave {
    Meeting meeting;
    unsigned values[LANES];
    short a[LANES][16], b[LANES][16];
};

static ucontext_t scheduler, fibers[MOST_THREADS];
static char *stacks;
static bool done[MOST_THREADS];
static Wave waves[MOST_THREADS / LANES];
static Meeting block;
static unsigned now, threads, blocks[3], progress;
static const void *argument;
static void (*body)(const void *);
alignas(16) static char dynamic_shared[64 << 10];

static void fail(const char *why) {
    fprintf(stderr, "kernels on this processor: %s, thread %u of block %u %u %u\n", why, now, blocks[0], blocks[1], blocks[2]);
    abort();
}

static void pass(Meeting &meeting) {
    if (meeting.live && meeting.came == meeting.live) meeting.came = 0, ++meeting.round, ++progress;
}

static void meet(Meeting &meeting) {
    unsigned round = meeting.round, self = now;
    ++meeting.came;
    pass(meeting);
    while (meeting.round == round) {
        swapcontext(&fibers[self], &scheduler);
        now = self;
    }
}

static void fiber() {
    unsigned self = now;
    body(argument);
    now = self;
    done[self] = true, ++progress;
    --block.live, --waves[self / LANES].meeting.live;
    // Who has ended is not waited for.
    pass(block), pass(waves[self / LANES].meeting);
}

static void run_block() {
    block = {threads, 0, 0};
    for (unsigned wave = 0; wave < threads / LANES; ++wave) waves[wave].meeting = {LANES, 0, 0};
    for (unsigned t = 0; t < threads; ++t) {
        done[t] = false;
        getcontext(&fibers[t]);
        fibers[t].uc_stack.ss_sp = stacks + (size_t)t * STACK;
        fibers[t].uc_stack.ss_size = STACK;
        fibers[t].uc_link = &scheduler;
        makecontext(&fibers[t], fiber, 0);
    }
    for (unsigned left = threads; left;) {
        unsigned before = progress;
        left = 0;
        for (unsigned t = 0; t < threads; ++t) {
            if (done[t]) continue;
            now = t;
            swapcontext(&scheduler, &fibers[t]);
            left += !done[t];
        }
        if (left && before == progress) fail("lanes that should meet have parted ways");
    }
}

static unsigned exchange(unsigned address, unsigned value) {
    Wave &wave = waves[now / LANES];
    wave.values[now % LANES] = value;
    meet(wave.meeting);
    unsigned got = wave.values[address / 4 % LANES];
    meet(wave.meeting);
    return got;
}

// One block runs after the other.
static unsigned count(unsigned *counter, unsigned more) {
    unsigned before = *counter;
    *counter += more;
    return before;
}

static float of_bf16(short bits) {
    unsigned wide = (unsigned)(unsigned short)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// Sixteen by sixteen by sixteen. Lanes 0 to 15 hold a row of a and a column of b each, and so do lanes 16 to 31, the same
// again. Element i of a lane's sums is row 2 i, in the upper half of the wave 2 i + 1, of the column that is the lane's:
// gpuopen.com/learn/wmma_on_rdna3, and measured on a gfx1151 in ROCm/FlyDSL pull request 485.
template <class Operand, class Sums>
static Sums wmma(Operand a, Operand b, Sums sums) {
    Wave &wave = waves[now / LANES];
    unsigned lane = now % LANES;
    memcpy(wave.a[lane], &a, 32), memcpy(wave.b[lane], &b, 32);
    meet(wave.meeting);
    if (memcmp(wave.a[lane], wave.a[lane ^ 16], 32) || memcmp(wave.b[lane], wave.b[lane ^ 16], 32))
        fail("the halves of a wave do not hold the same operands");
    for (unsigned i = 0; i < 8; ++i) {
        unsigned m = 2 * i + lane / 16, n = lane % 16;
        float sum = sums[i];
        for (unsigned k = 0; k < 16; ++k) sum += of_bf16(wave.a[m][k]) * of_bf16(wave.b[n][k]);
        sums[i] = sum;
    }
    meet(wave.meeting);
    return sums;
}

} // namespace host

#define __AMDGCN__ 1
// Only for kernels.
#define amdgpu_flat_work_group_size(least, most)
#define __builtin_amdgcn_workitem_id_x() (host::now)
#define __builtin_amdgcn_workgroup_id_x() (host::blocks[0])
#define __builtin_amdgcn_workgroup_id_y() (host::blocks[1])
#define __builtin_amdgcn_workgroup_id_z() (host::blocks[2])
#define __builtin_amdgcn_fence(order, scope) ((void)0)
#define __builtin_amdgcn_s_barrier() host::meet(host::block)
#define __builtin_amdgcn_wave_barrier() host::meet(host::waves[host::now / host::LANES].meeting)
#define __builtin_amdgcn_ds_bpermute(address, value) ((int)host::exchange((unsigned)(address), (unsigned)(value)))
#define __builtin_amdgcn_exp2f(x) __builtin_exp2f(x)
#define __hip_atomic_fetch_add(counter, more, order, scope) host::count(counter, more)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, sums) host::wmma(a, b, sums)

// Runs a kernel, which the source behind this file names in `kernel_of`. Answers 1 for one that it does not name.
static void (*kernel_of(const char *name))(const void *);
extern "C" int run_kernel(const char *name, const void *argument, const unsigned *grid, unsigned threads) {
    host::body = kernel_of(name);
    if (!host::body || threads > host::MOST_THREADS || threads % host::LANES) return 1;
    if (!host::stacks) host::stacks = (char *)malloc((size_t)host::MOST_THREADS * host::STACK);
    host::argument = argument, host::threads = threads;
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                host::blocks[0] = x, host::blocks[1] = y, host::blocks[2] = z;
                host::run_block();
            }
    return 0;
}
