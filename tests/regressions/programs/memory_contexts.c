// Memory that contexts take along when they end.
//
//   memory_contexts ROUNDS READY RUNNING     contexts that end with all their memory, again and
//                                            again; ROUNDS is created, reset or released
//   memory_contexts                          what is counted after each end; for a job with a figure
#include "memory_driver.h"

static handle open_one(int primary) {
    handle context;
    if (!primary) { OK(cuCtxCreate_v2(&context, 0, device)); return context; }
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    return context;
}

static int rounds(const char *how, const char *ready, const char *running) {
    int primary = strcmp(how, "created") != 0;
    for (int round = 0; round < 6; round++) {
        handle context = open_one(primary);
        size_t each = round % 2 ? 5 * GIB : 100 * MIB;
        for (int i = 0; i < (round % 2 ? 1 : 30); i++) {
            ptr block;
            int code = cuMemAlloc_v2(&block, each);
            if (code) { printf("round %d, block %d of %zu MiB: %d\n", round, i, each >> 20, code); return 1; }
        }
        if (!primary) OK(cuCtxDestroy_v2(context));
        else if (!strcmp(how, "reset")) OK(cuDevicePrimaryCtxReset_v2(device));
        else OK(cuDevicePrimaryCtxRelease_v2(device));
    }
    stand(ready, running);
    return 0;
}

static handle busy_context;
static atomic_int stop;

// Takes and gives back memory of its own context.
static void *busy(void *counter) {
    OK(cuCtxSetCurrent(busy_context));
    while (!atomic_load(&stop)) {
        ptr block;
        OK(cuMemAlloc_v2(&block, 8 * MIB));
        OK(cuMemFree_v2(block));
        atomic_fetch_add((atomic_int *)counter, 1);
    }
    return 0;
}

static void created(void) {
    handle first, second, third, stream;
    ptr a, b, c, d, e;
    size_t pitch;
    uint64_t physical;
    properties of_device = {.type = 1, .place = 1, .device = device};
    OK(cuCtxCreate_v2(&first, 0, device));
    OK(cuCtxCreate_v2(&second, 0, device));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc_v2(&b, 256 * MIB));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&a, 512 * MIB));
    OK(cuMemAllocPitch_v2(&d, &pitch, 1 << 20, 64, 16));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocAsync(&c, 128 * MIB, stream));
    OK(cuMemCreate(&physical, 32 * MIB, &of_device, 0));
    MUST(held() == (256 + 512 + 128 + 32) * MIB + pitch * 64);
    // Another thread takes memory of the other context all the time.
    pthread_t thread;
    atomic_int turns = 0;
    busy_context = second;
    MUST(!pthread_create(&thread, 0, busy, &turns));
    while (atomic_load(&turns) < 100) sched_yield();
    OK(cuCtxDestroy_v2(first));
    for (int more = atomic_load(&turns) + 100; atomic_load(&turns) < more;) sched_yield();
    atomic_store(&stop, 1);
    MUST(!pthread_join(thread, 0));
    OK(cuCtxSetCurrent(second));
    // What comes of a pool, and physical memory, is the device's: this driver keeps it.
    MUST(held() == (256 + 128 + 32) * MIB);
    MUST(cuCtxDestroy_v2(first) != 0);
    MUST(held() == (256 + 128 + 32) * MIB);
    OK(cuMemFreeAsync(c, 0));
    OK(cuCtxSynchronize());
    MUST(held() == (256 + 32) * MIB);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxCreate_v2(&third, 0, device));
    MUST(held() == 32 * MIB);
    // A context with the same handle or the same addresses is another one.
    OK(cuMemAlloc_v2(&e, 64 * MIB));
    MUST(held() == 96 * MIB);
    OK(cuMemRelease(physical));
    OK(cuMemFree_v2(e));
    MUST(held() == 0);
    OK(cuCtxDestroy_v2(third));
}

static void primary(void) {
    handle context, again;
    ptr a;
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuDevicePrimaryCtxRetain(&again, device));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&a, 512 * MIB));
    // Somebody still retains it.
    OK(cuDevicePrimaryCtxRelease_v2(device));
    MUST(held() == 512 * MIB);
    OK(cuMemsetD8Async(a, 1, MIB, 0));
    OK(cuDevicePrimaryCtxRelease_v2(device));
    MUST(cuDevicePrimaryCtxRelease_v2(device) != 0);
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    MUST(held() == 0);
    OK(cuMemAlloc_v2(&a, 512 * MIB));
    // However many retain it.
    OK(cuDevicePrimaryCtxReset_v2(device));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    MUST(held() == 0);
    OK(cuMemAlloc_v2(&a, 512 * MIB));
    OK(cuMemFree_v2(a));
    MUST(held() == 0);
    OK(cuDevicePrimaryCtxRelease_v2(device));
}

int main(int count, char **words) {
    begin();
    if (count == 4) return rounds(words[1], words[2], words[3]);
    created();
    primary();
    puts("all as it should be");
    return 0;
}
