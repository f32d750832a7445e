// A thread is cancelled while it sleeps in the driver's own code, in the function that STRICT_WAIT names. Its cleanup handler must run, and the process go on.
#include "strict.h"

static Handle context, function;
static unsigned long long memory;
static void *arguments[] = {&memory};
static void cleaned(void *what) { *(int *)what = 1; }

static void *waits(void *what) {
    check(call(cuCtxSetCurrent, context));
    pthread_cleanup_push(cleaned, what);
    const char *where = getenv("STRICT_WAIT");
    if (!strcmp(where, "cuStreamSynchronize")) call(cuStreamSynchronize, (Handle)0);
    if (!strcmp(where, "cuCtxSynchronize")) call(cuCtxSynchronize);
    if (!strcmp(where, "cuMemFree_v2")) call(cuMemFree_v2, memory);
    if (!strcmp(where, "cuLaunchKernel")) call(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, (Handle)0, (Handle)arguments, (Handle)0);
    pthread_cleanup_pop(0);
    return 0;
}

int main(void) {
    Handle module;
    context = open_strict();
    check(call(cuModuleLoadData, &module, "code"));
    check(call(cuModuleGetFunction, &function, module, "one"));
    check(call(cuMemAlloc_v2, &memory, (size_t)4096));
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        void *end;
        int clean = 0;
        pthread_create(&thread, 0, waits, &clean);
        while (strict_count("waiting") <= round) usleep(1000);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        printf("%s, %s\n", end == PTHREAD_CANCELED ? "cancelled" : "ended", clean ? "cleaned up" : "not cleaned up");
    }
    return 0;
}
