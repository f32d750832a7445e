/* A background job in steps: some small kernels on a stream, then work of the host's alone, then a synchronisation. Prints what it did as one line of JSON.
 *
 *   starving KERNELS MICROSECONDS WARMUP SECONDS     so many kernels and so much host work a step; WARMUP seconds that do not count, then SECONDS that do
 *
 * The host's work is a sleep: it stands for reading data and the like, and takes no core from the jobs beside it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION(name, ...) static int (*name)(__VA_ARGS__)
FUNCTION(cuInit, unsigned);
FUNCTION(cuDeviceGet, int *, int);
FUNCTION(cuDevicePrimaryCtxRetain, void **, int);
FUNCTION(cuCtxSetCurrent, void *);
FUNCTION(cuStreamCreate, void **, unsigned);
FUNCTION(cuModuleLoadData, void **, const void *);
FUNCTION(cuModuleGetFunction, void **, void *, const char *);
FUNCTION(cuMemAlloc_v2, unsigned long *, unsigned long);
FUNCTION(cuStreamSynchronize, void *);
FUNCTION(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

#define FIND(name) \
    if (!(name = (void *)dlsym(library, #name))) { fprintf(stderr, "no " #name "\n"); return 2; }
#define DO(call) \
    if ((code = (call))) { fprintf(stderr, "%s: %d\n", #call, code); return 3; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    if (count != 5) { fprintf(stderr, "usage: starving KERNELS MICROSECONDS WARMUP SECONDS\n"); return 2; }
    int kernels = atoi(words[1]), code;
    long host = atol(words[2]);
    double warmup = atof(words[3]), seconds = atof(words[4]);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    FIND(cuInit) FIND(cuDeviceGet) FIND(cuDevicePrimaryCtxRetain) FIND(cuCtxSetCurrent) FIND(cuStreamCreate) FIND(cuModuleLoadData)
    FIND(cuModuleGetFunction) FIND(cuMemAlloc_v2) FIND(cuStreamSynchronize) FIND(cuLaunchKernel)

    static char image[1 << 20];
    FILE *file = fopen(KERNELS, "r");
    if (!file) { perror(KERNELS); return 2; }
    image[fread(image, 1, sizeof image - 1, file)] = 0;
    fclose(file);
    int device;
    void *context, *module, *function, *stream;
    DO(cuInit(0))
    DO(cuDeviceGet(&device, 0))
    DO(cuDevicePrimaryCtxRetain(&context, device))
    DO(cuCtxSetCurrent(context))
    DO(cuStreamCreate(&stream, 1))
    DO(cuModuleLoadData(&module, image))
    DO(cuModuleGetFunction(&function, module, "simgpu_fill"))
    unsigned long data;
    DO(cuMemAlloc_v2(&data, 4096))
    unsigned long arguments[3] = {data, 2, 16};
    void *parameters[] = {arguments, arguments + 1, arguments + 2};

    static double took[1 << 20];
    int steps = 0;
    double begin = now() + warmup, end = begin + seconds, worst = 0, sum = 0;
    for (double before = now(); before < end;) {
        /* 64 threads: the device's settings give this size a short kernel, and the foreground job's a long one. */
        for (int i = 0; i < kernels; i++) DO(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, parameters, 0))
        struct timespec work = {host / 1000000, host % 1000000 * 1000};
        if (host > 0) nanosleep(&work, 0);
        DO(cuStreamSynchronize(stream))
        double after = now(), step = after - before;
        if (after >= begin && steps < 1 << 20) {
            took[steps++] = step;
            sum += step;
            if (step > worst) worst = step;
        }
        before = after;
    }
    if (!steps) { fprintf(stderr, "not one step\n"); return 4; }
    qsort(took, steps, sizeof *took, by_size);
    printf("{\"steps\": %d, \"seconds\": %.6f, \"median\": %.6f, \"worst\": %.6f}\n", steps, sum, took[steps / 2], worst);
    return 0;
}
