// A libcuda that follows its handles, as NVIDIA's does: a handle is an address, and what is asked about it is read there. It runs nothing: work ends at once, or, where STRICT_KERNEL_US is set, so many us a kernel later.
//
// What the program under test can say and ask, in the same process: `strict_fail` makes each launch from now on fail so; `strict_count` says how many launches, failures, and events made and
// destroyed there were, and what else is counted below. A file that STRICT_TALLY names has the number of launches in its first eight bytes, also when the process is gone.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS, INVALID = 1, NOT_FOUND = 500, NOT_READY = 600, RELAXED = 2 };

typedef struct { const char *name; void *module; } Function;
typedef struct { int device; int primary; } Context;
typedef struct { unsigned flags; } Stream;
typedef struct { unsigned flags; long ends; } Event;

static Function functions[] = {{"one", 0}, {"two", 0}, {"three", 0}, {"_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", 0}};
// The last one is not among those that are listed.
enum { ALL = sizeof functions / sizeof *functions, FUNCTIONS = ALL - 1 };
static Context primary = {0, 1};
static atomic_int retained, failing;
static atomic_long launches, failed, events_made, events_gone, spoilt, waiting, destroyed_late;
static __thread Context *current[16];
static __thread int depth;
static __thread unsigned mode;

API void strict_fail(int error) { failing = error; }
API long strict_count(const char *what) {
    if (!strcmp(what, "launches")) return launches;
    if (!strcmp(what, "failed")) return failed;
    if (!strcmp(what, "events made")) return events_made;
    if (!strcmp(what, "events gone")) return events_gone;
    if (!strcmp(what, "unrelaxed")) return spoilt;
    if (!strcmp(what, "waiting")) return waiting;
    if (!strcmp(what, "of ended contexts")) return destroyed_late;
    return -1;
}

// As with cudaDeviceScheduleBlockingSync: the thread sleeps in poll, which is a cancellation point. Here, in the function that STRICT_WAIT names, for ever.
static int waits(const char *name) {
    const char *wanted = getenv("STRICT_WAIT");
    if (wanted && !strcmp(wanted, name)) { waiting++; poll(0, 0, -1); }
    return SUCCESS;
}

// The device: the time at which what it was given ends, ns.
static atomic_long busy_until;
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
static long end_of_work(void) { long at = now(), busy = busy_until; return busy > at ? busy : at; }
static long kernel_ns(void) { static long ns = -1; if (ns < 0) { const char *us = getenv("STRICT_KERNEL_US"); ns = us ? atol(us) * 1000 : 0; } return ns; }
static int sleep_until(long ends) { for (long left; kernel_ns() && (left = ends - now()) > 0;) usleep(left / 1000 + 1); return SUCCESS; }

static atomic_long *tally;
API int cuInit(unsigned flags) {
    const char *name = getenv("STRICT_TALLY");
    int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) tally = at;
    return SUCCESS;
}
// A function that no header has yet: how many launches there were before it.
API int cuStrictNews(void) { return launches; }
API int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, int *status) {
    int there = !strcmp(name, "cuStrictNews");
    *out = there ? (void *)cuStrictNews : 0;
    if (status) *status = !there;
    return there ? SUCCESS : NOT_FOUND;
}
// One private table for whatever identity, but not for zeros: its size, and a function that says how many launches there were before it.
static void *private_table[2] = {(void *)sizeof private_table, (void *)cuStrictNews};
API int cuGetExportTable(void **out, const char *identity) {
    int there = memcmp(identity, (char[16]){0}, 16) != 0;
    *out = there ? private_table : 0;
    return there ? SUCCESS : INVALID;
}
API int cuDriverGetVersion(int *out) { *out = 13020; return SUCCESS; }
API int cuDeviceGetCount(int *out) { *out = 1; return SUCCESS; }
API int cuDeviceGet(int *out, int ordinal) { *out = ordinal; return SUCCESS; }
API int cuDeviceGetName(char *out, int length, int device) { strncpy(out, "strict driver", length); return SUCCESS; }
API int cuDeviceTotalMem_v2(size_t *out, int device) { *out = (size_t)8 << 30; return SUCCESS; }
API int cuDeviceGetUuid_v2(char *out, int device) { memcpy(out, "a strict driver!", 16); return SUCCESS; }
// STRICT_MAJOR: the compute capability, before the point.
API int cuDeviceGetAttribute(int *out, int attribute, int device) {
    const char *major = getenv("STRICT_MAJOR");
    *out = attribute == 75 ? (major ? atoi(major) : 8) : 1;
    return SUCCESS;
}
API int cuMemGetInfo_v2(size_t *free, size_t *total) { *total = (size_t)8 << 30; *free = *total - (1 << 28); return SUCCESS; }

static void set(Context *context) { if (!depth) depth = 1; current[depth - 1] = context; }
static Context *here(void) { return depth ? current[depth - 1] : 0; }
API int cuDevicePrimaryCtxRetain(Context **out, int device) { retained++; *out = &primary; return SUCCESS; }
API int cuDevicePrimaryCtxRelease_v2(int device) { return retained-- > 0 ? SUCCESS : (retained++, 201); }
API int cuDevicePrimaryCtxReset_v2(int device) { retained = 0; return SUCCESS; }
API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = retained > 0; return SUCCESS; }
API int cuCtxCreate_v2(Context **out, unsigned flags, int device) { *out = calloc(1, sizeof **out); current[depth++] = *out; return SUCCESS; }
API int cuCtxDestroy_v2(Context *context) { if (here() == context) depth--; memset(context, 0x5a, sizeof *context); free(context); return SUCCESS; }
API int cuCtxSetCurrent(Context *context) { set(context); return SUCCESS; }
API int cuCtxGetCurrent(Context **out) { *out = here(); return SUCCESS; }
API int cuCtxPushCurrent_v2(Context *context) { if (depth == 16) return INVALID; current[depth++] = context; return SUCCESS; }
API int cuCtxPopCurrent_v2(Context **out) { if (!depth) return 201; *out = current[--depth]; return SUCCESS; }
API int cuCtxGetDevice(int *out) { if (!here()) return 201; *out = here()->device; return SUCCESS; }
API int cuCtxSynchronize(void) { waits("cuCtxSynchronize"); return sleep_until(busy_until); }
API int cuThreadExchangeStreamCaptureMode(unsigned *other) { unsigned before = mode; mode = *other; *other = before; return SUCCESS; }

// Code: whatever is loaded has the same three functions, and a collective of NCCL's.
API int cuModuleLoadData(void **out, const void *image) { *out = functions; return SUCCESS; }
API int cuModuleUnload(void *module) { return SUCCESS; }
API int cuModuleGetFunction(Function **out, void *module, const char *name) {
    for (int at = 0; at < ALL; at++) if (!strcmp(functions[at].name, name)) { *out = functions + at; return SUCCESS; }
    return NOT_FOUND;
}
API int cuModuleGetFunctionCount(unsigned *out, void *module) { *out = FUNCTIONS; return SUCCESS; }
API int cuModuleEnumerateFunctions(Function **out, unsigned most, void *module) {
    for (unsigned at = 0; at < FUNCTIONS && at < most; at++) out[at] = functions + at;
    return SUCCESS;
}
API int cuLibraryLoadData(void **out, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) { *out = functions; return SUCCESS; }
API int cuLibraryGetKernelCount(unsigned *out, void *library) { *out = FUNCTIONS; return SUCCESS; }
API int cuLibraryEnumerateKernels(Function **out, unsigned most, void *library) { return cuModuleEnumerateFunctions(out, most, library); }
API int cuFuncGetName(const char **out, Function *function) { *out = function->name; return SUCCESS; }
API int cuFuncGetModule(void **out, Function *function) { *out = function->module ? function->module : functions; return SUCCESS; }
API int cuKernelGetName(const char **out, Function *kernel) { return cuFuncGetName(out, kernel); }
API int cuFuncGetParamInfo(Function *function, size_t at, size_t *offset, size_t *size) {
    if (at || !function->name) return INVALID;
    *offset = 0; *size = 8;
    return SUCCESS;
}

API int cuStreamCreate(Stream **out, unsigned flags) { *out = malloc(sizeof **out); (*out)->flags = flags; return SUCCESS; }
API int cuStreamDestroy_v2(Stream *stream) { free(stream); return SUCCESS; }
API int cuStreamGetFlags(Stream *stream, unsigned *flags) { *flags = (uintptr_t)stream > 2 ? stream->flags : 0; return SUCCESS; }
API int cuStreamQuery(Stream *stream) { return busy_until > now() ? NOT_READY : SUCCESS; }
API int cuStreamIsCapturing(Stream *stream, unsigned *out) { *out = 0; return SUCCESS; }
API int cuStreamSynchronize(Stream *stream) { waits("cuStreamSynchronize"); return sleep_until(busy_until); }

static void recording(void) { if (mode != RELAXED) spoilt++; }
API int cuEventCreate(Event **out, unsigned flags) { events_made++; *out = malloc(sizeof **out); (*out)->flags = flags; (*out)->ends = 0; return SUCCESS; }
API int cuEventDestroy_v2(Event *event) { events_gone++; free(event); return SUCCESS; }
API int cuEventRecord(Event *event, Stream *stream) { recording(); if (event->flags > 7) return INVALID; event->ends = end_of_work(); return SUCCESS; }
API int cuEventQuery(Event *event) { recording(); return event->flags > 7 ? INVALID : kernel_ns() && event->ends > now() ? NOT_READY : SUCCESS; }
API int cuEventSynchronize(Event *event) { return sleep_until(event->ends); }
API int cuEventElapsedTime(float *out, Event *from, Event *to) { *out = kernel_ns() ? (to->ends - from->ends) / 1e6f : 0.01f; return SUCCESS; }

API int cuMemAlloc_v2(unsigned long long *out, size_t bytes) { *out = (uintptr_t)malloc(bytes); return SUCCESS; }
API int cuMemFree_v2(unsigned long long address) { waits("cuMemFree_v2"); free((void *)(uintptr_t)address); return SUCCESS; }

static int launch(Function *function) {
    if (!function->name || !here()) return INVALID;
    waits("cuLaunchKernel");
    if (failing) { failed++; return failing; }
    launches++;
    if (kernel_ns()) busy_until = end_of_work() + kernel_ns();
    if (tally) (*tally)++;
    return SUCCESS;
}
API int cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream *stream, void **arguments, void **extra) {
    return launch(function);
}
