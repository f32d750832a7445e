// A job with dependent launches (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION), and with an event that a launch records (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT). What a second stream copies after that event is what the last launch of the first one wrote.
#include "plain.h"

typedef struct { unsigned grid[3], block[3], shared; void *stream; const void *attributes; unsigned count; } Config;
typedef struct { unsigned kind, padding; union { char bytes[64]; int allowed; void *event; } value; } Attribute;

static int (*cuLaunchKernelEx)(const Config *, void *, void **, void **);
static int (*cuEventCreate)(void **, unsigned);
static int (*cuStreamWaitEvent)(void *, void *, unsigned);

// A fill in many blocks, so that it takes the device longer than its launch takes the host.
static void fill_with(Address memory, unsigned value, void *stream, const Attribute *attribute) {
    Config config = {{20000, 1, 1}, {256, 1, 1}, 0, stream, attribute, 1};
    unsigned long long count = 256;
    void *arguments[] = {&memory, &value, &count};
    check(cuLaunchKernelEx(&config, kernel, arguments, 0));
}

int main(void) {
    open_gpu();
    find(cuLaunchKernelEx); find(cuEventCreate); find(cuStreamWaitEvent);
    void *first = new_stream(), *second = new_stream(), *event, *copy;
    check(cuModuleGetFunction(&copy, module, "simgpu_copy"));
    check(cuEventCreate(&event, 2));
    Address from, to;
    unsigned long long bytes = 1024;
    check(cuMemAlloc_v2(&from, bytes));
    check(cuMemAlloc_v2(&to, bytes));
    Attribute dependent = {6, 0, {.allowed = 1}}, recording = {7, 0, {.event = event}};
    for (unsigned round = 1; round <= 40; round++) {
        for (unsigned at = 0; at < 8; at++) fill_with(from, at, first, &dependent);
        fill_with(from, 1000 + round, first, &recording);
        check(cuStreamWaitEvent(second, event, 0));
        void *arguments[] = {&to, &from, &bytes};
        check(cuLaunchKernel(copy, 1, 1, 1, 32, 1, 1, 0, second, arguments, 0));
        check(cuStreamSynchronize(second));
        unsigned data[256];
        check(cuMemcpyDtoH_v2(data, to, bytes));
        for (int at = 0; at < 256; at++) if (data[at] != 1000 + round) { printf("round %u: %u\n", round, data[at]); return 6; }
    }
    puts("in order");
    return 0;
}
