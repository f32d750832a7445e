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

static Handle function, stream;
static long made;

// A launch of the first function to a stream of its own.
static inline void launch(void) {
    unsigned long long memory = 0;
    void *arguments[] = {&memory};
    if (!stream) {
        Handle module;
        check(call(cuModuleLoadData, &module, "code"));
        check(call(cuModuleGetFunction, &function, module, "one"));
        check(call(cuStreamCreate, &stream, 1));
    }
    check(call(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, (Handle)arguments, (Handle)0));
    made++;
}

// Launches that were made and have neither reached the driver nor failed there.
static inline long left(void) { return made - strict_count("launches") - strict_count("failed"); }

// Launches until one is left behind. What others do meanwhile may let it go at once, so again.
static inline void leave_behind(void) {
    for (int tries = 0; tries < 100000; tries++) {
        launch();
        if (left() > 0) return;
    }
    fprintf(stderr, "nothing is left behind\n");
    _exit(5);
}

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
