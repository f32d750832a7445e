// A host that calls nothing while it waits: it looks at a word that a host function behind its kernels counts up. Then streams and memory that go right
// behind their last launch, and a launch that must fail, at once and with its own error.
#include "plain.h"
#include <stdatomic.h>

static int (*cuLaunchHostFunc)(void *, void (*)(void *), void *);
static int (*cuMemFree_v2)(Address);
static int (*cuStreamDestroy_v2)(void *);

static atomic_uint told;

static void tell(void *nothing) {
    (void)nothing;
    atomic_fetch_add(&told, 1);
}

int main(void) {
    open_gpu();
    find(cuLaunchHostFunc);
    find(cuMemFree_v2);
    find(cuStreamDestroy_v2);
    void *stream = new_stream();
    for (unsigned turn = 1; turn <= 60; turn++) {
        for (unsigned value = 1; value < 8; value++) fill(1000 * turn + value, stream);
        check(cuLaunchHostFunc(stream, tell, 0));
        for (int waited = 0; atomic_load(&told) != turn; waited++) {
            if (waited == 20000) { fprintf(stderr, "turn %u: %u\n", turn, atomic_load(&told)); _exit(5); }
            usleep(500);
        }
    }
    unsigned long long count = 256;
    unsigned value = 1;
    void *arguments[] = {&scratch, &value, &count};
    int wrong = 0;
    for (int turn = 0; turn < 20; turn++) {
        Address memory;
        void *other = new_stream();
        check(cuMemAlloc_v2(&memory, 1024));
        for (unsigned number = 0; number < 30; number++) fill_at(memory, number, other);
        // A block of 2048 threads: no device has it.
        wrong += cuLaunchKernel(kernel, 1, 1, 1, 2048, 1, 1, 0, other, arguments, 0) != 0;
        wrong += cuLaunchKernel(kernel, 0, 1, 1, 32, 1, 1, 0, other, arguments, 0) != 0;
        check(cuMemFree_v2(memory));
        check(cuStreamDestroy_v2(other));
    }
    printf("%d refused, last %u\n", wrong, work(40, stream));
    return 0;
}
