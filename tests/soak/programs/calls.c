// A random sequence of driver calls, the same for the same seed, that says what it got: a line for each call with its answer, and a hash of all that it read back.
//
//   calls SEED STEPS THREADS RESULT [GO]
//
// Nothing of what it writes depends on time: whoever uses memory on another stream first orders himself behind those who used it before (by an event, a wait, a poll, or
// by the rules of the default streams), and a query that says "not ready yet" is asked until it says otherwise. So two runs with one seed write the same file, whatever lies between
// the program and its driver. The device sees the same operations in the same order on each stream.
// GO: it begins with its calls when this file is there (its context is up by then). Exit code 0: the sequence is done and RESULT is whole; whether it is right says who compares.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long Address;
typedef void *Handle;
typedef struct {
    unsigned grid[3], block[3], shared;
    Handle stream;
    void *attributes;
    unsigned count;
} Config;

#define DRIVER(X) \
    X(cuInit, (unsigned)) X(cuDeviceGet, (int *, int)) X(cuDevicePrimaryCtxRetain, (Handle *, int)) X(cuCtxSetCurrent, (Handle)) X(cuCtxGetCurrent, (Handle *)) \
    X(cuCtxCreate_v2, (Handle *, unsigned, int)) X(cuCtxDestroy_v2, (Handle)) X(cuCtxSynchronize, (void)) X(cuCtxPushCurrent_v2, (Handle)) X(cuCtxPopCurrent_v2, (Handle *)) \
    X(cuModuleLoadData, (Handle *, const void *)) X(cuModuleUnload, (Handle)) X(cuModuleGetFunction, (Handle *, Handle, const char *)) \
    X(cuModuleGetGlobal_v2, (Address *, size_t *, Handle, const char *)) X(cuFuncGetAttribute, (int *, int, Handle)) \
    X(cuStreamCreate, (Handle *, unsigned)) X(cuStreamCreateWithPriority, (Handle *, unsigned, int)) X(cuStreamDestroy_v2, (Handle)) X(cuStreamQuery, (Handle)) \
    X(cuStreamSynchronize, (Handle)) X(cuStreamWaitEvent, (Handle, Handle, unsigned)) X(cuStreamGetFlags, (Handle, unsigned *)) \
    X(cuStreamBeginCapture_v2, (Handle, int)) X(cuStreamEndCapture, (Handle, Handle *)) X(cuStreamIsCapturing, (Handle, int *)) \
    X(cuGraphInstantiateWithFlags, (Handle *, Handle, unsigned long long)) X(cuGraphLaunch, (Handle, Handle)) X(cuGraphExecDestroy, (Handle)) X(cuGraphDestroy, (Handle)) \
    X(cuEventCreate, (Handle *, unsigned)) X(cuEventDestroy_v2, (Handle)) X(cuEventRecord, (Handle, Handle)) X(cuEventQuery, (Handle)) X(cuEventSynchronize, (Handle)) \
    X(cuEventElapsedTime, (float *, Handle, Handle)) X(cuLaunchHostFunc, (Handle, void (*)(void *), void *)) \
    X(cuStreamAddCallback, (Handle, void (*)(Handle, int, void *), void *, unsigned)) \
    X(cuLaunchKernel, (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **)) X(cuLaunchKernelEx, (const Config *, Handle, void **, void **)) \
    X(cuMemAlloc_v2, (Address *, size_t)) X(cuMemFree_v2, (Address)) X(cuMemAllocAsync, (Address *, size_t, Handle)) X(cuMemFreeAsync, (Address, Handle)) \
    X(cuMemAllocManaged, (Address *, size_t, unsigned)) X(cuMemHostAlloc, (void **, size_t, unsigned)) X(cuMemGetInfo_v2, (size_t *, size_t *)) \
    X(cuMemcpyHtoD_v2, (Address, const void *, size_t)) X(cuMemcpyDtoH_v2, (void *, Address, size_t)) X(cuMemcpyDtoD_v2, (Address, Address, size_t)) \
    X(cuMemcpyHtoDAsync_v2, (Address, const void *, size_t, Handle)) X(cuMemcpyDtoHAsync_v2, (void *, Address, size_t, Handle)) \
    X(cuMemcpyDtoDAsync_v2, (Address, Address, size_t, Handle)) X(cuMemcpyAsync, (Address, Address, size_t, Handle)) \
    X(cuMemsetD8_v2, (Address, unsigned char, size_t)) X(cuMemsetD32_v2, (Address, unsigned, size_t)) X(cuMemsetD8Async, (Address, unsigned char, size_t, Handle)) \
    X(cuMemsetD16Async, (Address, unsigned short, size_t, Handle)) X(cuMemsetD32Async, (Address, unsigned, size_t, Handle)) \
    X(cuMemsetD2D32Async, (Address, size_t, unsigned, size_t, size_t, Handle))

#define DECLARE(name, types) static int(*name) types;
DRIVER(DECLARE)

enum { NOT_READY = 600, STREAMS = 6, BUFFERS = 6, WORDS = 256, BYTES = WORDS * 4, PINNED = 1 << 16 };
// The kinds of streams: the legacy default one, the thread's own, one that waits for the legacy one, one that does not.
enum { LEGACY, OWN, BLOCKING, FREE };

typedef struct {
    Handle handle;
    int kind;
    uint64_t heard; // what its host functions saw, in their order
} Stream;

typedef struct {
    Address at;
    int last;     // the stream that used it last, -1: none
    Handle event; // to be waited for by whoever uses it next: the stream that used it last is gone
} Buffer;

typedef struct {
    uint64_t chance;
    int number, steps, step;
    Stream *streams[STREAMS];
    Buffer buffers[BUFFERS];
    Address sum;
    int sum_last;
    Handle sum_event;
    Handle module;
    unsigned char *pinned;
    size_t pinned_used;
    char *log;
    size_t logged;
    FILE *out;
} Play;

static Handle context;
static char image[1 << 16];
static const char *go;

static void stop(int code, const char *what, int answer) {
    fprintf(stderr, "calls: %s: %d\n", what, answer);
    _exit(code);
}

static uint64_t next(Play *play) {
    uint64_t z = play->chance += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static unsigned below(Play *play, unsigned bound) { return next(play) % bound; }

static uint64_t mixed(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x100000001b3ull + 0x51ull; }

static uint64_t hash_of(const void *data, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t at = 0; at < bytes; at++) hash = mixed(hash, ((const unsigned char *)data)[at]);
    return hash;
}

__attribute__((format(printf, 2, 3))) static void say(Play *play, const char *form, ...) {
    va_list more;
    va_start(more, form);
    fprintf(play->out, "%d.%d ", play->number, play->step);
    vfprintf(play->out, form, more);
    fputc('\n', play->out);
    va_end(more);
}

#define call(play, name, ...) ({ int answer_ = name(__VA_ARGS__); say(play, #name " %d", answer_); answer_; })
// Where the sequence cannot go on without it.
#define must(play, name, ...) ({ int answer_ = name(__VA_ARGS__); if (answer_) stop(4, #name, answer_); })

// A wait for the whole context spoils the captures of other threads, by CUDA's rules: neither is done during the other.
static pthread_rwlock_t captures = PTHREAD_RWLOCK_INITIALIZER;

static void wait_for_all(Play *play) {
    pthread_rwlock_rdlock(&captures);
    call(play, cuCtxSynchronize);
    pthread_rwlock_unlock(&captures);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// Asks until the answer is another one than "not ready": that one does not depend on when it was asked.
static int polled(Play *play, int (*query)(Handle), Handle handle, const char *name) {
    double begin = now();
    int answer;
    while ((answer = query(handle)) == NOT_READY) {
        if (now() - begin > 60) stop(5, name, answer);
        sched_yield();
    }
    say(play, "%s until %d", name, answer);
    return answer;
}

static void count_host(void *data) {
    Stream *stream = data;
    __atomic_store_n(&stream->heard, mixed(stream->heard, 7), __ATOMIC_RELEASE);
}

static void count_callback(Handle handle, int status, void *data) {
    (void)handle;
    Stream *stream = data;
    __atomic_store_n(&stream->heard, mixed(stream->heard, 1000 + status), __ATOMIC_RELEASE);
}

static int waits_by_itself(int a, int b) { return (a == LEGACY && b != FREE) || (b == LEGACY && a != FREE); }

// Orders stream `to` behind what stream `from` has been given so far, in one of many ways.
static void hand_over(Play *play, int from, int to) {
    Stream *before = play->streams[from];
    if (waits_by_itself(before->kind, play->streams[to]->kind) && below(play, 2)) return;
    Handle event = 0;
    switch (below(play, 8)) {
    case 0: call(play, cuStreamSynchronize, before->handle); return;
    case 1: wait_for_all(play); return;
    case 2: polled(play, cuStreamQuery, before->handle, "cuStreamQuery"); return;
    case 3:
        must(play, cuEventCreate, &event, 2);
        call(play, cuEventRecord, event, before->handle);
        call(play, cuEventSynchronize, event);
        break;
    case 4:
        must(play, cuEventCreate, &event, 0);
        call(play, cuEventRecord, event, before->handle);
        polled(play, cuEventQuery, event, "cuEventQuery");
        break;
    default:
        must(play, cuEventCreate, &event, below(play, 2) * 2);
        call(play, cuEventRecord, event, before->handle);
        call(play, cuStreamWaitEvent, play->streams[to]->handle, event, 0);
    }
    // An event may go while streams still wait for it.
    call(play, cuEventDestroy_v2, event);
}

static void uses(Play *play, int stream, int *last, Handle *event) {
    if (*event) {
        call(play, cuStreamWaitEvent, play->streams[stream]->handle, *event, 0);
        call(play, cuEventDestroy_v2, *event);
        *event = 0;
    } else if (*last >= 0 && *last != stream) {
        hand_over(play, *last, stream);
    }
    *last = stream;
}

static Address use(Play *play, int stream, int buffer) {
    uses(play, stream, &play->buffers[buffer].last, &play->buffers[buffer].event);
    return play->buffers[buffer].at;
}

static int launch(Play *play, Handle kernel, int stream, void **arguments) {
    unsigned grid = 1 + below(play, 4), block = 32 << below(play, 3);
    Handle handle = play->streams[stream]->handle;
    if (below(play, 4) == 0) {
        Config config = {{grid, 1, 1}, {block, 1, 1}, 0, handle, 0, 0};
        return call(play, cuLaunchKernelEx, &config, kernel, arguments, 0);
    }
    return call(play, cuLaunchKernel, kernel, grid, 1, 1, block, 1, 1, 0, handle, arguments, 0);
}

static Handle kernel_of(Handle module, const char *name) {
    Handle kernel;
    must(play, cuModuleGetFunction, &kernel, module, name);
    return kernel;
}

static void fill(Play *play, Handle module, int stream, Address to, unsigned value, unsigned long long words) {
    void *arguments[] = {&to, &value, &words};
    launch(play, kernel_of(module, "simgpu_fill"), stream, arguments);
}

static void copy(Play *play, int stream, Address to, Address from, unsigned long long bytes) {
    void *arguments[] = {&to, &from, &bytes};
    launch(play, kernel_of(play->module, "simgpu_copy"), stream, arguments);
}

static void axpy(Play *play, int stream, Address y, Address x, float a) {
    unsigned long long words = WORDS;
    void *arguments[] = {&y, &x, &a, &words};
    launch(play, kernel_of(play->module, "simgpu_axpy"), stream, arguments);
}

// Adds what the buffer holds at this place of the stream to the sum: what is lost or comes late shows in the end.
static void witness(Play *play, int stream, int buffer) {
    Address in = use(play, stream, buffer);
    uses(play, stream, &play->sum_last, &play->sum_event);
    unsigned long long words = WORDS;
    void *arguments[] = {&play->sum, &in, &words};
    launch(play, kernel_of(play->module, "simgpu_checksum"), stream, arguments);
}

static unsigned char *pinned(Play *play, size_t bytes) {
    if (play->pinned_used + bytes > PINNED) {
        wait_for_all(play);
        play->pinned_used = 0;
    }
    unsigned char *place = play->pinned + play->pinned_used;
    play->pinned_used += bytes;
    return place;
}

static void read_back(Play *play, int stream, int buffer) {
    Address from = use(play, stream, buffer);
    Handle handle = play->streams[stream]->handle;
    unsigned char data[BYTES];
    unsigned char *place = pinned(play, BYTES);
    switch (below(play, 3)) {
    case 0:
        call(play, cuStreamSynchronize, handle);
        call(play, cuMemcpyDtoH_v2, data, from, BYTES);
        say(play, "read %016lx", hash_of(data, BYTES));
        return;
    case 1:
        call(play, cuMemcpyDtoHAsync_v2, place, from, BYTES, handle);
        call(play, cuStreamSynchronize, handle);
        break;
    default:
        call(play, cuMemcpyDtoHAsync_v2, place, from, BYTES, handle);
        polled(play, cuStreamQuery, handle, "cuStreamQuery");
    }
    say(play, "read %016lx", hash_of(place, BYTES));
}

static void write_to(Play *play, int stream, int buffer) {
    Address to = use(play, stream, buffer);
    Handle handle = play->streams[stream]->handle;
    uint64_t salt = next(play);
    if (below(play, 3) == 0) {
        // Pageable memory: the driver has taken it when the call returns.
        unsigned char data[BYTES];
        for (int at = 0; at < BYTES; at++) data[at] = salt >> (at % 57);
        call(play, cuStreamSynchronize, handle);
        call(play, cuMemcpyHtoD_v2, to, data, BYTES);
        memset(data, 0xee, sizeof data);
        return;
    }
    unsigned char *place = pinned(play, BYTES);
    for (int at = 0; at < BYTES; at++) place[at] = salt >> (at % 57);
    call(play, cuMemcpyHtoDAsync_v2, to, place, BYTES, handle);
}

static void set(Play *play, int stream, int buffer) {
    Address to = use(play, stream, buffer);
    Handle handle = play->streams[stream]->handle;
    unsigned value = next(play);
    switch (below(play, 5)) {
    case 0: call(play, cuMemsetD8Async, to, value, BYTES, handle); break;
    case 1: call(play, cuMemsetD16Async, to, value, BYTES / 2, handle); break;
    case 2: call(play, cuMemsetD32Async, to + 64, value, WORDS / 2, handle); break;
    case 3: call(play, cuMemsetD2D32Async, to, 64, value, 8, 16, handle); break;
    default:
        call(play, cuStreamSynchronize, handle);
        call(play, cuMemsetD32_v2, to, value, WORDS);
        wait_for_all(play);
    }
}

static void move(Play *play, int stream) {
    int to = below(play, BUFFERS), from = (to + 1 + below(play, BUFFERS - 1)) % BUFFERS;
    Address target = use(play, stream, to), source = use(play, stream, from);
    Handle handle = play->streams[stream]->handle;
    switch (below(play, 4)) {
    case 0: call(play, cuMemcpyDtoDAsync_v2, target, source + 16, BYTES - 16, handle); break;
    case 1: call(play, cuMemcpyAsync, target + 32, source, BYTES - 32, handle); break;
    case 2: copy(play, stream, target, source + 128, BYTES - 128); break;
    default: axpy(play, stream, target, source, 0.5f); break;
    }
}

static void temporary(Play *play, int stream) {
    Handle handle = play->streams[stream]->handle;
    int buffer = below(play, BUFFERS);
    Address memory = 0, kept = use(play, stream, buffer);
    if (below(play, 2)) {
        if (call(play, cuMemAllocAsync, &memory, BYTES, handle)) return;
        fill(play, play->module, stream, memory, next(play), WORDS);
        copy(play, stream, kept, memory, BYTES / 2);
        call(play, cuMemFreeAsync, memory, handle);
        return;
    }
    if (call(play, cuMemAlloc_v2, &memory, BYTES << below(play, 12))) return;
    fill(play, play->module, stream, memory, next(play), WORDS);
    copy(play, stream, kept + BYTES / 2, memory, BYTES / 2);
    if (below(play, 2)) call(play, cuStreamSynchronize, handle);
    call(play, cuMemFree_v2, memory);
}

static void graph(Play *play) {
    // A capture on a stream that waits for the legacy one would make other threads' calls on that one errors, now and then.
    int stream = below(play, STREAMS);
    if (play->streams[stream]->kind != FREE) return;
    Handle handle = play->streams[stream]->handle, made = 0, ready = 0;
    int first = below(play, BUFFERS), second = (first + 1) % BUFFERS, state = -1;
    Address a = use(play, stream, first), b = use(play, stream, second);
    uses(play, stream, &play->sum_last, &play->sum_event);
    pthread_rwlock_wrlock(&captures);
    int begun = call(play, cuStreamBeginCapture_v2, handle, 1 + below(play, 2));
    if (begun) {
        pthread_rwlock_unlock(&captures);
        return;
    }
    for (unsigned count = 1 + below(play, 6); count; count--) {
        switch (below(play, 4)) {
        case 0: fill(play, play->module, stream, a, next(play), WORDS); break;
        case 1: copy(play, stream, b, a, BYTES); break;
        case 2: call(play, cuMemsetD32Async, a + 256, next(play), 32, handle); break;
        default: witness(play, stream, second);
        }
    }
    call(play, cuStreamIsCapturing, handle, &state);
    say(play, "captures %d", state);
    int spoilt = below(play, 8) == 0;
    if (spoilt) call(play, cuStreamSynchronize, handle);
    int ended = call(play, cuStreamEndCapture, handle, &made);
    pthread_rwlock_unlock(&captures);
    if (ended || !made) return;
    if (call(play, cuGraphInstantiateWithFlags, &ready, made, 0)) return;
    for (unsigned count = 1 + below(play, 4); count; count--) {
        int where = below(play, STREAMS);
        use(play, where, first);
        use(play, where, second);
        uses(play, where, &play->sum_last, &play->sum_event);
        call(play, cuGraphLaunch, ready, play->streams[where]->handle);
        if (below(play, 2)) witness(play, where, second);
    }
    call(play, cuGraphExecDestroy, ready);
    call(play, cuGraphDestroy, made);
}

static Stream *new_stream(Play *play, int kind) {
    Stream *stream = calloc(1, sizeof *stream);
    stream->kind = kind;
    if (kind == LEGACY) stream->handle = (Handle)(below(play, 2) * 1ul);
    else if (kind == OWN) stream->handle = (Handle)2ul;
    else if (below(play, 4)) must(play, cuStreamCreate, &stream->handle, kind == FREE);
    else must(play, cuStreamCreateWithPriority, &stream->handle, kind == FREE, below(play, 3) ? 0 : -1);
    return stream;
}

// A stream goes, perhaps with work that still runs; who used memory on it last left an event for the next.
static void change_stream(Play *play) {
    int at = 2 + below(play, STREAMS - 2);
    Stream *old = play->streams[at];
    int left = below(play, 2);
    if (!left) call(play, cuStreamSynchronize, old->handle);
    for (int buffer = 0; buffer <= BUFFERS; buffer++) {
        int *last = buffer < BUFFERS ? &play->buffers[buffer].last : &play->sum_last;
        Handle *event = buffer < BUFFERS ? &play->buffers[buffer].event : &play->sum_event;
        if (*last != at) continue;
        if (left) {
            must(play, cuEventCreate, event, 2);
            call(play, cuEventRecord, *event, old->handle);
        }
        *last = -1;
    }
    call(play, cuStreamDestroy_v2, old->handle);
    // Its host functions may still be to run: it is not freed.
    play->streams[at] = new_stream(play, old->kind);
    unsigned flags = 9;
    call(play, cuStreamGetFlags, play->streams[at]->handle, &flags);
    say(play, "flags %u", flags);
}

static void another_module(Play *play, int stream) {
    Handle module, kernel;
    int buffer = below(play, BUFFERS), registers = -1;
    must(play, cuModuleLoadData, &module, image);
    fill(play, module, stream, use(play, stream, buffer), next(play), WORDS);
    if (!call(play, cuModuleGetFunction, &kernel, module, "simgpu_axpy")) {
        call(play, cuFuncGetAttribute, &registers, 0, kernel);
        say(play, "threads a block %d", registers);
    }
    call(play, cuStreamSynchronize, play->streams[stream]->handle);
    call(play, cuModuleUnload, module);
}

static void another_context_alone(Play *play) {
    Handle other = 0, back = 0;
    Address memory = 0;
    unsigned data[WORDS] = {0}, value = next(play);
    unsigned long long words = WORDS;
    if (call(play, cuCtxCreate_v2, &other, 0, 0)) return;
    Handle module, kernel;
    must(play, cuModuleLoadData, &module, image);
    must(play, cuModuleGetFunction, &kernel, module, "simgpu_fill");
    must(play, cuMemAlloc_v2, &memory, BYTES);
    void *arguments[] = {&memory, &value, &words};
    for (int times = 0; times < 5; times++, value++) call(play, cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, (Handle)0, arguments, 0);
    call(play, cuMemcpyDtoH_v2, data, memory, BYTES);
    say(play, "read %016lx", hash_of(data, BYTES));
    if (below(play, 2)) call(play, cuMemFree_v2, memory);
    if (below(play, 2)) {
        call(play, cuCtxPopCurrent_v2, &back);
        say(play, "the other %s", back == other ? "popped" : "not popped");
    }
    call(play, cuCtxDestroy_v2, other);
    must(play, cuCtxSetCurrent, context);
}

static void another_context(Play *play) {
    pthread_rwlock_rdlock(&captures);
    another_context_alone(play);
    pthread_rwlock_unlock(&captures);
}

// Calls that must fail, and fail alike.
static void wrong(Play *play, int stream) {
    Handle handle = play->streams[stream]->handle, nothing = 0;
    Address memory = play->buffers[0].at;
    unsigned value = 1;
    unsigned long long words = 0;
    void *arguments[] = {&memory, &value, &words};
    Handle kernel = kernel_of(play->module, "simgpu_fill");
    float time;
    switch (below(play, 8)) {
    case 0: call(play, cuLaunchKernel, kernel, 0, 1, 1, 32, 1, 1, 0, handle, arguments, 0); break;
    case 1: call(play, cuLaunchKernel, kernel, 1, 1, 1, 4096, 1, 1, 0, handle, arguments, 0); break;
    case 2: call(play, cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 1u << 30, handle, arguments, 0); break;
    case 3: call(play, cuModuleGetFunction, &nothing, play->module, "nobody"); break;
    case 4: call(play, cuMemAlloc_v2, &memory, (size_t)1 << 50); break;
    case 5:
        must(play, cuEventCreate, &nothing, 0);
        call(play, cuEventElapsedTime, &time, nothing, nothing);
        call(play, cuEventDestroy_v2, nothing);
        break;
    case 6:
        call(play, cuCtxSetCurrent, 0);
        call(play, cuStreamSynchronize, (Handle)0);
        call(play, cuCtxSetCurrent, context);
        break;
    default: call(play, cuStreamEndCapture, handle, &nothing); break;
    }
}

static void managed(Play *play, int stream) {
    Address memory;
    if (call(play, cuMemAllocManaged, &memory, BYTES, 1)) return;
    fill(play, play->module, stream, memory, next(play), WORDS);
    wait_for_all(play);
    say(play, "read %016lx", hash_of((void *)memory, BYTES));
    call(play, cuMemFree_v2, memory);
}

static void one(Play *play) {
    int stream = below(play, STREAMS), buffer = below(play, BUFFERS);
    Handle handle = play->streams[stream]->handle;
    unsigned what = below(play, 100);
    size_t free_bytes, all;
    if (what < 34) {
        // Each leaves something of what was there before, and some are followed by a look at all of it.
        for (unsigned count = 1 + below(play, 12); count; count--) {
            unsigned first = below(play, WORDS), words = 1 + below(play, WORDS - first);
            fill(play, play->module, stream, use(play, stream, buffer) + 4 * first, next(play), words);
            if (below(play, 3) == 0) witness(play, stream, buffer);
        }
    } else if (what < 46) move(play, stream);
    else if (what < 54) witness(play, stream, buffer);
    else if (what < 60) set(play, stream, buffer);
    else if (what < 66) write_to(play, stream, buffer);
    else if (what < 72) read_back(play, stream, buffer);
    else if (what < 77) temporary(play, stream);
    else if (what < 83) graph(play);
    else if (what < 86) change_stream(play);
    else if (what < 89) call(play, cuLaunchHostFunc, handle, count_host, play->streams[stream]);
    else if (what < 90) call(play, cuStreamAddCallback, handle, count_callback, play->streams[stream], 0);
    else if (what < 92) polled(play, cuStreamQuery, handle, "cuStreamQuery");
    else if (what < 94) call(play, cuStreamSynchronize, handle);
    else if (what < 95) wait_for_all(play);
    else if (what < 96) call(play, cuMemGetInfo_v2, &free_bytes, &all);
    else if (what < 97) another_module(play, stream);
    else if (what < 98) managed(play, stream);
    else wrong(play, stream);
    if (play->number == 0 && below(play, 150) == 0) another_context(play);
}

static void *thread(void *data) {
    Play *play = data;
    must(play, cuCtxSetCurrent, context);
    must(play, cuModuleLoadData, &play->module, image);
    must(play, cuMemHostAlloc, (void **)&play->pinned, PINNED, 0);
    static const int kinds[STREAMS] = {LEGACY, OWN, BLOCKING, BLOCKING, FREE, FREE};
    for (int at = 0; at < STREAMS; at++) play->streams[at] = new_stream(play, kinds[at]);
    for (int at = 0; at < BUFFERS; at++) {
        must(play, cuMemAlloc_v2, &play->buffers[at].at, BYTES);
        must(play, cuMemsetD32_v2, play->buffers[at].at, at + 1, WORDS);
        play->buffers[at].last = -1;
    }
    must(play, cuMemAlloc_v2, &play->sum, 8);
    must(play, cuMemsetD8_v2, play->sum, 0, 8);
    play->sum_last = -1;
    wait_for_all(play);
    while (go && access(go, F_OK)) usleep(2000);
    for (play->step = 0; play->step < play->steps; play->step++) one(play);
    wait_for_all(play);
    uint64_t sum = 0;
    unsigned char data_back[BYTES];
    call(play, cuMemcpyDtoH_v2, &sum, play->sum, 8);
    say(play, "sum %016lx", sum);
    for (int at = 0; at < BUFFERS; at++) {
        call(play, cuMemcpyDtoH_v2, data_back, play->buffers[at].at, BYTES);
        say(play, "buffer %d %016lx", at, hash_of(data_back, BYTES));
    }
    for (int at = 0; at < STREAMS; at++) say(play, "stream %d heard %016lx", at, __atomic_load_n(&play->streams[at]->heard, __ATOMIC_ACQUIRE));
    fflush(play->out);
    return 0;
}

int main(int count, char **words) {
    if (count < 5) {
        fprintf(stderr, "usage: calls SEED STEPS THREADS RESULT [GO]\n");
        return 2;
    }
    uint64_t seed = strtoull(words[1], 0, 10);
    int steps = atoi(words[2]), threads = atoi(words[3]);
    go = count > 5 ? words[5] : 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 7; }
#define FIND(name, types) if (!(*(void **)&name = dlsym(driver, #name))) stop(8, "no " #name, 0);
    DRIVER(FIND)
    FILE *file = fopen(KERNELS, "r");
    if (!file) { perror(KERNELS); return 7; }
    image[fread(image, 1, sizeof image - 1, file)] = 0;
    fclose(file);
    int answer;
    if ((answer = cuInit(0))) stop(4, "cuInit", answer);
    if ((answer = cuDevicePrimaryCtxRetain(&context, 0))) stop(4, "cuDevicePrimaryCtxRetain", answer);
    Play plays[16] = {0};
    pthread_t running[16];
    if (threads > 16) threads = 16;
    for (int number = 0; number < threads; number++) {
        Play *play = &plays[number];
        play->chance = seed * 1000003 + number * 7919;
        play->number = number;
        play->steps = steps;
        play->out = open_memstream(&play->log, &play->logged);
        if (number) pthread_create(&running[number], 0, thread, play);
    }
    thread(&plays[0]);
    char new[4096];
    snprintf(new, sizeof new, "%s.new", words[4]);
    for (int number = 1; number < threads; number++) pthread_join(running[number], 0);
    FILE *result = fopen(new, "w");
    if (!result) { perror(new); return 3; }
    for (int number = 0; number < threads; number++) fwrite(plays[number].log, 1, plays[number].logged, result);
    if (fclose(result) || rename(new, words[4])) { perror(words[4]); return 3; }
    return 0;
}
