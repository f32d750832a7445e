// Asks whether a stream is ready while another thread keeps launching. Argument: 1, the other thread's stream does not wait for the legacy default one, or 0, it does.
//   First the default stream is asked 4,000 times, then, if the other thread's is not its business, that one until it is ready.
#include <string.h>
#include <stdatomic.h>
#include "plain.h"

static int (*cuStreamQuery)(void *);
static void *stream;
static atomic_long launches;
static atomic_int stop;

static void *feeds(void *nothing) {
    enter();
    while (!stop) {
        fill(1, stream);
        if (++launches % 64 == 0) usleep(200);
    }
    return nothing;
}

int main(int count, char **words) {
    unsigned flags = atoi(words[1]);
    long ready = 0;
    pthread_t thread;
    open_gpu();
    find(cuStreamQuery);
    check(cuStreamCreate(&stream, flags));
    pthread_create(&thread, 0, feeds, 0);
    while (launches < 200) usleep(100);
    if (flags) {
        for (int at = 0; at < 4000; at++) { ready += !cuStreamQuery(0); if (at % 8 == 0) usleep(50); }
        printf("of its own: %ld\n", ready);
        long before = launches;
        for (ready = 0; !ready; usleep(50)) ready = !cuStreamQuery(stream);
        printf("the other's came to rest: %ld\n", ready);
        fprintf(stderr, "after %ld launches\n", launches - before);
    } else {
        for (ready = 0; !ready; usleep(50)) ready = !cuStreamQuery(0);
        printf("what it waits for came to rest: %ld\n", ready);
    }
    fflush(stdout);
    stop = 1;
    pthread_join(thread, 0);
    return 0;
}
