// What clients of strict_driver.c have in common. DRIVER names the library that they open as the driver; STRICT is the strict driver's file, which weft does not take for a driver by its name.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *Handle;
static Handle library;
static void (*strict_fail)(int);
static long (*strict_count)(const char *);

static inline Handle function_of(const char *name) {
    Handle found = dlsym(library, name);
    if (!found) { fprintf(stderr, "no %s\n", name); _exit(8); }
    return found;
}

// The function of that name, called with these arguments; every one of the driver answers a number.
#define call(name, ...) (((int (*)())function_of(#name))(__VA_ARGS__))
#define check(call) do { int answer = (call); if (answer) { fprintf(stderr, "%s: %d\n", #call, answer); _exit(9); } } while (0)

static inline Handle open_strict(void) {
    Handle context = 0, strict = dlopen(getenv("STRICT"), RTLD_NOW);
    library = dlopen(getenv("DRIVER"), RTLD_NOW);
    if (!library || !strict) { fprintf(stderr, "%s\n", dlerror()); _exit(7); }
    strict_fail = dlsym(strict, "strict_fail");
    strict_count = dlsym(strict, "strict_count");
    check(call(cuInit, 0));
    check(call(cuDevicePrimaryCtxRetain, &context, 0));
    check(call(cuCtxSetCurrent, context));
    return context;
}
