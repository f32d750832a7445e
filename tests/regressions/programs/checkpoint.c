// The driver's process checkpoint, called without weft; and jobs that weft moves with it.
//   checkpoint steps | managed | ipc | group | waits | room ready go | asks PID | ends there|away
//   checkpoint holds plain|managed|ipc|group|two MIB ready running
//   checkpoint takes MIB ready running
#include "memory_driver.h"

static int (*get_state)(int, int *), (*take_lock)(int, void *), (*checkpoint)(int, void *), (*restore)(int, void *), (*give_lock)(int, void *);

static handle context, stream, fill, spin;
static ptr memory;
static size_t bytes;
static uint32_t *mirror;

static void steps_of_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&get_state = dlsym(library, "cuCheckpointProcessGetState");
    *(void **)&take_lock = dlsym(library, "cuCheckpointProcessLock");
    *(void **)&checkpoint = dlsym(library, "cuCheckpointProcessCheckpoint");
    *(void **)&restore = dlsym(library, "cuCheckpointProcessRestore");
    *(void **)&give_lock = dlsym(library, "cuCheckpointProcessUnlock");
    MUST(get_state && take_lock && checkpoint && restore && give_lock);
}

static int state(void) {
    int now = -1;
    OK(get_state(getpid(), &now));
    return now;
}

static int lock(unsigned ms) {
    unsigned words[16] = {ms};
    return take_lock(getpid(), words);
}

static void make(size_t mib) {
    handle module;
    begin();
    steps_of_driver();
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&fill, module, "simgpu_fill"));
    OK(cuModuleGetFunction(&spin, module, "simgpu_spin"));
    OK(cuStreamCreate(&stream, 1));
    bytes = mib * MIB;
    OK(cuMemAlloc_v2(&memory, bytes));
    mirror = malloc(bytes);
    for (size_t word = 0; word < bytes / 4; word++) mirror[word] = (uint32_t)(word * 2654435761u);
    OK(cuMemcpyHtoD_v2(memory, mirror, bytes));
}

static void compare(void) {
    uint32_t *seen = malloc(bytes);
    OK(cuMemcpyDtoH_v2(seen, memory, bytes));
    MUST(!memcmp(seen, mirror, bytes));
    free(seen);
}

static long anonymous(void) {
    char line[256];
    long kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "RssAnon: %ld", &kilobytes);
    if (file) fclose(file);
    return kilobytes;
}

static atomic_int launched;

static void *launches(void *nothing) {
    uint32_t value = 7;
    uint64_t words = 1024;
    void *arguments[] = {&memory, &value, &words};
    OK(cuCtxSetCurrent(context));
    OK(cuLaunchKernel(fill, 8, 1, 1, 64, 1, 1, 0, stream, arguments, 0));
    launched = 1;
    return nothing;
}

static void *waits(void *nothing) {
    OK(cuCtxSetCurrent(context));
    cuStreamSynchronize(stream);
    return nothing;
}

// The state machine, its codes, calls that wait meanwhile, and the contents.
static void steps(void) {
    pthread_t thread;
    int other = 0;
    make(64);
    MUST(state() == 0);
    MUST(checkpoint(getpid(), 0) == 401 && restore(getpid(), 0) == 401 && give_lock(getpid(), 0) == 401);
    MUST(get_state(0x7ffffffe, &other) == 304 && take_lock(0x7ffffffe, 0) == 304);
    OK(get_state(1, &other));
    MUST(other == 3);
    // Work that does not end.
    ptr word_there;
    void *word;
    uint64_t limit = 2000000000;
    OK(cuMemHostAlloc(&word, 4096, 2));
    OK(cuMemHostGetDevicePointer_v2(&word_there, word, 0));
    *(volatile uint32_t *)word = 0;
    void *arguments[] = {&word_there, &limit};
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0));
    MUST(lock(50) == 600 && state() == 0);
    *(volatile uint32_t *)word = 1;
    OK(lock(0));
    MUST(lock(0) == 401 && state() == 1);
    // A wait returns at once while the process is locked.
    OK(cuStreamSynchronize(stream));
    long before = anonymous();
    OK(checkpoint(getpid(), 0));
    MUST(state() == 2 && checkpoint(getpid(), 0) == 401 && give_lock(getpid(), 0) == 401);
    MUST(anonymous() - before > 60 * 1024);
    MUST(!pthread_create(&thread, 0, launches, 0));
    usleep(100000);
    MUST(!launched);
    OK(restore(getpid(), 0));
    MUST(state() == 1 && !launched);
    OK(give_lock(getpid(), 0));
    MUST(!pthread_join(thread, 0) && launched);
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < 1024; i++) mirror[i] = 7;
    compare();
    MUST(state() == 0);
}

// A kernel as NCCL has them.
static void group(void) {
    handle module, collective;
    const char *code = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry ncclDevKernel_AllReduce_Sum_f32_RING_LL()\n{\nret;\n}\n";
    OK(cuModuleLoadData(&module, code));
    OK(cuModuleGetFunction(&collective, module, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"));
    OK(cuLaunchKernel(collective, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
    OK(cuStreamSynchronize(stream));
}

// Moves there and back, and with `away` out once more.
static void ends(int away) {
    make(8);
    OK(lock(0));
    OK(checkpoint(getpid(), 0));
    OK(restore(getpid(), 0));
    OK(give_lock(getpid(), 0));
    if (away) {
        OK(lock(0));
        OK(checkpoint(getpid(), 0));
    }
}

static void moved_with(char what) {
    ptr other;
    unsigned char exported[64];
    make(8);
    if (what == 'm') OK(cuMemAllocManaged(&other, 2 * MIB, 1));
    else if (what == 'i') OK(cuIpcGetMemHandle(exported, memory));
    else group();
    OK(lock(0));
    int refused = checkpoint(getpid(), 0), then = give_lock(getpid(), 0);
    printf("checkpoint %d, then %d\n", refused, then);
}

// A thread waits for its stream as its first call while the memory is away.
static void waits_while_away(void) {
    pthread_t thread;
    make(8);
    OK(lock(0));
    OK(checkpoint(getpid(), 0));
    MUST(!pthread_create(&thread, 0, waits, 0));
    pthread_join(thread, 0);
    puts("it lives");
}

// Another process takes the memory meanwhile.
static void without_room(const char *ready, const char *go) {
    make(150);
    OK(lock(0));
    OK(checkpoint(getpid(), 0));
    stand(ready, go);
    int first = restore(getpid(), 0), second = restore(getpid(), 0);
    printf("restore %d, then %d\n", first, second);
    // It keeps what it has.
    fflush(stdout);
    stand(ready, ready);
}

// Takes memory the moment that it is free.
static void takes(size_t mib, const char *ready, const char *running) {
    begin();
    OK(cuCtxCreate_v2(&context, 0, device));
    while (cuMemAlloc_v2(&memory, mib * MIB)) usleep(500);
    stand(ready, running);
}

int main(int count, char **arguments) {
    MUST(count >= 2);
    const char *what = arguments[1];
    if (!strcmp(what, "steps")) steps();
    else if (!strcmp(what, "managed") || !strcmp(what, "ipc") || !strcmp(what, "group")) moved_with(what[0]);
    else if (!strcmp(what, "ends")) ends(!strcmp(arguments[2], "away"));
    else if (!strcmp(what, "waits")) waits_while_away();
    else if (!strcmp(what, "room")) without_room(arguments[2], arguments[3]);
    else if (!strcmp(what, "takes")) takes(strtoull(arguments[2], 0, 10), arguments[3], arguments[4]);
    else if (!strcmp(what, "asks")) {
        int now = -1;
        begin();
        steps_of_driver();
        OK(get_state(atoi(arguments[2]), &now));
        printf("state %d\n", now);
    } else {
        ptr other = 0;
        unsigned char exported[64];
        handle second;
        MUST(count == 6);
        make(strtoull(arguments[3], 0, 10));
        if (!strcmp(arguments[2], "managed")) OK(cuMemAllocManaged(&other, 2 * MIB, 1));
        if (!strcmp(arguments[2], "ipc")) OK(cuIpcGetMemHandle(exported, memory));
        if (!strcmp(arguments[2], "group")) group();
        if (!strcmp(arguments[2], "two")) {
            OK(cuCtxCreate_v2(&second, 0, 1));
            OK(cuCtxSetCurrent(context));
        }
        stand(arguments[4], arguments[5]);
        compare();
        if (other) OK(cuMemFree_v2(other));
    }
    puts("all as it should be");
    return 0;
}
