// The driver API for C programs of the guest cases, opened at run time as any client does; plain.py is the same for Python.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef unsigned long long Address;

static int (*cuInit)(unsigned);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuModuleLoadData)(void **, const void *);
static int (*cuModuleGetFunction)(void **, void *, const char *);
static int (*cuStreamCreate)(void **, unsigned);
static int (*cuMemAlloc_v2)(Address *, size_t);
static int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*cuStreamSynchronize)(void *);
static int (*cuMemcpyDtoH_v2)(void *, Address, size_t);

static void *driver, *context, *module, *kernel;
static Address scratch;

#define check(call) do { int answer = (call); if (answer) { fprintf(stderr, "%s: %d\n", #call, answer); _exit(9); } } while (0)
#define find(name) do { *(void **)&name = dlsym(driver, #name); if (!name) { fprintf(stderr, "no %s\n", #name); _exit(8); } } while (0)

static inline void enter(void) { check(cuCtxSetCurrent(context)); }

static inline void open_gpu(void) {
    static char kernels[1 << 16];
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); _exit(7); }
    find(cuInit); find(cuDevicePrimaryCtxRetain); find(cuCtxSetCurrent); find(cuModuleLoadData); find(cuModuleGetFunction);
    find(cuStreamCreate); find(cuMemAlloc_v2); find(cuLaunchKernel); find(cuStreamSynchronize); find(cuMemcpyDtoH_v2);
    FILE *file = fopen(KERNELS, "r");
    if (!file) { perror(KERNELS); _exit(7); }
    kernels[fread(kernels, 1, sizeof kernels - 1, file)] = 0;
    fclose(file);
    check(cuInit(0));
    check(cuDevicePrimaryCtxRetain(&context, 0));
    enter();
    check(cuModuleLoadData(&module, kernels));
    check(cuModuleGetFunction(&kernel, module, "simgpu_fill"));
    check(cuMemAlloc_v2(&scratch, 1024));
}

static inline void *new_stream(void) { void *stream; check(cuStreamCreate(&stream, 1)); return stream; }

static inline void fill_at(Address memory, unsigned value, void *stream) {
    unsigned long long count = 256;
    void *arguments[] = {&memory, &value, &count};
    check(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0));
}

static inline void fill(unsigned value, void *stream) { fill_at(scratch, value, stream); }

// So many fills of one memory, one number after the other; the last one must be there.
static inline unsigned work(unsigned launches, void *stream) {
    Address memory;
    unsigned data[256];
    check(cuMemAlloc_v2(&memory, sizeof data));
    for (unsigned value = 0; value < launches; value++) fill_at(memory, value, stream);
    check(cuStreamSynchronize(stream));
    check(cuMemcpyDtoH_v2(data, memory, sizeof data));
    for (int at = 0; at < 256; at++) if (data[at] != launches - 1) { fprintf(stderr, "the last fill is not there\n"); _exit(6); }
    return data[0];
}
