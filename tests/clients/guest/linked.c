// A program that is linked against libcuda.so.1: it opens nothing by itself.
#include <stdio.h>

int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDriverGetVersion(int *);

int main(void) {
    int devices = 0, version = 0, init = cuInit(0);
    printf("init %d", init);
    printf(", devices %d", cuDeviceGetCount(&devices) ? -1 : devices);
    printf(", version %s\n", cuDriverGetVersion(&version) || version < 12000 ? "none" : "known");
    return 0;
}
