// What the programs about memory have in common: the driver's functions by their names, and checks
// that say where they failed.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ptr;
typedef void *handle;
// CUmemAllocationProp.
typedef struct {
    int type, handle_types, place, device;
    void *metadata;
    unsigned char flags[8];
} properties;

// CUmemPoolProps.
typedef struct {
    int type, handle_types, place, device;
    void *security;
    size_t limit;
    unsigned char rest[56];
} pool_properties;

#define MIB (1ull << 20)
#define GIB (1ull << 30)

#define F(name, ...) static int (*name)(__VA_ARGS__);
#define FUNCTIONS(F) \
    F(cuInit, unsigned) F(cuDeviceGet, int *, int) \
    F(cuCtxCreate_v2, handle *, unsigned, int) F(cuCtxDestroy_v2, handle) F(cuCtxSetCurrent, handle) F(cuCtxSynchronize, void) \
    F(cuDevicePrimaryCtxRetain, handle *, int) F(cuDevicePrimaryCtxRelease_v2, int) F(cuDevicePrimaryCtxReset_v2, int) \
    F(cuMemAlloc_v2, ptr *, size_t) F(cuMemFree_v2, ptr) F(cuMemAllocManaged, ptr *, size_t, unsigned) \
    F(cuMemAllocAsync, ptr *, size_t, handle) F(cuMemFreeAsync, ptr, handle) \
    F(cuMemAllocAsync_ptsz, ptr *, size_t, handle) F(cuMemFreeAsync_ptsz, ptr, handle) \
    F(cuMemAllocFromPoolAsync, ptr *, size_t, handle, handle) F(cuDeviceGetDefaultMemPool, handle *, int) \
    F(cuMemPoolCreate, handle *, const pool_properties *) F(cuMemPoolDestroy, handle) F(cuMemPoolTrimTo, handle, size_t) \
    F(cuMemPoolGetAttribute, handle, int, void *) F(cuMemPoolSetAttribute, handle, int, void *) \
    F(cuEventCreate, handle *, unsigned) F(cuEventRecord, handle, handle) F(cuStreamWaitEvent, handle, handle, unsigned) \
    F(cuMemcpyDtoHAsync_v2, void *, ptr, size_t, handle) F(cuMemcpyHtoDAsync_v2, ptr, const void *, size_t, handle) \
    F(cuMemAllocPitch_v2, ptr *, size_t *, size_t, size_t, unsigned) \
    F(cuMemGetInfo_v2, size_t *, size_t *) F(cuMemHostAlloc, void **, size_t, unsigned) F(cuMemHostGetDevicePointer_v2, ptr *, void *, unsigned) \
    F(cuMemsetD8Async, ptr, unsigned char, size_t, handle) F(cuMemPrefetchAsync, ptr, size_t, int, handle) \
    F(cuMemCreate, uint64_t *, size_t, const properties *, uint64_t) F(cuMemRelease, uint64_t) \
    F(cuMemAddressReserve, ptr *, size_t, size_t, ptr, uint64_t) F(cuMemAddressFree, ptr, size_t) \
    F(cuMemMap, ptr, size_t, size_t, uint64_t, uint64_t) F(cuMemUnmap, ptr, size_t) F(cuMemRetainAllocationHandle, uint64_t *, void *) \
    F(cuStreamCreate, handle *, unsigned) F(cuStreamDestroy_v2, handle) F(cuStreamSynchronize, handle) F(cuStreamQuery, handle) \
    F(cuMemcpyDtoH_v2, void *, ptr, size_t) F(cuMemcpyHtoD_v2, ptr, const void *, size_t) F(cuMemcpyDtoDAsync_v2, ptr, ptr, size_t, handle) \
    F(cuMemGetAddressRange_v2, ptr *, size_t *, ptr) F(cuPointerGetAttribute, void *, int, ptr) F(cuIpcGetMemHandle, void *, ptr) \
    F(cuStreamBeginCapture_v2, handle, int) F(cuStreamEndCapture, handle, handle *) \
    F(cuGraphInstantiateWithFlags, handle *, handle, uint64_t) F(cuGraphLaunch, handle, handle) F(cuGraphDestroy, handle) \
    F(cuModuleLoad, handle *, const char *) F(cuModuleLoadData, handle *, const void *) F(cuModuleGetFunction, handle *, handle, const char *) \
    F(cuLaunchKernel, handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **) \
    F(cuLaunchKernel_ptsz, handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)
FUNCTIONS(F)
#undef F

// Ends the program unless it is so.
#define MUST(what) do { if (!(what)) { printf("line %d: not so: %s\n", __LINE__, #what); fflush(stdout); exit(1); } } while (0)
// The same for what another thread may still be about to do: it has five seconds.
#define SOON(what) do { for (int tries_ = 0; tries_ < 500 && !(what); tries_++) usleep(10000); MUST(what); } while (0)
// Ends the program unless the call succeeds.
#define OK(call) do { int code_ = (call); if (code_) { printf("line %d: %s: %d\n", __LINE__, #call, code_); fflush(stdout); exit(1); } } while (0)

static int device;

static void begin(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) { puts(dlerror()); exit(2); }
#define F(name, ...) if (!(*(void **)&name = dlsym(library, #name))) { puts("no " #name); exit(2); }
    FUNCTIONS(F)
#undef F
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
}

// What weft counts as held by a job with a figure: it is told its share as the total, and what is
// left of that as free.
static inline size_t held(void) {
    size_t free_bytes = 0, total = 0;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

// Says that it is as far as this, and goes on when the file `running` is gone, a minute later at
// most.
static inline void stand(const char *ready, const char *running) {
    FILE *file = fopen(ready, "w");
    if (file) fclose(file);
    for (int i = 0; i < 6000 && access(running, F_OK) == 0; i++) usleep(10000);
}
