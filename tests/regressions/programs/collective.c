// A background job at a closed gate, with launches of its own in the queue, that launches a collective of NCCL's: it reaches the driver at once, and all that was launched before it has.
#include "strict.h"

int main(void) {
    open_strict();
    Handle module, collective;
    check(call(cuModuleLoadData, &module, "code"));
    check(call(cuModuleGetFunction, &collective, module, "_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"));
    unsigned long long memory = 0;
    void *arguments[] = {&memory};
    launch();
    check(call(cuStreamSynchronize, stream));
    // What was launched before with success may be left behind the next time: the collective, too.
    for (int tries = 0; tries < 3; tries++) {
        check(call(cuLaunchKernel, collective, 24, 1, 1, 512, 1, 1, 0, stream, (Handle)arguments, (Handle)0));
        made++;
        check(call(cuStreamSynchronize, stream));
    }
    long with_queue = 0, behind = 0;
    for (int round = 0; round < 20; round++) {
        leave_behind();
        with_queue += left() > 0;
        check(call(cuLaunchKernel, collective, 24, 1, 1, 512, 1, 1, 0, stream, (Handle)arguments, (Handle)0));
        made++;
        behind += left();
    }
    printf("rounds with a queue: %s, left when the collective was launched: %ld\n", with_queue ? "some" : "none", behind);
    return 0;
}
