// Movable memory is counted, freed and ended as plain memory. For a job with a figure.
//   movable_kept counted | ipc | stays ready running | two ready running | holds MIB ready running | spins|leaves MIB ready running
#include "memory_driver.h"
#include <sys/wait.h>

static handle context, spin;
static handle stream;

static void make(void) {
    handle module;
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&spin, module, "simgpu_spin"));
    OK(cuStreamCreate(&stream, 1));
}

static void counted(void) {
    ptr one, two;
    size_t pitch;
    make();
    for (int round = 0; round < 50; round++) {
        OK(cuMemAlloc_v2(&one, 3 * MIB + 1));
        OK(cuMemAllocPitch_v2(&two, &pitch, 1000, 4096, 4));
        MUST(pitch >= 1000 && pitch * 4096 >= 4000 * 1024);
        OK(cuMemsetD8Async(two + pitch * 4095, 7, 1000, stream));
        // Whole pieces of 2 MiB.
        MUST(held() == 4 * MIB + ((pitch * 4096 + 2 * MIB - 1) & ~(2 * MIB - 1)));
        // What the driver refuses changes nothing.
        MUST(cuMemFree_v2(one + MIB) != 0);
        OK(cuMemFree_v2(one));
        MUST(cuMemFree_v2(one) != 0);
        OK(cuMemFreeAsync(two, stream));
        MUST(cuMemFreeAsync(two, stream) != 0);
        OK(cuStreamSynchronize(stream));
        MUST(held() == 0);
    }
    // A free waits for the work of its context.
    ptr word_there;
    void *word;
    uint64_t limit = 200000000;
    OK(cuMemHostAlloc(&word, 4096, 2));
    OK(cuMemHostGetDevicePointer_v2(&word_there, word, 0));
    *(volatile uint32_t *)word = 0;
    void *arguments[] = {&word_there, &limit};
    OK(cuMemAlloc_v2(&one, 4 * MIB));
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0));
    MUST(cuStreamQuery(stream) != 0);
    OK(cuMemFree_v2(one));
    OK(cuStreamQuery(stream));
    // A forked child owns none of it.
    OK(cuMemAlloc_v2(&one, 64 * MIB));
    pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 1;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(held() == 64 * MIB);
    OK(cuMemFree_v2(one));
    // A context takes its memory along, so that all of it is there for the next one.
    for (int round = 0; round < 4; round++) {
        OK(cuMemAlloc_v2(&one, 400 * MIB));
        OK(cuCtxDestroy_v2(context));
        make();
        MUST(held() == 0);
    }
    OK(cuCtxDestroy_v2(context));
    for (int round = 0; round < 2; round++) {
        OK(cuDevicePrimaryCtxRetain(&context, device));
        OK(cuCtxSetCurrent(context));
        OK(cuMemAlloc_v2(&one, 400 * MIB));
        OK(cuDevicePrimaryCtxReset_v2(device));
    }
}

// Memory of the first device is moved while the process has plain memory on a second one.
static void two(const char *ready, const char *running) {
    handle other;
    ptr here, there;
    const size_t words = MIB;
    uint32_t *host = malloc(4 * words), *seen = malloc(4 * words);
    for (size_t i = 0; i < words; i++) host[i] = (uint32_t)(i * 2654435761u);
    make();
    OK(cuMemAlloc_v2(&here, 4 * words));
    OK(cuMemcpyHtoD_v2(here, host, 4 * words));
    OK(cuCtxCreate_v2(&other, 0, 1));
    OK(cuMemAlloc_v2(&there, 4 * words));
    stand(ready, running);
    OK(cuMemcpyDtoDAsync_v2(there, here, 4 * words, 0));
    OK(cuMemcpyDtoH_v2(seen, there, 4 * words));
    MUST(!memcmp(host, seen, 4 * words));
    OK(cuMemFree_v2(there));
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree_v2(here));
}

// Memory that does not move.
static void stays(const char *ready, const char *running) {
    ptr ordered, mapped;
    uint64_t physical;
    properties of = {.type = 1, .place = 1, .device = device};
    pool_properties exported = {.type = 1, .handle_types = 1, .place = 1, .device = device};
    handle pool;
    make();
    OK(cuMemPoolCreate(&pool, &exported));
    OK(cuMemAllocFromPoolAsync(&ordered, 32 * MIB, pool, stream));
    OK(cuMemCreate(&physical, 4 * MIB, &of, 0));
    OK(cuMemAddressReserve(&mapped, 4 * MIB, 0, 0, 0));
    OK(cuMemMap(mapped, 4 * MIB, 0, physical, 0));
    stand(ready, running);
    OK(cuMemUnmap(mapped, 4 * MIB));
    OK(cuMemRelease(physical));
    OK(cuMemFreeAsync(ordered, stream));
}

// Makes calls until the file `running` is gone.
static void *calls(void *running) {
    ptr some;
    OK(cuCtxSetCurrent(context));
    while (access(running, F_OK) == 0) {
        OK(cuMemAlloc_v2(&some, 4096));
        OK(cuMemFreeAsync(some, 0));
        usleep(1000);
    }
    return 0;
}

// Work that ends when the file `running` is gone, a minute later at most, while another thread
// makes calls. The process ends when the file `lives` is gone, too, if there is one.
static void spins(const char *ready, char *running, const char *lives) {
    ptr word_there;
    void *word;
    uint64_t limit = 60000000000ull;
    pthread_t thread;
    OK(cuMemHostAlloc(&word, 4096, 2));
    OK(cuMemHostGetDevicePointer_v2(&word_there, word, 0));
    *(volatile uint32_t *)word = 0;
    void *arguments[] = {&word_there, &limit};
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0));
    MUST(!pthread_create(&thread, 0, calls, running));
    stand(ready, running);
    *(volatile uint32_t *)word = 1;
    MUST(!pthread_join(thread, 0));
    OK(cuStreamSynchronize(stream));
    while (lives && access(lives, F_OK) == 0) usleep(1000);
}

static volatile uint32_t *work;

// Ends the work when the file `running` is gone.
static void *ends(void *running) {
    while (access(running, F_OK) == 0) usleep(1000);
    *work = 1;
    return 0;
}

// Ends its context, which takes until the file `running` is gone, and takes memory in another one.
static ptr ends_context(const char *ready, char *running) {
    ptr word_there, memory;
    void *word;
    uint64_t limit = 60000000000ull;
    pthread_t thread;
    OK(cuMemHostAlloc(&word, 4096, 2));
    OK(cuMemHostGetDevicePointer_v2(&word_there, word, 0));
    work = word;
    *work = 0;
    void *arguments[] = {&word_there, &limit};
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0));
    MUST(!pthread_create(&thread, 0, ends, running));
    fclose(fopen(ready, "w"));
    OK(cuCtxDestroy_v2(context));
    MUST(!pthread_join(thread, 0));
    make();
    OK(cuMemAlloc_v2(&memory, 4 * MIB));
    return memory;
}

int main(int count, char **arguments) {
    ptr memory;
    char handle_of[64];
    MUST(count >= 2);
    begin();
    if (!strcmp(arguments[1], "counted")) {
        counted();
    } else if (!strcmp(arguments[1], "ipc")) {
        make();
        OK(cuMemAlloc_v2(&memory, 4 * MIB));
        MUST(cuIpcGetMemHandle(handle_of, memory) != 0);
        MUST(cuIpcGetMemHandle(handle_of, memory) != 0);
        OK(cuMemAlloc_v2(&memory, MIB));
        OK(cuIpcGetMemHandle(handle_of, memory));
    } else if (!strcmp(arguments[1], "stays")) {
        MUST(count >= 4);
        stays(arguments[2], arguments[3]);
    } else if (!strcmp(arguments[1], "two")) {
        MUST(count >= 4);
        two(arguments[2], arguments[3]);
    } else {
        MUST(count >= 5);
        make();
        OK(cuMemAlloc_v2(&memory, strtoull(arguments[2], 0, 10) * MIB));
        if (!strcmp(arguments[1], "spins")) spins(arguments[3], arguments[4], arguments[5]);
        else if (!strcmp(arguments[1], "leaves")) memory = ends_context(arguments[3], arguments[4]);
        else stand(arguments[3], arguments[4]);
        OK(cuMemFree_v2(memory));
    }
    puts("all as it should be");
    return 0;
}
