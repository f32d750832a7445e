// One of its kernels reaches outside all memory: the error is told by whatever comes to it first, and by every call about work from then on.
//   Argument: by which call each step waits (stream, context, event, query, copy, graph), or launch: it never waits.
// It holds memory that it cannot give back then, and does not stop at once.
#include <string.h>
#include "plain.h"

static int (*cuEventCreate)(void **, unsigned), (*cuEventRecord)(void *, void *), (*cuEventSynchronize)(void *), (*cuEventQuery)(void *), (*cuEventDestroy_v2)(void *);
static int (*cuStreamQuery)(void *), (*cuStreamDestroy_v2)(void *), (*cuStreamBeginCapture_v2)(void *, int), (*cuStreamEndCapture)(void *, void **);
static int (*cuCtxSynchronize)(void), (*cuCtxGetCurrent)(void **), (*cuDriverGetVersion)(int *);
static int (*cuMemFree_v2)(Address), (*cuMemsetD32Async)(Address, unsigned, size_t, void *), (*cuModuleUnload)(void *);
static int (*cuGraphInstantiateWithFlags)(void **, void *, unsigned long long), (*cuGraphLaunch)(void *, void *);
static int (*cuLaunchHostFunc)(void *, void (*)(void *), void *);

static void *stream, *event, *graph, *exec;

static int launches(Address memory) {
    unsigned value = 1;
    unsigned long long count = 4;
    void *arguments[] = {&memory, &value, &count};
    return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0);
}

static int waits(const char *how) {
    unsigned data[4];
    int answer;
    if (!strcmp(how, "stream")) return cuStreamSynchronize(stream);
    if (!strcmp(how, "context")) return cuCtxSynchronize();
    if (!strcmp(how, "event")) return (answer = cuEventRecord(event, stream)) ? answer : cuEventSynchronize(event);
    if (!strcmp(how, "copy")) return cuMemcpyDtoH_v2(data, scratch, sizeof data) ?: cuStreamSynchronize(stream);
    if (!strcmp(how, "graph")) return (answer = cuGraphLaunch(exec, stream)) ? answer : cuStreamSynchronize(stream);
    while ((answer = cuStreamQuery(stream)) == 600) usleep(100);
    return answer;
}

static void never(void *nothing) { puts("a host function ran behind a failed kernel"); }

#define say(call) printf("%s %d\n", #call, call)

int main(int count, char **words) {
    const char *how = words[1];
    open_gpu();
    find(cuEventCreate); find(cuEventRecord); find(cuEventSynchronize); find(cuEventQuery); find(cuEventDestroy_v2); find(cuStreamQuery); find(cuStreamDestroy_v2);
    find(cuStreamBeginCapture_v2); find(cuStreamEndCapture); find(cuCtxSynchronize); find(cuCtxGetCurrent); find(cuDriverGetVersion); find(cuMemFree_v2);
    find(cuMemsetD32Async); find(cuModuleUnload); find(cuGraphInstantiateWithFlags); find(cuGraphLaunch); find(cuLaunchHostFunc);
    Address held;
    check(cuMemAlloc_v2(&held, 64 << 20));
    stream = new_stream();
    check(cuEventCreate(&event, 2));
    check(cuStreamBeginCapture_v2(stream, 0));
    fill(3, stream);
    check(cuStreamEndCapture(stream, &graph));
    check(cuGraphInstantiateWithFlags(&exec, graph, 0));
    int answer = 0;
    if (!strcmp(how, "launch")) {
        for (int at = 0; at < 200; at++) check(launches(scratch));
        check(launches(0xdead0000));
        for (int at = 0; at < 100000 && !answer; at++) { usleep(100); answer = launches(scratch); }
        printf("a launch says %d\n", answer);
    } else {
        for (int step = 0; step < 40 && !answer; step++) {
            for (int at = 0; at < 16; at++) check(launches(scratch));
            if (step == 25) check(launches(0xdead0000));
            if ((answer = waits(how))) printf("step %d says %d\n", step, answer);
        }
    }
    Address memory = 0;
    unsigned data[4];
    int version;
    void *found;
    // A launch is told or the next call that waits is: one that is left behind answers before the driver has it.
    int launched = launches(scratch);
    if (launched && launched != 700) printf("a launch says %d\n", launched);
    say(cuEventRecord(event, stream));
    say(cuEventQuery(event));
    say(cuEventSynchronize(event));
    say(cuStreamQuery(stream));
    say(cuStreamSynchronize(stream));
    say(cuStreamSynchronize(0));
    say(cuCtxSynchronize());
    say(cuGraphLaunch(exec, stream));
    say(cuMemsetD32Async(scratch, 1, 4, stream));
    say(cuLaunchHostFunc(stream, never, 0));
    say(cuMemcpyDtoH_v2(data, scratch, sizeof data));
    say(cuMemAlloc_v2(&memory, 4096));
    say(cuMemFree_v2(scratch));
    say(cuStreamCreate(&found, 1));
    say(cuCtxGetCurrent(&found));
    say(cuDriverGetVersion(&version));
    int others = 0;
    for (int at = 0; at < 200; at++) {
        launches(scratch);
        others += cuEventRecord(event, 0) != 700 || cuStreamSynchronize(0) != 700;
    }
    printf("other answers afterwards %d\n", others);
    say(cuMemFree_v2(held));
    say(cuEventDestroy_v2(event));
    say(cuStreamDestroy_v2(stream));
    say(cuModuleUnload(module));
    return 5;
}
