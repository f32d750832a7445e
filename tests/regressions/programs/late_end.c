// SPDX-License-Identifier: MIT OR Apache-2.0
// Launches once. Its last exit handler, which runs after weft's, takes two seconds.
#include "plain.h"

static void slow(void) {
    sleep(2);
}

int main(void) {
    atexit(slow);
    open_gpu();
    void *stream = new_stream();
    fill(1, stream);
    check(cuStreamSynchronize(stream));
    return 0;
}
