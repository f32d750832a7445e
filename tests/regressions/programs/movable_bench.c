// Jobs of `scripts/bench evict`. All memory is in blocks of 64 MiB.
//   movable_bench batch ready MIB rounds      fills parts of its memory, round by round
//   movable_bench service ready MIB           one request, a kernel on each block; ends at `ready.go`
//   movable_bench server ready MIB running    measures the link, then a request a file `ready.go`
//   movable_bench takes ready MIB count       takes and frees one block of that size again and again
// Each prints words: milliseconds of the clock of all processes, rates in bytes a millisecond, and a
// batch job a hash of its memory.
#include "memory_driver.h"
#include <time.h>

#define BLOCK (64 * MIB)
#define MOST 64

static handle context, module, fill, stream;
static ptr block[MOST];
static int blocks;
static void *pinned;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void touch(const char *name) {
    FILE *file = fopen(name, "w");
    MUST(file);
    fclose(file);
}

static void request(uint32_t value) {
    uint64_t words = 1024;
    for (int i = 0; i < blocks; i++) {
        void *arguments[] = {&block[i], &value, &words};
        OK(cuLaunchKernel(fill, 8, 1, 1, 64, 1, 1, 0, stream, arguments, 0));
    }
    OK(cuStreamSynchronize(stream));
}

// Both ways, as weft moves memory: whole blocks by way of pinned memory.
static void measure(void) {
    double begun = now_ms();
    for (int i = 0; i < blocks; i++) OK(cuMemcpyDtoH_v2(pinned, block[i], BLOCK));
    double middle = now_ms();
    for (int i = 0; i < blocks; i++) OK(cuMemcpyHtoD_v2(block[i], pinned, BLOCK));
    double bytes = (double)blocks * (double)BLOCK;
    printf("to_host %f to_device %f\n", bytes / (middle - begun), bytes / (now_ms() - middle));
    fflush(stdout);
}

static int order(const void *one, const void *other) {
    double left = *(const double *)one, right = *(const double *)other;
    return (left > right) - (left < right);
}

// Median times of an allocation and of its free, microseconds.
static void takes(size_t bytes, int count) {
    static double taken[1000], freed[1000];
    MUST(count > 0 && count <= 1000);
    for (int i = 0; i < count; i++) {
        double begun = now_ms();
        OK(cuMemAlloc_v2(&block[0], bytes));
        double middle = now_ms();
        OK(cuMemFree_v2(block[0]));
        taken[i] = (middle - begun) * 1e3;
        freed[i] = (now_ms() - middle) * 1e3;
    }
    qsort(taken, (size_t)count, sizeof *taken, order);
    qsort(freed, (size_t)count, sizeof *freed, order);
    printf("taken_us %f freed_us %f\n", taken[count / 2], freed[count / 2]);
}

static uint64_t hash(void) {
    uint64_t sum = 1469598103934665603ull;
    for (int i = 0; i < blocks; i++) {
        OK(cuMemcpyDtoH_v2(pinned, block[i], BLOCK));
        for (size_t word = 0; word < BLOCK / 8; word++) sum = (sum ^ ((uint64_t *)pinned)[word]) * 1099511628211ull;
    }
    return sum;
}

int main(int count, char **arguments) {
    char go[512];
    MUST(count >= 4);
    const char *role = arguments[1], *ready = arguments[2];
    snprintf(go, sizeof go, "%s.go", ready);
    size_t wanted = strtoull(arguments[3], 0, 10) * MIB;
    blocks = (int)(wanted / BLOCK);
    double begun = now_ms();
    begin();
    OK(cuCtxCreate_v2(&context, 0, device));
    if (!strcmp(role, "takes")) {
        MUST(count >= 5);
        takes(wanted, (int)strtol(arguments[4], 0, 10));
        return 0;
    }
    MUST(blocks > 0 && blocks <= MOST);
    double context_ms = now_ms();
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&fill, module, "simgpu_fill"));
    OK(cuStreamCreate(&stream, 1));
    for (int i = 0; i < blocks; i++) OK(cuMemAlloc_v2(&block[i], BLOCK));
    if (!strcmp(role, "service")) {
        request(1);
        printf("begun %f context %f answered %f\n", begun, context_ms, now_ms());
        touch(ready);
        for (int i = 0; i < 6000 && access(go, F_OK); i++) usleep(10000);
        return 0;
    }
    OK(cuMemHostAlloc(&pinned, BLOCK, 0));
    for (int i = 0; i < blocks; i++) {
        for (size_t word = 0; word < BLOCK / 8; word++) ((uint64_t *)pinned)[word] = word * 0x9e3779b97f4a7c15ull + (uint64_t)i;
        OK(cuMemcpyHtoD_v2(block[i], pinned, BLOCK));
    }
    if (!strcmp(role, "batch")) {
        touch(ready);
        MUST(count >= 5);
        long rounds = strtol(arguments[4], 0, 10);
        for (uint32_t round = 1; round <= rounds; round++) {
            request(round);
            usleep(5000);
        }
        printf("hash %llu\n", (unsigned long long)hash());
        return 0;
    }
    MUST(!strcmp(role, "server") && count >= 5);
    measure();
    touch(ready);
    for (uint32_t round = 1; access(arguments[4], F_OK) == 0; usleep(1000)) {
        if (access(go, F_OK)) continue;
        unlink(go);
        double called = now_ms();
        request(round++);
        printf("wake %f\n", now_ms() - called);
        fflush(stdout);
    }
    return 0;
}
