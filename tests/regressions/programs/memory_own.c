// A program that takes managed memory itself, more than the device has, and then a little device
// memory.
//
//   memory_own RESIDENT READY RUNNING      RESIDENT MiB of it are brought to the device
#include "memory_driver.h"

int main(int count, char **words) {
    handle context;
    ptr managed, plain;
    size_t before, after, total;
    MUST(count == 4);
    begin();
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuMemAllocManaged(&managed, 10 * GIB, 1));
    size_t resident = (size_t)atoi(words[1]) * MIB;
    if (resident) {
        OK(cuMemPrefetchAsync(managed, resident, device, 0));
        OK(cuCtxSynchronize());
    }
    OK(cuMemGetInfo_v2(&after, &total));
    printf("free %zu, then %zu of %zu MiB\n", before >> 20, after >> 20, total >> 20);
    fflush(stdout);
    MUST(resident || after == before);
    OK(cuMemAlloc_v2(&plain, 64 * MIB));
    stand(words[2], words[3]);
    OK(cuMemFree_v2(managed));
    OK(cuMemFree_v2(plain));
    return 0;
}
