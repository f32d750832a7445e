// SPDX-License-Identifier: MIT OR Apache-2.0
// Uses each device from a thread with a stack of as many KiB as the first argument names.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int (*cuInit)(unsigned), (*cuDeviceGetCount)(int *), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *);
static int (*cuMemAlloc_v2)(unsigned long long *, size_t), (*cuMemsetD8_v2)(unsigned long long, unsigned char, size_t);
static int (*cuMemFree_v2)(unsigned long long), (*cuCtxSynchronize)(void);

static void *uses(void *unused) {
    int devices = 0, failed = cuInit(0) || cuDeviceGetCount(&devices);
    for (int device = 0; !failed && device < devices; device++) {
        void *context;
        unsigned long long block;
        failed = cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context) || cuMemAlloc_v2(&block, 4 << 20) ||
                 cuMemsetD8_v2(block, 1, 4 << 20) || cuCtxSynchronize() || cuMemFree_v2(block);
    }
    return failed || devices == 0 ? (void *)1 : unused;
}

int main(int count, char **arguments) {
    pthread_attr_t small;
    pthread_t thread;
    void *failed;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) return 2;
#define FIND(name) *(void **)&name = dlsym(cuda, #name);
    FIND(cuInit) FIND(cuDeviceGetCount) FIND(cuDevicePrimaryCtxRetain) FIND(cuCtxSetCurrent)
    FIND(cuMemAlloc_v2) FIND(cuMemsetD8_v2) FIND(cuMemFree_v2) FIND(cuCtxSynchronize)
    pthread_attr_init(&small);
    if (count != 2 || pthread_attr_setstacksize(&small, atoi(arguments[1]) * 1024)) return 2;
    if (pthread_create(&thread, &small, uses, NULL) || pthread_join(thread, &failed)) return 2;
    return failed != NULL;
}
