// Stream-ordered memory that can be moved.
//   movable_ordered random ready running BLOCKS PIECES [keeps]
//       blocks of up to PIECES * 2 MiB, taken, filled, copied and freed on two streams at random,
//       each compared with what was written there; keeps: the pool keeps all memory
//   movable_ordered rules
//       order, pools and their figures, errors; for a job with a declared need
//   movable_ordered trims
//       trims its pool while old blocks are being given back
#include "memory_driver.h"

#define MOST 64
#define SEEN 1024

static handle context, fill, spin, stream[2], done[2], pool;

static void make(void) {
    handle module;
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&fill, module, "simgpu_fill"));
    OK(cuModuleGetFunction(&spin, module, "simgpu_spin"));
    for (int i = 0; i < 2; i++) {
        OK(cuStreamCreate(&stream[i], 1));
        OK(cuEventCreate(&done[i], 2));
    }
    OK(cuDeviceGetDefaultMemPool(&pool, device));
}

static uint64_t figure(handle of, int which) {
    uint64_t value = 0;
    OK(cuMemPoolGetAttribute(of, which, &value));
    return value;
}

// Frees on one stream what the other one uses: the usual way.
static void follow(int by, int after) {
    OK(cuEventRecord(done[after], stream[after]));
    OK(cuStreamWaitEvent(stream[by], done[after], 0));
}

static void launch(ptr at, uint32_t value, uint64_t words, int on) {
    void *arguments[] = {&at, &value, &words};
    OK(cuLaunchKernel(fill, 8, 1, 1, 64, 1, 1, 0, stream[on], arguments, 0));
}

static int blocks, most_pieces;
static struct { ptr at; size_t bytes; uint32_t value; int on; } block[MOST];

// The block's parts, of which the last one was written by a copy.
static void compare(int i) {
    static uint32_t seen[SEEN];
    const size_t from[] = {0, block[i].bytes / 2 & ~(size_t)4095, block[i].bytes - sizeof seen};
    for (int part = 0; part < 3; part++) {
        OK(cuMemcpyDtoHAsync_v2(seen, block[i].at + from[part], sizeof seen, stream[block[i].on]));
        OK(cuStreamSynchronize(stream[block[i].on]));
        for (int word = 0; word < SEEN; word++) MUST(seen[word] == block[i].value + (part == 2));
    }
}

static void renew(int i) {
    static uint32_t host[SEEN];
    size_t pieces = 1 + (size_t)(rand() % most_pieces);
    int on = rand() % 2;
    if (block[i].at) {
        int by = rand() % 2;
        compare(i);
        launch(block[i].at, 0, block[i].bytes / 4, block[i].on);
        if (by != block[i].on) follow(by, block[i].on);
        OK(cuMemFreeAsync(block[i].at, stream[by]));
    }
    // Whole pieces, a little less, and small ones, which stay.
    block[i].bytes = (pieces * 2 * MIB - (rand() % 3 ? 0 : 4096)) >> (rand() % 8 ? 0 : 6);
    block[i].value = (uint32_t)rand();
    block[i].on = on;
    OK(cuMemAllocAsync(&block[i].at, block[i].bytes, stream[on]));
    launch(block[i].at, block[i].value, block[i].bytes / 4, on);
    for (int word = 0; word < SEEN; word++) host[word] = block[i].value + 1;
    OK(cuMemcpyHtoDAsync_v2(block[i].at + block[i].bytes - sizeof host, host, sizeof host, stream[on]));
    OK(cuStreamSynchronize(stream[on]));
}

static void random_blocks(const char *ready, const char *running, int keeps) {
    uint64_t all = ~0ull;
    long rounds = 0;
    if (keeps) OK(cuMemPoolSetAttribute(pool, 4, &all));
    srand(4711);
    for (int i = 0; i < blocks; i++) renew(i);
    FILE *file = fopen(ready, "w");
    MUST(file);
    fclose(file);
    for (; rounds < 300 || access(running, F_OK) == 0; rounds++) {
        size_t used = 0;
        renew(rand() % blocks);
        if (rounds % 16) continue;
        for (int i = 0; i < blocks; i++) { compare(i); used += block[i].bytes; }
        MUST(figure(pool, 7) >= used && figure(pool, 7) < used + (size_t)blocks * 4096);
        MUST(figure(pool, 5) >= figure(pool, 7));
        MUST(figure(pool, 6) >= figure(pool, 5) && figure(pool, 8) >= figure(pool, 7));
    }
    for (int i = 0; i < blocks; i++) { compare(i); OK(cuMemFreeAsync(block[i].at, stream[i % 2])); }
    OK(cuCtxSynchronize());
    OK(cuMemPoolTrimTo(pool, 0));
    MUST(figure(pool, 5) == 0 && figure(pool, 7) == 0);
}

static volatile uint32_t *word;
static ptr word_there;

// Work that ends when `word` is set, or half a minute later.
static void work(int on) {
    uint64_t limit = 30000000000ull;
    void *arguments[] = {&word_there, &limit};
    *word = 0;
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream[on], arguments, 0));
}

static void rules(void) {
    ptr one, two, three, of;
    handle own, shared;
    void *host;
    uint64_t zero = 0, keep = 64 * MIB;
    pool_properties plain = {.type = 1, .place = 1, .device = device}, exported = plain;
    exported.handle_types = 1;
    OK(cuMemHostAlloc(&host, 4096, 2));
    OK(cuMemHostGetDevicePointer_v2(&word_there, host, 0));
    word = host;
    MUST(held() == 0);
    // As memory of the pool.
    OK(cuMemAllocAsync(&one, 64 * MIB, stream[0]));
    OK(cuPointerGetAttribute(&of, 17, one + MIB));
    MUST(of == (ptr)(uintptr_t)pool);
    OK(cuPointerGetAttribute(&of, 1, one));
    MUST(of == 0);
    MUST(held() == 64 * MIB && figure(pool, 5) == 64 * MIB && figure(pool, 7) == 64 * MIB);
    // What the driver refuses changes nothing.
    MUST(cuMemFreeAsync(one + MIB, stream[0]) != 0);
    MUST(cuMemFree_v2(one + MIB) != 0);
    // A free does not wait, and the memory is there until the work before it has ended.
    work(0);
    OK(cuMemFreeAsync(one, stream[0]));
    MUST(cuMemFreeAsync(one, stream[0]) != 0);
    MUST(cuStreamQuery(stream[0]) != 0);
    MUST(figure(pool, 7) == 0 && figure(pool, 5) == 64 * MIB && held() == 64 * MIB);
    // Its own stream has it again, another one does not.
    OK(cuMemAllocAsync(&two, 64 * MIB, stream[1]));
    MUST(two != one);
    OK(cuMemAllocAsync(&three, 64 * MIB, stream[0]));
    MUST(three == one);
    MUST(figure(pool, 8) == 128 * MIB && figure(pool, 6) == 128 * MIB);
    OK(cuMemFreeAsync(three, stream[0]));
    // Without other memory the other stream gets it, after the work. The host does not wait.
    OK(cuMemAlloc_v2(&of, 240 * MIB));
    OK(cuMemAllocAsync(&three, 64 * MIB, stream[1]));
    MUST(three == one);
    MUST(cuStreamQuery(stream[0]) != 0);
    MUST(cuStreamQuery(stream[1]) != 0);
    *word = 1;
    OK(cuStreamSynchronize(stream[1]));
    // Memory that no block of its size is free for: others give way.
    OK(cuMemFreeAsync(two, stream[0]));
    OK(cuMemFreeAsync(three, stream[0]));
    OK(cuMemAllocAsync(&one, 128 * MIB, stream[1]));
    OK(cuMemFree_v2(one));
    OK(cuMemFree_v2(of));
    OK(cuCtxSynchronize());
    SOON(figure(pool, 5) == 0 && held() == 0);
    // Peaks begin anew.
    MUST(figure(pool, 8) == 128 * MIB);
    OK(cuMemPoolSetAttribute(pool, 8, &zero));
    OK(cuMemPoolSetAttribute(pool, 6, &zero));
    MUST(figure(pool, 8) == 0 && figure(pool, 6) == 0);
    // What the pool keeps, and what a trim leaves.
    OK(cuMemPoolSetAttribute(pool, 4, &keep));
    for (int i = 0; i < 3; i++) {
        OK(cuMemAllocAsync(&one, 32 * MIB, stream[0]));
        OK(cuMemAllocAsync(&two, 32 * MIB, stream[0]));
        OK(cuMemAllocAsync(&three, 32 * MIB, stream[0]));
        OK(cuMemFreeAsync(one, stream[0]));
        OK(cuMemFreeAsync(two, stream[0]));
        OK(cuMemFreeAsync(three, stream[0]));
        OK(cuStreamSynchronize(stream[0]));
        SOON(held() == 64 * MIB && figure(pool, 5) == 64 * MIB);
    }
    OK(cuMemPoolTrimTo(pool, 32 * MIB));
    SOON(held() == 32 * MIB && figure(pool, 5) == 32 * MIB);
    OK(cuMemPoolSetAttribute(pool, 4, &zero));
    SOON(held() == 0);
    // Pools of the job's own. A destroyed one leaves the job what it has.
    OK(cuMemPoolCreate(&own, &plain));
    OK(cuMemAllocFromPoolAsync(&one, 32 * MIB, own, stream[0]));
    OK(cuMemAllocFromPoolAsync(&two, 32 * MIB, own, stream[0]));
    OK(cuMemFreeAsync(two, stream[0]));
    MUST(figure(own, 7) == 32 * MIB && figure(pool, 7) == 0);
    OK(cuMemPoolDestroy(own));
    OK(cuMemsetD8Async(one, 7, 32 * MIB, stream[0]));
    OK(cuStreamSynchronize(stream[0]));
    SOON(held() == 32 * MIB);
    OK(cuMemFreeAsync(one, stream[0]));
    OK(cuStreamSynchronize(stream[0]));
    SOON(held() == 0);
    // Its memory may be shared with other processes, and stays the driver's.
    OK(cuMemPoolCreate(&shared, &exported));
    OK(cuMemAllocFromPoolAsync(&one, 32 * MIB, shared, stream[0]));
    OK(cuPointerGetAttribute(&of, 17, one));
    MUST(of == (ptr)(uintptr_t)shared && figure(shared, 7) == 32 * MIB);
    OK(cuMemFreeAsync(one, stream[0]));
    OK(cuStreamSynchronize(stream[0]));
    OK(cuMemPoolDestroy(shared));
    // In a capture the memory is the graph's. A free on another stream meanwhile is as any.
    handle graph;
    OK(cuMemAllocAsync(&one, 32 * MIB, stream[1]));
    OK(cuMemAllocAsync(&two, 32 * MIB, stream[1]));
    OK(cuStreamBeginCapture_v2(stream[0], 2));
    OK(cuMemAllocAsync(&three, 32 * MIB, stream[0]));
    OK(cuMemFreeAsync(three, stream[0]));
    OK(cuMemFreeAsync(one, stream[1]));
    OK(cuMemAllocAsync(&of, 32 * MIB, stream[1]));
    MUST(of == one);
    OK(cuMemFreeAsync(one, stream[1]));
    OK(cuStreamEndCapture(stream[0], &graph));
    OK(cuGraphDestroy(graph));
    OK(cuMemFreeAsync(two, stream[1]));
    held();
    OK(cuStreamSynchronize(stream[1]));
    SOON(held() == 0 && figure(pool, 5) == 0);
    // Memory of cuMemAlloc is freed in order too.
    OK(cuMemAlloc_v2(&one, 32 * MIB));
    work(1);
    OK(cuMemFreeAsync(one, stream[1]));
    MUST(cuStreamQuery(stream[1]) != 0 && held() == 32 * MIB);
    *word = 1;
    OK(cuStreamSynchronize(stream[1]));
    SOON(held() == 0);
    // A stream that ends leaves its blocks to others, after its work.
    OK(cuMemAllocAsync(&one, 32 * MIB, stream[1]));
    OK(cuMemFreeAsync(one, stream[1]));
    OK(cuStreamDestroy_v2(stream[1]));
    OK(cuCtxSynchronize());
    SOON(held() == 0);
}

static void trims(void) {
    enum { ALL = 1000 };
    static ptr all[ALL];
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < ALL; i++) OK(cuMemAllocAsync(&all[i], 2 * MIB, stream[0]));
        for (int i = 0; i < ALL; i++) OK(cuMemFreeAsync(all[i], stream[0]));
        OK(cuStreamSynchronize(stream[0]));
        // They go back after a second, one after the other.
        usleep(1000000 + (useconds_t)round * 40000);
        OK(cuMemPoolTrimTo(pool, 0));
        MUST(figure(pool, 5) == 0);
    }
}

int main(int count, char **arguments) {
    MUST(count >= 2);
    begin();
    make();
    if (!strcmp(arguments[1], "rules")) {
        rules();
    } else if (!strcmp(arguments[1], "trims")) {
        trims();
    } else {
        MUST(count >= 6);
        blocks = atoi(arguments[4]);
        most_pieces = atoi(arguments[5]);
        MUST(blocks > 0 && blocks <= MOST && most_pieces > 0);
        random_blocks(arguments[2], arguments[3], count > 6);
    }
    OK(cuDevicePrimaryCtxRelease_v2(device));
    puts("all as it should be");
    return 0;
}
