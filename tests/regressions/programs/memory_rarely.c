// A training job that synchronises rarely: once at its beginning, then it launches until it is
// killed.
//
//   memory_rarely LAUNCHES READY      says so after so many launches
#include "memory_driver.h"

int main(int count, char **words) {
    handle context, module, fill;
    ptr block;
    MUST(count == 3);
    begin();
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&fill, module, "simgpu_fill"));
    OK(cuMemAlloc_v2(&block, MIB));
    for (long launched = 0;; launched++) {
        uint64_t n = 1000;
        uint32_t value = 7;
        void *arguments[] = {&block, &value, &n};
        // Eight shapes: eight identities.
        OK(cuLaunchKernel(fill, 1 + launched % 8, 1, 1, 128, 1, 1, 0, 0, arguments, 0));
        if (launched == 50) OK(cuCtxSynchronize());
        if (launched == atol(words[1])) fclose(fopen(words[2], "w"));
        usleep(100);
    }
}
