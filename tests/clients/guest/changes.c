// Launches that succeeded many times and then may not: shared memory that the function is no longer allowed, a stream that has ended. Each must be refused at once,
// with its own error, and what is made behind it must be made. Beside that a thread that launches all the while, which nobody may have to wait for.
#include "plain.h"
#include <stdatomic.h>

static int (*cuFuncSetAttribute)(void *, int, int);
static int (*cuMemFree_v2)(Address);
static int (*cuStreamDestroy_v2)(void *);

enum { SHARED = 8, TURNS = 30, SHORT = 6 };

static atomic_int ends;

static int launch(Address memory, unsigned value, unsigned shared, void *stream) {
    unsigned long long count = 256;
    void *arguments[] = {&memory, &value, &count};
    return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, shared, stream, arguments, 0);
}

static void *others(void *stream) {
    enter();
    for (unsigned number = 0; !atomic_load(&ends); number++) fill(number, stream);
    check(cuStreamSynchronize(stream));
    return 0;
}

int main(void) {
    open_gpu();
    find(cuFuncSetAttribute);
    find(cuMemFree_v2);
    find(cuStreamDestroy_v2);
    void *stream = new_stream();
    int refused = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        check(cuFuncSetAttribute(kernel, SHARED, 4096));
        for (unsigned number = 0; number < 40; number++) check(launch(scratch, number, 2048, stream));
        check(cuFuncSetAttribute(kernel, SHARED, 1024));
        for (unsigned number = 0; number < 10; number++) check(launch(scratch, number, 512, stream));
        int answer = launch(scratch, 1, 2048, stream);
        if (!answer) { fprintf(stderr, "turn %d: a launch with too much shared memory was taken\n", turn); _exit(5); }
        refused += answer;
        for (unsigned number = 0; number < 10; number++) check(launch(scratch, number, 512, stream));
    }
    printf("%d in all, last %u\n", refused, work(40, stream));
    check(cuFuncSetAttribute(kernel, SHARED, 4096));
    pthread_t thread;
    if (pthread_create(&thread, 0, others, new_stream())) return 4;
    for (int turn = 0; turn < SHORT; turn++) {
        void *other = new_stream();
        if (work(40, other) != 39) return 6;
        check(cuStreamDestroy_v2(other));
    }
    atomic_store(&ends, 1);
    pthread_join(thread, 0);
    printf("done\n");
    return 0;
}
