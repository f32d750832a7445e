// Threads that launch are cancelled again and again, wherever they are. Argument: how often. Each is asked to end at a moment of its own; a thread that is never cancelled stays.
#include <string.h>
#include "plain.h"

static void *launches(void *nothing) {
    enter();
    for (;;) {
        for (int at = 0; at < 5; at++) fill(at, 0);
        check(cuStreamSynchronize(0));
        pthread_testcancel();
    }
    return nothing;
}

int main(int count, char **words) {
    open_gpu();
    int rounds = atoi(words[1]);
    for (int round = 0; round < rounds; round++) {
        pthread_t thread;
        void *end;
        pthread_create(&thread, 0, launches, 0);
        usleep(5000 + round * 1370);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        if (end != PTHREAD_CANCELED) { puts("not cancelled"); return 4; }
    }
    puts("all cancelled");
    return 0;
}
