// Physical memory lives as long as it has a handle or is mapped. For a job with a figure.
#include "memory_driver.h"

int main(void) {
    begin();
    handle context;
    properties of_device = {.type = 1, .place = 1, .device = device};
    uint64_t physical, retained, other;
    ptr range;
    const size_t bytes = 512 * MIB;
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuMemAddressReserve(&range, 2 * bytes, 0, 0, 0));
    // Released right after it was mapped, as programs do: it lives until it is unmapped.
    OK(cuMemCreate(&physical, bytes, &of_device, 0));
    OK(cuMemMap(range, bytes, 0, physical, 0));
    OK(cuMemRelease(physical));
    MUST(held() == bytes);
    OK(cuMemsetD8Async(range, 1, MIB, 0));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(range, bytes));
    MUST(held() == 0);
    // Mapped twice, and each unmapped by itself.
    OK(cuMemCreate(&physical, bytes, &of_device, 0));
    OK(cuMemMap(range, bytes, 0, physical, 0));
    OK(cuMemMap(range + bytes, bytes, 0, physical, 0));
    OK(cuMemRelease(physical));
    OK(cuMemUnmap(range, bytes));
    MUST(held() == bytes);
    OK(cuMemUnmap(range + bytes, bytes));
    MUST(held() == 0);
    // A handle that was got back from an address keeps it, too.
    OK(cuMemCreate(&physical, bytes, &of_device, 0));
    OK(cuMemMap(range, bytes, 0, physical, 0));
    OK(cuMemRelease(physical));
    OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(range + MIB)));
    OK(cuMemUnmap(range, bytes));
    MUST(held() == bytes);
    OK(cuMemRelease(retained));
    MUST(held() == 0);
    // Two in neighbouring ranges, unmapped together.
    OK(cuMemCreate(&physical, bytes, &of_device, 0));
    OK(cuMemCreate(&other, bytes, &of_device, 0));
    OK(cuMemMap(range, bytes, 0, physical, 0));
    OK(cuMemMap(range + bytes, bytes, 0, other, 0));
    OK(cuMemRelease(physical));
    MUST(held() == 2 * bytes);
    // What the driver refuses changes nothing.
    MUST(cuMemMap(range, bytes, 0, other, 0) != 0);
    MUST(cuMemUnmap(range + 4 * bytes, bytes) != 0);
    MUST(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(range + 4 * bytes)) != 0);
    MUST(held() == 2 * bytes);
    OK(cuMemUnmap(range, 2 * bytes));
    MUST(held() == bytes);
    OK(cuMemRelease(other));
    MUST(held() == 0);
    MUST(cuMemRelease(other) != 0);
    MUST(held() == 0);
    OK(cuMemAddressFree(range, 2 * bytes));
    puts("all as it should be");
    return 0;
}
