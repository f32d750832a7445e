// A driver that opens the real one, STORE, as WSL 2's does: at cuInit, or with -DEARLY in its constructor. Its functions jump there.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define FUNCTIONS(each) \
    each(cuDriverGetVersion) each(cuDeviceGetCount) each(cuDeviceGet) each(cuDeviceGetName) each(cuDeviceGetUuid_v2) each(cuDeviceTotalMem_v2) \
    each(cuDeviceGetAttribute) each(cuDevicePrimaryCtxRetain) each(cuDevicePrimaryCtxGetState) each(cuCtxGetCurrent) each(cuCtxSetCurrent) \
    each(cuCtxGetDevice) each(cuCtxPushCurrent_v2) each(cuCtxPopCurrent_v2) each(cuModuleLoadData) each(cuModuleGetFunction) each(cuFuncGetName) \
    each(cuFuncGetParamInfo) each(cuStreamCreate) each(cuStreamSynchronize) each(cuStreamIsCapturing) each(cuMemAlloc_v2) each(cuMemGetInfo_v2) \
    each(cuMemcpyDtoH_v2) each(cuLaunchKernel) each(cuEventCreate) each(cuEventRecord) each(cuEventQuery) each(cuEventDestroy_v2)

#define declare(name) __attribute__((used)) static void *real_##name; __attribute__((naked)) void name(void) { __asm__("jmp *real_" #name "(%rip)"); }
FUNCTIONS(declare)

static int (*initialise)(unsigned);

static void open_real(void) {
    void *store = dlopen(STORE, RTLD_NOW);
    if (!store) { fprintf(stderr, "%s\n", dlerror()); _Exit(7); }
    initialise = (int (*)(unsigned))dlsym(store, "cuInit");
#define found(name) real_##name = dlsym(store, #name);
    FUNCTIONS(found)
}

int cuInit(unsigned flags) {
    if (!initialise) open_real();
    return initialise(flags);
}

#ifdef EARLY
__attribute__((constructor)) static void begins(void) { open_real(); }
#endif
