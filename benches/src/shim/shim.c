/* ROCTX and an NVTX tool that answer at once: what is left to measure is the way to them. */

#include <stddef.h>
#include <stdint.h>

typedef void (*function)(void);

int roctxRangePushA(const char *text) { return text ? 0 : -1; }
int roctxRangePop(void) { return 0; }
void roctxMarkA(const char *text) { (void)text; }
uint64_t roctxRangeStartA(const char *text) { return text ? 1 : 0; }
void roctxRangeStop(uint64_t id) { (void)id; }

int shimPush(void *domain, const void *event) { return domain && event ? 0 : -1; }
int shimPop(void *domain) { return domain ? 0 : -1; }
void shimMark(void *domain, const void *event) { (void)domain, (void)event; }
uint64_t shimStart(void *domain, const void *event) { return domain && event ? 1 : 0; }
void shimEnd(void *domain, uint64_t id) { (void)domain, (void)id; }
static void *shimRegister(void *domain, const char *text) { return domain ? (void *)text : NULL; }
static void *shimDomain(const char *name) { return (void *)name; }

struct callbacks {
    size_t size;
    int (*module)(int, function ***, unsigned *);
};

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const struct callbacks *callbacks = export_table(1);
    function **core2 = NULL;
    unsigned size = 0;
    if (!callbacks || !callbacks->module(5, &core2, &size) || size < 13) return 0;
    *core2[1] = (function)shimMark;
    *core2[2] = (function)shimStart;
    *core2[3] = (function)shimEnd;
    *core2[4] = (function)shimPush;
    *core2[5] = (function)shimPop;
    *core2[10] = (function)shimRegister;
    *core2[12] = (function)shimDomain;
    return 1;
}
