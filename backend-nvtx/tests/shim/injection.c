/* A tool for the tests: attaches as a profiler does and writes every call to the file that SHIM_LOG names.
 *
 *   SHIM_OMIT    functions not to give, as module.index: "5.4,5.10"; "all" gives none
 *   SHIM_ANSWER  what the entry answers
 *   SHIM_PUSH    what a push answers
 *   SHIM_ID      the first range's id
 *   SHIM_WITNESS if set, only ranges and marks are written: thread, call, id, and the text itself, for a pop as
 *                the pointer that the push gave reads by then
 *
 * A pop too many aborts the process, as ROCm 6.3's library does. ENTRY is the name under which it is found. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*function)(void);

struct callbacks {
    size_t size;
    int (*module)(int, function ***, unsigned *);
};

struct version_info {
    size_t size;
    uint32_t version, reserved;
    void (*set)(uint32_t);
};

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};

static FILE *out;
static int push_answer = -1;
static uint64_t next_id = 1;
static uintptr_t next_string = 0x100, next_domain = 0x10;
static int witness;
static char *registered[4096];
static __thread int depth;
static __thread const char *kept[4096];

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

/* One line, whatever the text. */
static void witnessed(const char *call, uint64_t id, const char *text) {
    flockfile(out);
    fprintf(out, "%d\t%s\t%lu\t", gettid(), call, (unsigned long)id);
    for (; text && *text; text++) {
        if (*text == '\n') fputs("\\n", out);
        else if (*text == '\\') fputs("\\\\", out);
        else fputc(*text, out);
    }
    fputc('\n', out);
    funlockfile(out);
}

static const char *text_of(const struct attributes *a) {
    return a->message_type == 3 ? registered[(uintptr_t)a->message] : a->message;
}

static void event(const char *what, void *domain, const struct attributes *a, long id) {
    if (witness) {
        witnessed(what, id < 0 ? 0 : (uint64_t)id, text_of(a));
        return;
    }
    flockfile(out);
    fprintf(out, "%s domain=%lx", what, (long)(uintptr_t)domain);
    if (id >= 0) fprintf(out, " id=%ld", id);
    if (a->version != 3 || a->size != 48 || a->reserved) fprintf(out, " BAD");
    if (a->category) fprintf(out, " category=%u", a->category);
    if (a->color_type == 1) fprintf(out, " color=%08x", a->color);
    if (a->payload_type == 1) fprintf(out, " payload=%lu", (unsigned long)a->payload);
    if (a->message_type == 1) fprintf(out, " text=%s", (const char *)a->message);
    if (a->message_type == 3) fprintf(out, " string=%lx", (long)(uintptr_t)a->message);
    fprintf(out, "\n");
    funlockfile(out);
}

static void mark(void *domain, const struct attributes *a) { event("mark", domain, a, -1); }

static uint64_t start(void *domain, const struct attributes *a) {
    uint64_t id = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
    event("start", domain, a, (long)id);
    return id;
}

static void end(void *domain, uint64_t id) {
    if (witness) {
        witnessed("end", id, NULL);
        return;
    }
    fprintf(out, "end domain=%lx id=%lu\n", (long)(uintptr_t)domain, (unsigned long)id);
}

static int push(void *domain, const struct attributes *a) {
    if (depth < 4096) kept[depth] = text_of(a);
    depth++;
    event("push", domain, a, -1);
    return push_answer;
}

static int pop(void *domain) {
    if (depth-- == 0) {
        fprintf(out, "A POP TOO MANY\n");
        abort();
    }
    if (witness) witnessed("pop", 0, depth < 4096 ? kept[depth] : NULL);
    else fprintf(out, "pop domain=%lx\n", (long)(uintptr_t)domain);
    return push_answer;
}

static void name_category(void *domain, uint32_t category, const char *name) {
    fprintf(out, "category domain=%lx %u=%s\n", (long)(uintptr_t)domain, category, name);
}

static void *register_string(void *domain, const char *text) {
    uintptr_t handle = __atomic_fetch_add(&next_string, 1, __ATOMIC_RELAXED);
    registered[handle] = strdup(text);
    if (witness) return (void *)handle;
    fprintf(out, "register domain=%lx %lx=%s\n", (long)(uintptr_t)domain, (long)handle, text);
    usleep(2000); /* time for another thread to want the same */
    return (void *)handle;
}

static void *create_domain(const char *name) {
    uintptr_t handle = next_domain++;
    fprintf(out, "create %lx=%s\n", (long)handle, name);
    return (void *)handle;
}

static void name_thread(uint32_t thread, const char *name) {
    if (!witness) fprintf(out, "thread %u=%s\n", thread, name);
}

static int omitted(int module, int index) {
    const char *list = getenv("SHIM_OMIT");
    char one[16], all[256];
    if (!list) return 0;
    snprintf(one, sizeof one, ",%d.%d,", module, index);
    snprintf(all, sizeof all, ",%s,", list);
    return strstr(all, one) != NULL || strcmp(list, "all") == 0;
}

static void give(int module, function **table, int index, function f) {
    if (!omitted(module, index)) *table[index] = f;
}

int ENTRY(const void *(*export_table)(uint32_t)) {
    const struct callbacks *callbacks = export_table(1);
    const struct version_info *version = export_table(3);
    function **core = NULL, **core2 = NULL;
    unsigned core_size = 0, core2_size = 0;

    out = fopen(getenv("SHIM_LOG"), "a");
    if (!out) return 0;
    setvbuf(out, NULL, _IOLBF, 0);
    witness = getenv("SHIM_WITNESS") != NULL;
    push_answer = (int)number("SHIM_PUSH", -1);
    next_id = (uint64_t)number("SHIM_ID", 1);

    fprintf(out, "tables %zu %zu version=%u others=%d%d\n", callbacks->size, version->size, version->version,
            export_table(0) != NULL || export_table(2) != NULL, callbacks->module(2, NULL, NULL));
    version->set(3);
    callbacks->module(1, &core, &core_size);
    callbacks->module(5, &core2, &core2_size);
    fprintf(out, "cells %u %u first=%d%d last=%d%d\n", core_size, core2_size, core[0] != NULL, core2[0] != NULL,
            core[core_size] != NULL, core2[core2_size] != NULL);

    give(1, core, 14, (function)name_thread);
    give(5, core2, 1, (function)mark);
    give(5, core2, 2, (function)start);
    give(5, core2, 3, (function)end);
    give(5, core2, 4, (function)push);
    give(5, core2, 5, (function)pop);
    give(5, core2, 8, (function)name_category);
    give(5, core2, 10, (function)register_string);
    give(5, core2, 12, (function)create_domain);
    return (int)number("SHIM_ANSWER", 1);
}

#ifdef LINKED
int (*InitializeInjectionNvtx2_fnptr)(const void *(*)(uint32_t)) = ENTRY;
#endif
