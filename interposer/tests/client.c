/* A client of the driver in C: finds functions in every way that real clients do. It prints its results to stdout as "key value" lines.
 * Built by the tests; LINKED builds the variant that is linked against libcuda.so.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Init)(unsigned);
typedef int (*First)(const char *, void **, int, uint64_t);
typedef int (*Second)(const char *, void **, int, uint64_t, int *);
typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static void say_where(const char *key, void *function) {
    Dl_info info;
    if (function && dladdr(function, &info))
        printf("%s %s %s\n", key, strrchr(info.dli_fname, '/') + 1, info.dli_sname ? info.dli_sname : "-");
    else
        printf("%s none\n", key);
}

static void say_counters(void) {
    long long (*counter)(const char *) = (long long (*)(const char *))dlsym(RTLD_DEFAULT, "weft_counter");
    int (*called)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "weft_called");
    if (!counter || !called) return;
    const char *names[] = {"bound", "lookups", "unknown", "opened", "troubles"};
    for (int i = 0; i < 5; i++) printf("counter_%s %lld\n", names[i], counter(names[i]));
    printf("called_cuInit %d\n", called("cuInit"));
    size_t (*text)(const char *, char *, size_t) = (size_t (*)(const char *, char *, size_t))dlsym(RTLD_DEFAULT, "weft_text");
    char buffer[4096] = "";
    if (text && text("driver", buffer, sizeof buffer)) printf("driver %s\n", buffer);
    buffer[0] = 0;
    if (text && text("beyond", buffer, sizeof buffer)) printf("beyond %s\n", buffer);
}

static int mapped(const char *what) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, what) != NULL;
    if (maps) fclose(maps);
    return found;
}

#ifdef LINKED
extern int cuInit(unsigned);
int main(void) {
    printf("init %d\n", cuInit(0));
    say_where("cuInit", (void *)cuInit);
    say_counters();
    return 0;
}
#else

static void *must(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (!found) { printf("missing %s\n", name); exit(3); }
    return found;
}

static int open_and_ask(const char *name) {
    void *handle = dlopen(name, RTLD_NOW);
    if (!handle) { printf("dlopen %s\n", dlerror()); return 2; }
    Init init = (Init)must(handle, "cuInit");
    say_where("cuInit", (void *)init);
    printf("init %d\n", init(0));
    say_where("dlvsym", dlvsym(handle, "cuInit", "libcuda.so.1"));
    say_where("absent", dlsym(handle, "cuNoSuchThing"));
    printf("absent_error %s\n", dlerror());
    say_where("lacking", dlsym(handle, "cuLogsDumpToMemory"));
    say_where("unknown", dlsym(handle, "cuFutureThing"));

    First first = (First)must(handle, "cuGetProcAddress");
    Second second = (Second)must(handle, "cuGetProcAddress_v2");
    void *function = NULL;
    int status = -1;
    printf("empty %d", second("", &function, 0, 0, &status));
    printf(" %d\n", function == NULL);
    struct { const char *key, *name; int version; uint64_t flags; } asked[] = {
        {"v1_launch", "cuLaunchKernel", 11030, 0},     {"v1_launch_ptsz", "cuLaunchKernel", 11030, 2},
        {"v2_launch", "cuLaunchKernel", 13020, 0},     {"v2_launch_ptsz", "cuLaunchKernel", 13020, 2},
        {"v2_launch_legacy", "cuLaunchKernel", 13020, 1}, {"v2_alloc_old", "cuMemAlloc", 2000, 0},
        {"v2_alloc", "cuMemAlloc", 13020, 0},          {"v2_self", "cuGetProcAddress", 12000, 0},
        {"v2_self_old", "cuGetProcAddress", 11030, 0}, {"v2_tables", "cuGetExportTable", 13020, 0},
        {"v2_alias", "cuGraphInstantiate", 13020, 0},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        function = NULL;
        int v1 = strncmp(asked[i].key, "v1", 2) == 0;
        int result = v1 ? first(asked[i].name, &function, asked[i].version, asked[i].flags)
                        : second(asked[i].name, &function, asked[i].version, asked[i].flags, &status);
        if (result) function = NULL;
        say_where(asked[i].key, function);
    }
    printf("no_status %d\n", second("cuLaunchKernel", &function, 13020, 0, NULL));
    printf("no_out %d\n", second("cuLaunchKernel", NULL, 13020, 0, NULL) != 0);
    say_counters();
    return 0;
}

static int launch(const char *driver) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (!handle) return 2;
    ((Init)must(handle, "cuInit"))(0);
    void *context, *module, *other, *library, *view, *function;
    int (*load)(void **, const void *) = (int (*)(void **, const void *))must(handle, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = (int (*)(void **, void *, const char *))must(handle, "cuModuleGetFunction");
    int (*load_library)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned) =
        (int (*)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned))must(handle, "cuLibraryLoadData");
    int (*get_kernel)(void **, void *, const char *) = (int (*)(void **, void *, const char *))must(handle, "cuLibraryGetKernel");
    int (*two)(void **, void *) = (int (*)(void **, void *))must(handle, "cuLibraryGetModule");
    int (*of_kernel)(void **, void *) = (int (*)(void **, void *))must(handle, "cuKernelGetFunction");
    int (*unload)(void *) = (int (*)(void *))must(handle, "cuModuleUnload");
    int (*begin)(void *, unsigned) = (int (*)(void *, unsigned))must(handle, "cuStreamBeginCapture_v2");
    int (*end)(void *, void **) = (int (*)(void *, void **))must(handle, "cuStreamEndCapture");
    Launch launch = (Launch)must(handle, "cuLaunchKernel");
    int (*launch_ex)(const void *, void *, void **, void **) =
        (int (*)(const void *, void *, void **, void **))must(handle, "cuLaunchKernelEx");
    ((int (*)(void **, int))must(handle, "cuDevicePrimaryCtxRetain"))(&context, 0);

    load(&module, ".version 8.0 // one");
    load(&other, ".version 8.0 // two");
    get(&function, module, "fusion");
    for (int i = 0; i < 3; i++) launch(function, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    launch(function, 3, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    void *second;
    get(&second, other, "fusion");
    launch(second, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);

    load_library(&library, ".version 8.0 // three", NULL, NULL, 0, NULL, NULL, 0);
    void *kernel, *as_function;
    get_kernel(&kernel, library, "as_kernel");
    struct { unsigned grid[3], block[3], shared, pad; void *stream, *attributes; unsigned count; } config = {
        {4, 1, 1}, {64, 1, 1}, 16, 0, NULL, NULL, 0};
    launch_ex(&config, kernel, NULL, NULL);
    of_kernel(&as_function, kernel);
    launch(as_function, 5, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL);
    two(&view, library);
    get(&function, view, "of_view");
    launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);

    /* A kernel whose module is unloaded has no name; a capture leaves no trace. */
    unload(other);
    launch((void *)0x123450, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    void *stream = (void *)0x9000, *graph = NULL;
    begin(stream, 0);
    launch(function, 7, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    end(stream, &graph);
    /* The driver under its own file name, which nothing replaces. */
    void *own = dlopen(driver, RTLD_NOW | RTLD_NOLOAD);
    unsigned long long (*arrived)(void) = own ? (unsigned long long (*)(void))dlsym(own, "nullcuda_launches") : NULL;
    if (arrived) printf("arrived %llu\n", arrived());
    say_counters();
    return 0;
}

/* The calls that a job repeats: a launch, a fill, a wait. */
static int work(const char *driver) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (!handle) return 2;
    if (((Init)must(handle, "cuInit"))(0)) return 3;
    void *context, *module, *function;
    ((int (*)(void **, int))must(handle, "cuDevicePrimaryCtxRetain"))(&context, 0);
    ((int (*)(void **, const void *))must(handle, "cuModuleLoadData"))(&module, ".version 8.0 // one");
    ((int (*)(void **, void *, const char *))must(handle, "cuModuleGetFunction"))(&function, module, "worker");
    Launch launch = (Launch)must(handle, "cuLaunchKernel");
    int (*fill)(unsigned long long, unsigned char, size_t, void *) =
        (int (*)(unsigned long long, unsigned char, size_t, void *))must(handle, "cuMemsetD8Async");
    int (*wait)(void *) = (int (*)(void *))must(handle, "cuStreamSynchronize");
    int wrong = 0;
    for (int i = 0; i < 20; i++) {
        wrong |= launch(function, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        wrong |= fill(0x1000, 0, 1 << 20, NULL);
        wrong |= wait(NULL);
    }
    void *own = dlopen(driver, RTLD_NOW | RTLD_NOLOAD);
    if (!own) return 4;
    printf("wrong %d\n", wrong);
    printf("arrived %llu\n", ((unsigned long long (*)(void))must(own, "nullcuda_launches"))());
    printf("waited %llu\n", ((unsigned long long (*)(void))must(own, "nullcuda_syncs"))());
    unsigned long long (*called)(const char *) = (unsigned long long (*)(const char *))must(own, "nullcuda_called");
    printf("filled %llu\n", called("cuMemsetD8Async"));
    say_counters();
    return 0;
}

/* Threads that launch while others load code, look up kernels and unload the code again. */
enum { LAUNCHERS = 3, LOADERS = 2, TURNS = 20000 };
static void *shared_handle;
static void *shared_kernels[4];

static void *launcher(void *number) {
    Launch launch = (Launch)must(shared_handle, "cuLaunchKernel");
    for (int i = 0; i < TURNS; i++)
        launch(shared_kernels[(i + (long)number) % 4], 1 + i % 3, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    return NULL;
}

static void *loader(void *number) {
    int (*load)(void **, const void *) = (int (*)(void **, const void *))must(shared_handle, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = (int (*)(void **, void *, const char *))must(shared_handle, "cuModuleGetFunction");
    int (*unload)(void *) = (int (*)(void *))must(shared_handle, "cuModuleUnload");
    Launch launch = (Launch)must(shared_handle, "cuLaunchKernel");
    for (int i = 0; i < TURNS / 100; i++) {
        void *module, *function;
        char image[64];
        snprintf(image, sizeof image, ".version 8.0 // %ld %d", (long)number, i);
        load(&module, image);
        get(&function, module, "passing");
        launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        unload(module);
    }
    return NULL;
}

static int threads(const char *driver) {
    shared_handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (!shared_handle) return 2;
    ((Init)must(shared_handle, "cuInit"))(0);
    int (*load)(void **, const void *) = (int (*)(void **, const void *))must(shared_handle, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = (int (*)(void **, void *, const char *))must(shared_handle, "cuModuleGetFunction");
    void *module;
    load(&module, ".version 8.0 // shared");
    for (int i = 0; i < 4; i++) {
        char name[] = {'k', (char)('0' + i), 0};
        get(&shared_kernels[i], module, name);
    }
    pthread_t all[LAUNCHERS + LOADERS];
    for (long i = 0; i < LAUNCHERS + LOADERS; i++)
        if (pthread_create(&all[i], NULL, i < LAUNCHERS ? launcher : loader, (void *)i)) return 5;
    for (int i = 0; i < LAUNCHERS + LOADERS; i++) pthread_join(all[i], NULL);
    void *own = dlopen(driver, RTLD_NOW | RTLD_NOLOAD);
    unsigned long long (*arrived)(void) = own ? (unsigned long long (*)(void))dlsym(own, "nullcuda_launches") : NULL;
    if (arrived) printf("arrived %llu\nexpected %d\n", arrived(), LAUNCHERS * TURNS + LOADERS * (TURNS / 100));
    say_counters();
    return 0;
}

/* An explicit graph and every way in which it can change. Each launch logs the graph's current identity, which the tests read. */
static int graph(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (!handle) return 2;
    ((Init)must(handle, "cuInit"))(0);
    typedef struct { void *function; unsigned grid[3], block[3], shared; void **arguments, **extra; void *kernel, *context; } Kernel;
    int (*load)(void **, const void *) = (int (*)(void **, const void *))must(handle, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = (int (*)(void **, void *, const char *))must(handle, "cuModuleGetFunction");
    int (*create)(void **, unsigned) = (int (*)(void **, unsigned))must(handle, "cuGraphCreate");
    int (*add)(void **, void *, void **, size_t, const Kernel *) =
        (int (*)(void **, void *, void **, size_t, const Kernel *))must(handle, "cuGraphAddKernelNode_v2");
    int (*add_child)(void **, void *, void **, size_t, void *) =
        (int (*)(void **, void *, void **, size_t, void *))must(handle, "cuGraphAddChildGraphNode");
    int (*add_empty)(void **, void *, void **, size_t) = (int (*)(void **, void *, void **, size_t))must(handle, "cuGraphAddEmptyNode");
    int (*make)(void **, void *, unsigned long long) = (int (*)(void **, void *, unsigned long long))must(handle, "cuGraphInstantiateWithFlags");
    int (*set)(void *, void *, const Kernel *) = (int (*)(void *, void *, const Kernel *))must(handle, "cuGraphExecKernelNodeSetParams_v2");
    int (*set_child)(void *, void *, void *) = (int (*)(void *, void *, void *))must(handle, "cuGraphExecChildGraphNodeSetParams");
    int (*update)(void *, void *, void *) = (int (*)(void *, void *, void *))must(handle, "cuGraphExecUpdate_v2");
    int (*enable)(void *, void *, unsigned) = (int (*)(void *, void *, unsigned))must(handle, "cuGraphNodeSetEnabled");
    int (*end)(void *) = (int (*)(void *))must(handle, "cuGraphExecDestroy");
    unsigned long long (*identity)(void *) = (unsigned long long (*)(void *))dlsym(RTLD_DEFAULT, "weft_graph");
    if (!identity) return 4;

    void *module, *a, *b, *inner, *other, *outer, *node, *child, *exec, *same;
    load(&module, ".version 8.0 // graph");
    get(&a, module, "a");
    get(&b, module, "b");
    Kernel of_a = {a, {1, 1, 1}, {32, 1, 1}, 0, NULL, NULL, NULL, NULL}, of_b = {b, {2, 1, 1}, {32, 1, 1}, 0, NULL, NULL, NULL, NULL};
    create(&inner, 0);
    add(&node, inner, NULL, 0, &of_b);
    create(&other, 0);
    add(&node, other, NULL, 0, &of_b);
    add(&node, other, NULL, 0, &of_b);
    create(&outer, 0);
    add(&node, outer, NULL, 0, &of_a);
    void *ignored;
    add_empty(&ignored, outer, NULL, 0);
    add_child(&child, outer, NULL, 0, inner);
    make(&exec, outer, 0);
    make(&same, outer, 0);
    printf("made %llx\nsame %llx\n", identity(exec), identity(same));
    set(exec, node, &of_a);
    printf("unchanged %llx\n", identity(exec));
    set(exec, node, &of_b);
    printf("other_kernel %llx\n", identity(exec));
    set(exec, node, &of_a);
    printf("changed_back %llx\n", identity(exec));
    enable(exec, node, 0);
    printf("disabled %llx\n", identity(exec));
    enable(exec, node, 1);
    set_child(exec, child, other);
    printf("other_child %llx\n", identity(exec));
    update(exec, outer, NULL);
    printf("updated %llx\n", identity(exec));
    int (*add_node)(void **, void *, void **, void *, size_t, void *) =
        (int (*)(void **, void *, void **, void *, size_t, void *))must(handle, "cuGraphAddNode_v2");
    struct { int kind, reserved[3]; uint64_t condition; unsigned what, size; void **bodies; void *rest[27]; } conditional = {
        13, {0}, 1, 1, 1, NULL, {0}};
    void *with_loop, *loop;
    create(&with_loop, 0);
    add(&ignored, with_loop, NULL, 0, &of_a);
    add_node(&ignored, with_loop, NULL, NULL, 0, &conditional);
    make(&loop, with_loop, 0);
    printf("empty_loop %llx\n", identity(loop));
    add(&ignored, conditional.bodies[0], NULL, 0, &of_b);
    make(&loop, with_loop, 0);
    printf("loop %llx\n", identity(loop));
    end(exec);
    printf("ended %llx\nsame_still %llx\n", identity(exec), identity(same));
    /* Many nodes. In the graph that the first graph is updated from, one of them is another kernel. */
    void *large[2], *follows, *wanted;
    for (int which = 0; which < 2; which++) {
        create(&large[which], 0);
        for (int at = 0; at < 200; at++) add(&ignored, large[which], NULL, 0, which && at == 150 ? &of_b : &of_a);
    }
    make(&follows, large[0], 0);
    make(&wanted, large[1], 0);
    unsigned long long before = identity(follows);
    for (int round = 0; round < 64; round++) update(follows, large[0], NULL);
    printf("unchanged_by_updates %d\n", identity(follows) == before);
    for (int round = 0; round < 64; round++) update(follows, large[1], NULL);
    printf("followed %d\n", identity(follows) == identity(wanted) && identity(wanted) != before);
    return 0;
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "idle";
    if (!strcmp(mode, "open")) return open_and_ask(words[2]);
    if (!strcmp(mode, "launch")) return launch(count > 2 ? words[2] : "");
    if (!strcmp(mode, "work")) return work(count > 2 ? words[2] : "");
    if (!strcmp(mode, "graph")) return graph();
    if (!strcmp(mode, "threads")) return threads(count > 2 ? words[2] : "");
    if (!strcmp(mode, "other")) { /* Opens any other library, and looks up names that only look like the driver's. */
        void *handle = dlopen(words[2], RTLD_NOW);
        printf("opened %d\n", handle != NULL);
        if (handle) say_where("own", dlsym(handle, "cuda_like_name"));
        say_where("getpid", dlsym(RTLD_DEFAULT, "getpid"));
        printf("next %d\n", dlsym(RTLD_NEXT, "malloc") != NULL);
        printf("nothing %d\n", dlsym(RTLD_DEFAULT, "no_such_function_anywhere") == NULL);
        say_counters();
        return 0;
    }
    printf("driver_mapped %d\n", mapped("nullcuda"));
    say_counters();
    return 0;
}
#endif
