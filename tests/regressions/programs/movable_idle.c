// A service whose memory moves while it is idle. It compares its memory with a copy on the host
// after each request. A request is a word in the file `ready.go`; its answer, the milliseconds of the
// request's first call, is in `ready.done`.
//   movable_idle ready running MIB [asks nothing]
#include "memory_driver.h"
#include <time.h>

#define STREAMS 2

static handle context, module, fill, stream[STREAMS];
static ptr block[STREAMS];
static uint32_t *mirror[STREAMS], *seen;
static size_t bytes;
static double first_ms;
static pthread_barrier_t both;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int launch(int which, uint32_t value, uint64_t words) {
    void *arguments[] = {&block[which], &value, &words};
    return cuLaunchKernel(fill, 8, 1, 1, 64, 1, 1, 0, stream[which], arguments, 0);
}

static void set(int which, uint32_t value, size_t words) {
    for (size_t i = 0; i < words; i++) mirror[which][i] = value;
}

static void compare(void) {
    for (int which = 0; which < STREAMS; which++) {
        OK(cuMemcpyDtoH_v2(seen, block[which], bytes));
        MUST(!memcmp(seen, mirror[which], bytes));
    }
}

// One of two threads whose first calls come at once.
static void *caller(void *number) {
    int which = (int)(intptr_t)number;
    OK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&both);
    OK(launch(which, 40 + (uint32_t)which, 1000));
    OK(cuStreamSynchronize(stream[which]));
    return 0;
}

static void request(const char *word, uint32_t round) {
    handle graph, exec;
    double begun = now_ms();
    if (!strcmp(word, "kernel")) {
        OK(launch(0, round, 2000));
        OK(cuStreamSynchronize(stream[0]));
        first_ms = now_ms() - begun;
        set(0, round, 2000);
    } else if (!strcmp(word, "copy")) {
        OK(cuMemcpyDtoH_v2(seen, block[1], bytes));
        first_ms = now_ms() - begun;
        MUST(!memcmp(seen, mirror[1], bytes));
    } else if (!strcmp(word, "memset")) {
        OK(cuMemsetD8Async(block[1], (unsigned char)round, 4096, stream[1]));
        OK(cuStreamSynchronize(stream[1]));
        first_ms = now_ms() - begun;
        memset(mirror[1], (unsigned char)round, 4096);
    } else if (!strcmp(word, "sync")) {
        OK(cuCtxSynchronize());
        first_ms = now_ms() - begun;
    } else if (!strcmp(word, "two")) {
        pthread_t thread[STREAMS];
        for (intptr_t i = 0; i < STREAMS; i++) MUST(!pthread_create(&thread[i], 0, caller, (void *)i));
        for (int i = 0; i < STREAMS; i++) MUST(!pthread_join(thread[i], 0));
        first_ms = now_ms() - begun;
        for (int i = 0; i < STREAMS; i++) set(i, 40 + (uint32_t)i, 1000);
    } else if (!strcmp(word, "graph")) {
        OK(cuStreamBeginCapture_v2(stream[0], 2));
        OK(launch(0, round, 3000));
        OK(cuStreamEndCapture(stream[0], &graph));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, stream[0]));
        OK(cuStreamSynchronize(stream[0]));
        first_ms = now_ms() - begun;
        set(0, round, 3000);
    } else if (!strcmp(word, "begin")) {
        OK(cuStreamBeginCapture_v2(stream[0], 2));
        return;
    } else if (!strcmp(word, "end")) {
        OK(launch(0, round, 3000));
        OK(cuStreamEndCapture(stream[0], &graph));
    } else if (!strcmp(word, "fails")) {
        MUST(launch(0, round, 2000) == 2);
        first_ms = now_ms() - begun;
        return;
    } else if (!strcmp(word, "tries")) {
        // Until the memory is back, a minute at most.
        int error = 2;
        for (int i = 0; i < 6000 && (error = launch(0, round, 2000)) == 2; i++) usleep(10000);
        OK(error);
        OK(cuStreamSynchronize(stream[0]));
        first_ms = now_ms() - begun;
        set(0, round, 2000);
    } else {
        MUST(!"a known word");
    }
    compare();
}

int main(int count, char **arguments) {
    char go[512], done[512], part[512], word[32];
    MUST(count >= 4);
    snprintf(go, sizeof go, "%s.go", arguments[1]);
    snprintf(done, sizeof done, "%s.done", arguments[1]);
    snprintf(part, sizeof part, "%s.done.part", arguments[1]);
    bytes = strtoull(arguments[3], 0, 10) * MIB / STREAMS;
    begin();
    OK(cuCtxCreate_v2(&context, 0, device));
    OK(cuModuleLoad(&module, KERNELS));
    OK(cuModuleGetFunction(&fill, module, "simgpu_fill"));
    MUST(!pthread_barrier_init(&both, 0, STREAMS));
    seen = malloc(bytes);
    for (int which = 0; which < STREAMS; which++) {
        OK(cuStreamCreate(&stream[which], 1));
        OK(cuMemAlloc_v2(&block[which], bytes));
        mirror[which] = malloc(bytes);
        for (size_t i = 0; i < bytes / 4; i++) mirror[which][i] = (uint32_t)(i * 2654435761u + (uint32_t)which);
        OK(cuMemcpyHtoD_v2(block[which], mirror[which], bytes));
    }
    compare();
    FILE *file = fopen(arguments[1], "w");
    MUST(file);
    fclose(file);
    for (uint32_t round = 1; access(arguments[2], F_OK) == 0; usleep(2000)) {
        size_t free_bytes, total;
        // It wakes nothing, except by the driver's checkpoint.
        if (count == 4) OK(cuMemGetInfo_v2(&free_bytes, &total));
        if (!(file = fopen(go, "r"))) continue;
        int got = fscanf(file, "%31s", word);
        fclose(file);
        if (got != 1) continue;
        unlink(go);
        request(word, round++);
        MUST((file = fopen(part, "w")));
        fprintf(file, "%f\n", first_ms);
        fclose(file);
        MUST(!rename(part, done));
    }
    compare();
    puts("all as it should be");
    return 0;
}
