// A ROCTX that writes down what rocprofv3 would: its CSV of marker ranges, for tests on machines without ROCm.
// The file is named by ROCTX_CSV; a row is written when a range ends, in the layout of ROCm 7.0.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEEPEST 64

static FILE *file;
static uint64_t correlation;
static __thread struct {
    char text[512];
    uint64_t start, correlation;
} open_ranges[DEEPEST];
static __thread int depth;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static FILE *csv(void) {
    if (!file) {
        const char *path = getenv("ROCTX_CSV");
        file = path ? fopen(path, "w") : stderr;
        if (!file) abort();
        fputs("\"Domain\",\"Function\",\"Process_Id\",\"Thread_Id\",\"Correlation_Id\",\"Start_Timestamp\","
              "\"End_Timestamp\"\n",
              file);
    }
    return file;
}

int roctxRangePushA(const char *text) {
    if (depth == DEEPEST) return -1;
    snprintf(open_ranges[depth].text, sizeof open_ranges[depth].text, "%s", text);
    open_ranges[depth].correlation = __atomic_add_fetch(&correlation, 1, __ATOMIC_RELAXED);
    open_ranges[depth].start = now();
    return depth++;
}

int roctxRangePop(void) {
    if (!depth) return -1;
    uint64_t end = now();
    --depth;
    fprintf(csv(), "\"MARKER_CORE_RANGE_API\",\"%s\",%d,%d,%llu,%llu,%llu\n", open_ranges[depth].text, getpid(),
            gettid(), (unsigned long long)open_ranges[depth].correlation,
            (unsigned long long)open_ranges[depth].start, (unsigned long long)end);
    fflush(csv());
    return depth;
}
