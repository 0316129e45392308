/* A ROCTX that writes down every call it takes, one line each, and can be as unforgiving as ROCm 6.3's.
 *
 * Which symbols it exports is chosen when it is compiled: -DPUSH -DPOP -DMARK -DSTART -DSTOP -DNAME -DPAUSE
 * -DRESUME; -DTAG="..." tells shims in one log apart. How it behaves is chosen by the environment:
 *   ROCTX_SHIM_LOG     the file that lines are appended to: tag, thread, call, number, text in hexadecimal, tabs
 *                      between. It starts with how many bytes of lines follow, and is mapped: nothing is lost
 *                      when the process dies, and a call costs no system call.
 *   ROCTX_SHIM_PUSH    what every push answers (negative: not taken); "cycle" for -2, -1, 0, 7 in turn; unset: the level
 *   ROCTX_SHIM_STRICT  abort on a pop too many, an unknown id, NULL, and a pause twice or inside a range
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEPTH 4096
#define IDS (1 << 16)

struct log {
    _Atomic uint64_t used;
    char lines[(64 << 20) - sizeof(uint64_t)];
};

static struct log *log_file;
static int strict;
static const char *answer;
static atomic_int open_ranges;
static _Thread_local int depth;
static _Thread_local long thread;
/* Like TAU, it keeps the pointer of a push until the pop. */
static _Thread_local const char *kept[DEPTH];

static void forked(void) { thread = 0; }

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ROCTX_SHIM_LOG");
    if (path) {
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (file < 0 || ftruncate(file, sizeof *log_file)) abort();
        log_file = mmap(NULL, sizeof *log_file, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (log_file == MAP_FAILED) abort();
        close(file);
    }
    pthread_atfork(NULL, NULL, forked);
    strict = getenv("ROCTX_SHIM_STRICT") != NULL;
    answer = getenv("ROCTX_SHIM_PUSH");
}

static void line(const char *call, int64_t number, const char *text) {
    char out[2 * 256 + 128];
    if (!log_file) return;
    if (!thread) thread = syscall(SYS_gettid);
    int at = snprintf(out, 128, "%s\t%ld\t%s\t%lld\t", TAG, thread, call, (long long)number);
    for (size_t i = 0; text && text[i] && i < 256; i++) {
        static const char digits[] = "0123456789abcdef";
        out[at++] = digits[(unsigned char)text[i] >> 4];
        out[at++] = digits[(unsigned char)text[i] & 15];
    }
    out[at++] = '\n';
    uint64_t to = atomic_fetch_add(&log_file->used, at);
    if (to + at > sizeof log_file->lines) abort();
    memcpy(log_file->lines + to, out, at);
}

static void fault(const char *what) {
    line(what, 0, NULL);
    if (strict) abort();
}

#ifdef PUSH
int roctxRangePushA(const char *text) {
    static atomic_uint calls;
    static const int in_turn[] = {-2, -1, 0, 7};
    if (!text) fault("null");
    int level = depth;
    if (answer) level = strcmp(answer, "cycle") ? atoi(answer) : in_turn[calls++ % 4];
    if (level < 0) return level;
    if (depth < DEPTH) kept[depth] = text;
    depth++;
    open_ranges++;
    line("push", level, text);
    return level;
}
#endif

#ifdef POP
int roctxRangePop(void) {
    if (depth == 0) {
        fault("extra");
        return -1;
    }
    depth--;
    open_ranges--;
    line("pop", depth, depth < DEPTH ? kept[depth] : NULL);
    return depth;
}
#endif

#ifdef MARK
void roctxMarkA(const char *text) {
    if (!text) fault("null");
    line("mark", 0, text);
}
#endif

static _Atomic uint64_t next_id = 1;
static atomic_bool started[IDS];

#ifdef START
uint64_t roctxRangeStartA(const char *text) {
    uint64_t id = next_id++;
    if (!text) fault("null");
    started[id % IDS] = 1;
    open_ranges++;
    line("start", id, text);
    return id;
}
#endif

#ifdef STOP
void roctxRangeStop(uint64_t id) {
    if (!atomic_exchange(&started[id % IDS], 0)) {
        fault("unknown");
        return;
    }
    open_ranges--;
    line("stop", id, NULL);
}
#endif

#ifdef NAME
int roctxNameOsThread(const char *name) {
    line("name", 0, name);
    return 0;
}
#endif

static atomic_bool paused;

#ifdef PAUSE
int roctxProfilerPause(uint64_t tid) {
    if (atomic_exchange(&paused, 1)) fault("paused twice");
    if (open_ranges) fault("paused inside a range");
    line("pause", tid, NULL);
    return 0;
}
#endif

#ifdef RESUME
int roctxProfilerResume(uint64_t tid) {
    if (!atomic_exchange(&paused, 0)) fault("resumed twice");
    line("resume", tid, NULL);
    return 0;
}
#endif
