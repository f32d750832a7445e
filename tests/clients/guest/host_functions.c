// A host function that blocks its stream until another thread has launched and synchronised on another one; stream callbacks; threads with the smallest stack.
#include "plain.h"
#include <limits.h>
#include <stdatomic.h>

static int (*cuLaunchHostFunc)(void *, void (*)(void *), void *);
static int (*cuStreamAddCallback)(void *, void (*)(void *, int, void *), void *, unsigned);
static atomic_int done, called;

static void block(void *nothing) {
    (void)nothing;
    for (int turn = 0; !atomic_load(&done); turn++) {
        if (turn == 20000) { fprintf(stderr, "the other thread does not get on\n"); _exit(5); }
        usleep(1000);
    }
}

static void count(void *stream, int result, void *nothing) {
    (void)stream; (void)nothing;
    if (!result) atomic_fetch_add(&called, 1);
}

static void *other(void *nothing) {
    enter();
    work(150, new_stream());
    atomic_store(&done, 1);
    return nothing;
}

int main(void) {
    open_gpu();
    find(cuLaunchHostFunc);
    find(cuStreamAddCallback);
    void *stream = new_stream();
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN);
    for (int turn = 0; turn < 2; turn++) {
        pthread_t thread;
        atomic_store(&done, 0);
        for (unsigned value = 0; value < 50; value++) fill(value, stream);
        check(cuLaunchHostFunc(stream, block, 0));
        for (unsigned value = 0; value < 50; value++) fill(value, stream);
        if (pthread_create(&thread, &small, other, 0)) return 4;
        check(cuStreamSynchronize(stream));
        pthread_join(thread, 0);
    }
    for (unsigned value = 0; value < 200; value++) {
        fill(value, stream);
        check(cuStreamAddCallback(stream, count, 0, 0));
    }
    check(cuStreamSynchronize(stream));
    printf("%d called, last %u\n", atomic_load(&called), work(5, stream));
    return 0;
}
