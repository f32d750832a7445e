// A preload of a user's own, with a driver function and an allocator in it. It finds what comes behind it by RTLD_NEXT, as such libraries do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int calls;

int cuDeviceGetCount(int *count) {
    int (*next)(int *) = (int (*)(int *))dlsym(RTLD_NEXT, "cuDeviceGetCount");
    calls++;
    return next ? next(count) : 999;
}

void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (!next) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    return next(bytes);
}

__attribute__((destructor)) static void end(void) {
    if (calls) printf("counted %d\n", calls);
}
