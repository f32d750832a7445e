// A background job with two contexts: a framework's, and one of a library beside it. Arguments: which one has the further launches (1 or 2), how many, and a file; it stays until that is gone.
#include "plain.h"

static int (*cuCtxCreate_v2)(void **, unsigned, int);

int main(int count, char **words) {
    void *second, *its;
    open_gpu();
    find(cuCtxCreate_v2);
    for (int at = 0; at < 100; at++) fill(1, 0);
    check(cuStreamSynchronize(0));
    if (atoi(words[1]) == 2) {
        check(cuCtxCreate_v2(&second, 0, 0));
        FILE *file = fopen(KERNELS, "r");
        static char kernels[1 << 16];
        kernels[fread(kernels, 1, sizeof kernels - 1, file)] = 0;
        fclose(file);
        check(cuModuleLoadData(&its, kernels));
        check(cuModuleGetFunction(&kernel, its, "simgpu_fill"));
        check(cuMemAlloc_v2(&scratch, 1024));
    }
    for (int at = 0; at < atoi(words[2]); at++) fill(2, 0);
    check(cuStreamSynchronize(0));
    puts("done");
    fflush(stdout);
    while (!access(words[3], F_OK)) usleep(10000);
    return 0;
}
