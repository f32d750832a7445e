// A launch that was left behind at the gate fails later. What is made of that where the context has several references, and where other contexts come and go?
//   references hold FILE   launches until the file is gone, in bursts without pauses
//   references forgive     says after each step what the next call that may fail answers
//   references retain N    takes and gives back a reference N times while it launches; says how many events were made and destroyed
#include <sys/stat.h>
#include "strict.h"

static Handle context;

// A launch that is left behind, and fails. None is made meanwhile that could fail by itself.
static void fail(int error) {
    for (long before = strict_count("failed"); strict_count("failed") == before; strict_fail(0)) {
        leave_behind();
        strict_fail(error);
        while (left()) usleep(100);
    }
}

static int told(void) { return call(cuCtxSynchronize); }

int main(int count, char **words) {
    Handle other;
    context = open_strict();
    if (!strcmp(words[1], "hold")) {
        struct stat about;
        while (!stat(words[2], &about)) {
            for (int at = 0; at < 16; at++) launch();
            check(call(cuStreamSynchronize, stream));
        }
        return 0;
    }
    launch();
    check(call(cuStreamSynchronize, stream));
    if (!strcmp(words[1], "forgive")) {
        check(call(cuDevicePrimaryCtxRetain, &other, 0));
        fail(701);
        check(call(cuDevicePrimaryCtxRelease_v2, 0));
        printf("one of two references given back: %d\n", told());
        check(call(cuCtxCreate_v2, &other, 0, 0));
        check(call(cuCtxSetCurrent, context));
        fail(719);
        check(call(cuCtxDestroy_v2, other));
        printf("another context ended: %d\n", told());
        printf("and then: %d\n", told());
        fail(717);
        check(call(cuDevicePrimaryCtxRelease_v2, 0));
        check(call(cuDevicePrimaryCtxRetain, &context, 0));
        check(call(cuCtxSetCurrent, context));
        printf("the context itself ended: %d\n", told());
    } else {
        int rounds = atoi(words[2]);
        for (int round = 0; round < rounds; round++) {
            check(call(cuDevicePrimaryCtxRetain, &other, 0));
            for (int at = 0; at < 5; at++) launch();
            check(call(cuStreamSynchronize, stream));
            check(call(cuDevicePrimaryCtxRelease_v2, 0));
        }
        printf("%ld %ld\n", strict_count("events made"), strict_count("events gone"));
    }
    return 0;
}
