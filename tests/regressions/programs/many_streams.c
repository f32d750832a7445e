// Launches round and round over many streams, and waits for all. Arguments: streams, launches. Prints nothing on stdout but `done`; milliseconds that it took on stderr.
#include <stdio.h>
#include <time.h>
#include "plain.h"

static int (*cuCtxSynchronize)(void);

static double now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e3 + at.tv_nsec / 1e6;
}

int main(int count, char **words) {
    int streams = atoi(words[1]), launches = atoi(words[2]);
    void **all = calloc(streams, sizeof *all);
    open_gpu();
    find(cuCtxSynchronize);
    for (int at = 0; at < streams; at++) all[at] = new_stream();
    fill(1, all[0]);
    check(cuCtxSynchronize());
    double begun = now_ms();
    for (int at = 0; at < launches; at++) fill(1, all[at % streams]);
    check(cuCtxSynchronize());
    fprintf(stderr, "took %.1f\n", now_ms() - begun);
    printf("done\n");
    return 0;
}
