// A job whose memory can be moved: it writes with copies, fills, kernels and a graph on two streams,
// and compares all of its memory with a copy on the host again and again. Another thread waits for
// its own work all the while.
//   movable ready running MIB [capture]
#include "memory_driver.h"

#define BLOCKS 6

static handle context;
static handle fill;
static const char *running;
static atomic_long waits;

static struct { ptr at; size_t bytes; uint32_t *mirror; } block[BLOCKS];

static void launch(handle stream, ptr at, uint32_t value, uint64_t words) {
    void *arguments[] = {&at, &value, &words};
    OK(cuLaunchKernel(fill, 8, 1, 1, 64, 1, 1, 0, stream, arguments, 0));
}

// A thread that is nearly always in a wait for its stream.
static void *waiter(void *nothing) {
    handle stream;
    ptr own;
    uint32_t seen[1024];
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAlloc_v2(&own, 2 * MIB));
    for (uint32_t round = 1; round == 1 || access(running, F_OK) == 0; round++) {
        launch(stream, own, round, 2 * MIB / 4);
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH_v2(seen, own + MIB, sizeof seen));
        for (int i = 0; i < 1024; i++) MUST(seen[i] == round);
        atomic_fetch_add(&waits, 1);
    }
    OK(cuMemFree_v2(own));
    return nothing;
}

static void compare(uint32_t *seen) {
    for (int i = 0; i < BLOCKS; i++) {
        OK(cuMemcpyDtoH_v2(seen, block[i].at, block[i].bytes));
        MUST(!memcmp(seen, block[i].mirror, block[i].bytes));
    }
}

static void set(uint32_t *to, uint32_t value, size_t words) {
    for (size_t i = 0; i < words; i++) to[i] = value;
}

int main(int count, char **arguments) {
    handle module, stream[2], graph, exec;
    pthread_t thread;
    MUST(count >= 4);
    running = arguments[2];
    size_t each = strtoull(arguments[3], 0, 10) * MIB / BLOCKS, most = 0;
    begin();
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&fill, module, "simgpu_fill"));
    for (int i = 0; i < 2; i++) OK(cuStreamCreate(&stream[i], 1));
    srand(4711);
    for (int i = 0; i < BLOCKS; i++) {
        // The first one is small and stays plain. The others are no whole pieces.
        size_t bytes = i ? (each + (size_t)i * 4096) & ~(size_t)4095 : MIB;
        block[i].bytes = bytes;
        most = bytes > most ? bytes : most;
        OK(cuMemAlloc_v2(&block[i].at, bytes));
        block[i].mirror = malloc(bytes);
        for (size_t word = 0; word < bytes / 4; word++) block[i].mirror[word] = (uint32_t)(word * 2654435761u + (uint32_t)i);
        OK(cuMemcpyHtoD_v2(block[i].at, block[i].mirror, bytes));
        // As for plain memory.
        ptr start, of;
        size_t size;
        OK(cuMemGetAddressRange_v2(&start, &size, block[i].at + bytes / 2));
        MUST(start == block[i].at && size == bytes);
        OK(cuPointerGetAttribute(&of, 1, block[i].at));
        MUST(of == (ptr)(uintptr_t)context);
        OK(cuPointerGetAttribute(&of, 12, block[i].at));
        MUST(of == bytes);
    }
    uint32_t *seen = malloc(most);
    OK(cuStreamBeginCapture_v2(stream[0], 2));
    launch(stream[0], block[2].at + 4096, 77, 4096);
    launch(stream[0], block[3].at + 8192, 78, 4096);
    OK(cuStreamEndCapture(stream[0], &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(!pthread_create(&thread, 0, waiter, 0));
    FILE *file = fopen(arguments[1], "w");
    MUST(file);
    fclose(file);
    int capturing = count > 4 && !strcmp(arguments[4], "capture");
    if (capturing) OK(cuStreamBeginCapture_v2(stream[0], 2));
    long rounds = 0;
    for (; rounds == 0 || access(running, F_OK) == 0; rounds++) {
        if (capturing) { usleep(1000); continue; }
        uint32_t value = (uint32_t)rand();
        size_t from = (size_t)(rand() % 64) * 4096, words = 1024 * (size_t)(1 + rand() % 32);
        launch(stream[0], block[1].at + from, value, words);
        set(block[1].mirror + from / 4, value, words);
        OK(cuGraphLaunch(exec, stream[0]));
        set(block[2].mirror + 1024, 77, 4096);
        set(block[3].mirror + 2048, 78, 4096);
        OK(cuMemsetD8Async(block[4].at + from, (unsigned char)value, words, stream[1]));
        memset((char *)block[4].mirror + from, (unsigned char)value, words);
        OK(cuStreamSynchronize(stream[0]));
        OK(cuMemcpyDtoDAsync_v2(block[5].at + from, block[1].at + from, words * 4, stream[1]));
        memcpy((char *)block[5].mirror + from, (char *)block[1].mirror + from, words * 4);
        OK(cuStreamSynchronize(stream[1]));
        if (rounds % 8 == 0) compare(seen);
    }
    if (capturing) OK(cuStreamEndCapture(stream[0], &graph));
    MUST(!pthread_join(thread, 0));
    compare(seen);
    MUST(rounds > 0 && waits > 0);
    for (int i = 0; i < BLOCKS; i++) OK(cuMemFree_v2(block[i].at));
    OK(cuCtxDestroy_v2(context));
    puts("all as it should be");
    return 0;
}
