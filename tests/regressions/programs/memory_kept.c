// A program whose memory the driver keeps for it: in pools, in graphs, in arrays. At each step it
// looks at what is counted as held. It is to have a share of 7 GiB.
//
//   memory_kept pools|graphs|arrays                 goes through them, and checks
//   memory_kept beyond                             has 2 GiB, and takes more
//   memory_kept keeps READY RUNNING                 leaves 4 GiB in the default pool, and stands
//   memory_kept elsewhere READY RUNNING             takes 2 GiB of the second device's pool on a stream of the first
//   memory_kept ordinal NUMBER READY RUNNING        asks for a device that there is not, then takes 2 GiB
#include "memory_driver.h"

#define CALL(name, ...) ((int (*)())dlsym(RTLD_DEFAULT, name))(__VA_ARGS__)
enum { OUT_OF_MEMORY = 2, THRESHOLD = 4, RESERVED = 5 };
typedef struct { properties common; char rest[88 - sizeof(properties)]; const void *access; size_t accesses, bytes; ptr at; } node_parameters;
_Static_assert(sizeof(node_parameters) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");

static handle stream;

static void kept(handle pool, unsigned long long bytes) { OK(CALL("cuMemPoolSetAttribute", pool, THRESHOLD, &bytes)); }

static void pools(void) {
    handle own, pool;
    ptr at, other;
    OK(CALL("cuDeviceGetDefaultMemPool", &own, device));
    // By default a pool keeps nothing beyond a synchronisation.
    OK(cuMemAllocAsync(&at, 2 * GIB, stream));
    MUST(held() == 2 * GIB);
    OK(cuMemFreeAsync(at, stream));
    OK(cuStreamSynchronize(stream));
    MUST(held() == 0);
    kept(own, ~0ull);
    for (int i = 0; i < 100; i++) {
        OK(cuMemAllocAsync(&at, 2 * GIB, stream));
        OK(cuMemFreeAsync(at, stream));
    }
    OK(cuStreamSynchronize(stream));
    MUST(held() == 2 * GIB);
    OK(CALL("cuMemPoolTrimTo", own, (size_t)0));
    MUST(held() == 0);
    // An allocation outside of pools may take the memory that a pool keeps.
    OK(cuMemAllocAsync(&at, 5 * GIB, stream));
    OK(cuMemFreeAsync(at, stream));
    OK(cuStreamSynchronize(stream));
    MUST(held() == 5 * GIB);
    OK(cuMemAlloc_v2(&other, 4 * GIB));
    MUST(held() == 4 * GIB);
    OK(cuMemFree_v2(other));
    // A pool of its own, as RMM has.
    struct { properties common; char rest[88 - sizeof(properties)]; } wants = {{.type = 1, .place = 1, .device = device}};
    OK(CALL("cuMemPoolCreate", &pool, &wants));
    kept(pool, ~0ull);
    OK(CALL("cuMemAllocFromPoolAsync", &at, (size_t)GIB, pool, stream));
    OK(CALL("cuMemAllocFromPoolAsync", &other, (size_t)GIB, pool, stream));
    OK(cuMemFreeAsync(at, stream));
    OK(cuStreamSynchronize(stream));
    MUST(held() == 2 * GIB);
    MUST(CALL("cuMemAllocFromPoolAsync", &at, (size_t)7 * GIB, pool, stream) == OUT_OF_MEMORY);
    OK(CALL("cuMemPoolDestroy", pool));
    MUST(held() == GIB);
    OK(cuMemFreeAsync(other, stream));
    OK(cuStreamSynchronize(stream));
    MUST(held() == 0);
}

static void graphs(void) {
    handle graph, node, run;
    ptr at;
    node_parameters wants = {.common = {.type = 1, .place = 1, .device = device}, .bytes = 3 * GIB};
    OK(CALL("cuGraphCreate", &graph, 0));
    OK(CALL("cuGraphAddMemAllocNode", &node, graph, (handle)0, (size_t)0, &wants));
    OK(CALL("cuGraphInstantiateWithFlags", &run, graph, 0ull));
    OK(CALL("cuGraphLaunch", run, stream));
    OK(cuStreamSynchronize(stream));
    MUST(held() == 3 * GIB);
    node_parameters more = wants;
    more.bytes = 5 * GIB;
    MUST(CALL("cuGraphAddMemAllocNode", &node, graph, (handle)0, (size_t)0, &more) == OUT_OF_MEMORY);
    MUST(cuMemAlloc_v2(&at, 5 * GIB) == OUT_OF_MEMORY);
    OK(cuMemFree_v2(wants.at));
    OK(CALL("cuGraphExecDestroy", run));
    OK(CALL("cuGraphDestroy", graph));
    OK(CALL("cuDeviceGraphMemTrim", device));
    MUST(held() == 0);
    // The same by a capture. Memory that the capture frees itself does not add up.
    OK(CALL("cuStreamBeginCapture_v2", stream, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuMemAllocAsync(&at, 2 * GIB, stream));
        OK(cuMemFreeAsync(at, stream));
    }
    MUST(cuMemAllocAsync(&at, 8 * GIB, stream) == OUT_OF_MEMORY);
    OK(CALL("cuStreamEndCapture", stream, &graph));
    OK(CALL("cuGraphDestroy", graph));
    MUST(held() == 0);
}

static void arrays(void) {
    struct { size_t width, height; int format; unsigned channels; } wants = {32768, 8192, 0x20, 4};
    handle array, more;
    OK(CALL("cuArrayCreate_v2", &array, &wants));
    MUST(held() == 4 * GIB);
    MUST(CALL("cuArrayCreate_v2", &more, &wants) == OUT_OF_MEMORY);
    OK(CALL("cuArrayDestroy", array));
    MUST(held() == 0);
    // A context takes its arrays along.
    handle context, before = 0;
    OK(CALL("cuCtxGetCurrent", &before));
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(CALL("cuArrayCreate_v2", &array, &wants));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxSetCurrent(before));
    MUST(held() == 0);
}

int main(int count, char **words) {
    handle context, other, pool;
    ptr at;
    MUST(count >= 2);
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) { puts(dlerror()); exit(2); }
    begin();
    const char *how = words[1];
    if (!strcmp(how, "ordinal")) {
        MUST(count == 5);
        MUST(cuDevicePrimaryCtxRetain(&context, atoi(words[2])) == 101);
        MUST(cuCtxCreate_v2(&context, 0, atoi(words[2])) == 101);
    }
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    if (!strcmp(how, "pools")) pools();
    if (!strcmp(how, "graphs")) graphs();
    if (!strcmp(how, "arrays")) arrays();
    if (!strcmp(how, "beyond")) {
        size_t free_bytes, total, now;
        OK(cuMemGetInfo_v2(&free_bytes, &total));
        MUST(total == 2 * GIB && free_bytes == total);
        for (int i = 0; i < 4; i++) {
            OK(cuMemAlloc_v2(&at, GIB));
            OK(cuMemGetInfo_v2(&free_bytes, &now));
            MUST(now == total && free_bytes <= total);
        }
    }
    if (!strcmp(how, "keeps")) {
        MUST(count == 4);
        OK(CALL("cuDeviceGetDefaultMemPool", &pool, device));
        kept(pool, ~0ull);
        OK(cuMemAllocAsync(&at, 4 * GIB, stream));
        OK(cuMemFreeAsync(at, stream));
        OK(cuStreamSynchronize(stream));
        stand(words[2], words[3]);
    }
    if (!strcmp(how, "elsewhere")) {
        MUST(count == 4);
        OK(cuDevicePrimaryCtxRetain(&other, 1));
        OK(CALL("cuDeviceGetDefaultMemPool", &pool, 1));
        OK(CALL("cuMemAllocFromPoolAsync", &at, (size_t)2 * GIB, pool, stream));
        stand(words[2], words[3]);
        OK(cuMemFreeAsync(at, stream));
    }
    if (!strcmp(how, "ordinal")) {
        OK(cuMemAlloc_v2(&at, 2 * GIB));
        stand(words[3], words[4]);
    }
    puts("all as it should be");
    return 0;
}
