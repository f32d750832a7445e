// Works in the device's primary context, ends it, and works in it again: the context has the same handle each time, and nothing of what was in it.
//   By turns it is released and reset.
#include "plain.h"

static int (*cuDevicePrimaryCtxRelease_v2)(int), (*cuDevicePrimaryCtxReset_v2)(int);

int main(void) {
    open_gpu();
    find(cuDevicePrimaryCtxRelease_v2); find(cuDevicePrimaryCtxReset_v2);
    for (int round = 0; round < 6; round++) {
        void *stream = new_stream();
        for (int turn = 0; turn < 20; turn++) printf("%u ", work(50, stream));
        printf("\n");
        // Some of it is still on its way.
        for (int at = 0; at < 200; at++) fill(at, stream);
        if (round % 2) check(cuDevicePrimaryCtxRelease_v2(0));
        else check(cuDevicePrimaryCtxReset_v2(0));
        open_gpu();
    }
    return 0;
}
