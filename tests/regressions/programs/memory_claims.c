// Threads that ask for more than any device has, next to one that takes a little. For a job that
// began without a broker: it has no more than it holds when a broker comes.
#include "memory_driver.h"

#define THREADS 4
#define BLOCKS 64

static handle context;
static atomic_int done;

static void *asks(void *nothing) {
    OK(cuCtxSetCurrent(context));
    while (!atomic_load(&done)) {
        ptr got;
        MUST(cuMemAlloc_v2(&got, 1ull << 50) == 2);
    }
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    begin();
    MUST(argc == 3);
    OK(cuCtxCreate_v2(&context, 0, device));
    stand(argv[1], argv[2]);
    for (int i = 0; i < THREADS; i++) MUST(!pthread_create(&threads[i], 0, asks, 0));
    // All of them ask by now, most of the time.
    usleep(20000);
    for (int i = 0; i < BLOCKS; i++) {
        ptr got;
        OK(cuMemAlloc_v2(&got, 2 * MIB));
    }
    atomic_store(&done, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return 0;
}
