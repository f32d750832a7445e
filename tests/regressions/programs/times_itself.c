// Times a kernel as an auto-tuner does: an event, a launch, an event, so many times. Says how many pairs lie further apart than so many ms, after the last one. Arguments: pairs, ms, and a file; it stays until that is gone.
#include "plain.h"

static int (*cuEventCreate)(void **, unsigned);
static int (*cuEventRecord)(void *, void *);
static int (*cuEventElapsedTime)(float *, void *, void *);

static void timed(void *stream) {
    unsigned long long size = 256;
    unsigned value = 1;
    void *arguments[] = {&scratch, &value, &size};
    check(cuLaunchKernel(kernel, 5, 1, 1, 32, 1, 1, 0, stream, arguments, 0));
}

int main(int count, char **words) {
    int pairs = atoi(words[1]), far = 0;
    void *events[2][256];
    open_gpu();
    find(cuEventCreate); find(cuEventRecord); find(cuEventElapsedTime);
    void *stream = new_stream();
    for (int at = 0; at < pairs; at++) for (int end = 0; end < 2; end++) check(cuEventCreate(&events[end][at], 0));
    // Any load is long over.
    usleep(400000);
    for (int at = 0; at < 5; at++) timed(stream);
    check(cuStreamSynchronize(stream));
    for (int at = 0; at < pairs; at++) {
        check(cuEventRecord(events[0][at], stream));
        timed(stream);
        check(cuEventRecord(events[1][at], stream));
    }
    check(cuStreamSynchronize(stream));
    for (int at = 0; at < pairs; at++) {
        float ms;
        check(cuEventElapsedTime(&ms, events[0][at], events[1][at]));
        fprintf(stderr, "%.2f ", ms);
        far += ms > atof(words[2]);
    }
    printf("%d\n", far);
    fflush(stdout);
    while (!access(words[3], F_OK)) usleep(10000);
    return 0;
}
