// Asks for private tables of the driver and calls through the last one, with launches left behind. First argument: the tables' identities, 32 hexadecimal digits each, with commas between;
// second: `later`, with launches in the queue, or `early`, before cuInit; third: whether launches are to be left behind afterwards. The table's function says how many launches had reached
// the driver when it was called.
#include "strict.h"

static int (*before_it)(void);

static void ask(const char *identities) {
    for (;;) {
        unsigned char identity[16];
        void **table = 0;
        for (int at = 0; at < 16; at++, identities += 2)
            if (sscanf(identities, "%2hhx", identity + at) != 1) _exit(6);
        check(call(cuGetExportTable, &table, identity));
        *(void **)&before_it = table[1];
        if (*identities++ != ',') return;
    }
}

int main(int count, char **words) {
    int early = !strcmp(words[2], "early"), leaves = !strcmp(words[3], "leaves");
    if (early) {
        library = dlopen(getenv("DRIVER"), RTLD_NOW);
        ask(words[1]);
    }
    open_strict();
    launch();
    check(call(cuStreamSynchronize, stream));
    if (!early) {
        leave_behind();
        ask(words[1]);
        if (!leaves) printf("overtaken: %ld\n", made - before_it());
    }
    if (leaves) {
        leave_behind();
        printf("left behind\n");
        return 0;
    }
    long behind = 0;
    for (int at = 0; at < 60; at++) { launch(); behind += made - before_it(); }
    printf("overtaken later: %ld\n", behind);
    return 0;
}
