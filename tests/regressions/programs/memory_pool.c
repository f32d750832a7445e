// Which stream gets a block that another one has freed in stream order while its own work still
// runs. For a job on managed memory.
#include "memory_driver.h"

#define BYTES (64 * MIB)

static handle context, spin;
static volatile uint32_t *word;
static ptr word_there;

// Work that ends when somebody says so, or half a minute later.
static void work(handle stream, int of_thread) {
    uint64_t limit = 30000000000ull;
    void *arguments[] = {&word_there, &limit};
    *word = 0;
    if (of_thread) OK(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0));
    else OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0));
}

static ptr freed;

// A thread whose last deed is to free a block that its work on its own default stream still uses.
static void *leaves(void *nothing) {
    OK(cuCtxSetCurrent(context));
    OK(cuMemAllocAsync_ptsz(&freed, BYTES, 0));
    work(0, 1);
    OK(cuMemFreeAsync_ptsz(freed, 0));
    // Its own order makes this right.
    ptr again;
    OK(cuMemAllocAsync_ptsz(&again, BYTES, 0));
    MUST(again == freed);
    OK(cuMemFreeAsync_ptsz(again, 0));
    return nothing;
}

// The next one: where it lies, the first one lay.
static void *comes(void *nothing) {
    ptr got;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAllocAsync_ptsz(&got, BYTES, 0));
    MUST(*word == 0);
    MUST(got != freed);
    *word = 1;
    OK(cuMemFreeAsync_ptsz(got, 0));
    return nothing;
}

int main(void) {
    handle module, stream, other;
    ptr first, got, own;
    void *host;
    begin();
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&spin, module, "simgpu_spin"));
    OK(cuMemHostAlloc(&host, 4096, 2));
    OK(cuMemHostGetDevicePointer_v2(&word_there, host, 0));
    word = host;

    // A stream that is destroyed while its work runs, and the legacy default stream.
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocAsync(&first, BYTES, stream));
    work(stream, 0);
    OK(cuMemFreeAsync(first, stream));
    // The stream itself has it again at once: its own order makes that right.
    OK(cuMemAllocAsync(&own, BYTES, stream));
    MUST(own == first);
    OK(cuMemFreeAsync(own, stream));
    OK(cuStreamDestroy_v2(stream));
    OK(cuMemAllocAsync(&got, BYTES, 0));
    MUST(*word == 0);
    MUST(got != first);
    // A new stream, which may have got the old one's handle.
    OK(cuStreamCreate(&other, 1));
    OK(cuMemAllocAsync(&own, BYTES, other));
    MUST(*word == 0);
    MUST(own != first);
    *word = 1;
    OK(cuCtxSynchronize());
    OK(cuMemFreeAsync(own, other));
    OK(cuMemFreeAsync(got, 0));
    OK(cuCtxSynchronize());

    // A thread that ends while its work runs, and the next one.
    pthread_t thread;
    MUST(!pthread_create(&thread, 0, leaves, 0));
    MUST(!pthread_join(thread, 0));
    MUST(!pthread_create(&thread, 0, comes, 0));
    MUST(!pthread_join(thread, 0));
    OK(cuCtxSynchronize());
    puts("all as it should be");
    return 0;
}
