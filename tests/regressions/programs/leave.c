// Launches that nobody waited for, and the process ends: by the function that the first argument names, or, `handler`, by `_exit` in the handler of a signal that comes while the program waits in
// the driver. `vfork`: a child that shares this process's memory ends first. Says how many launches were made, and how many had not reached the driver by then.
#include <signal.h>
#include <sys/wait.h>
#include "strict.h"

enum { LAUNCHES = 300, CODE = 7 };

static void handle(int signal) { _exit(CODE); }

int main(int count, char **words) {
    const char *how = words[1];
    open_strict();
    launch();
    check(call(cuStreamSynchronize, stream));
    while (made < LAUNCHES || left() < 50) launch();
    printf("%ld %ld\n", made, left());
    fflush(stdout);
    if (!strcmp(how, "vfork")) {
        pid_t child = vfork();
        if (!child) _exit(0);
        waitpid(child, 0, 0);
        // As many are left as the gate did not let go by itself meanwhile; the child let none.
        raise(SIGKILL);
    }
    if (!strcmp(how, "handler")) {
        signal(SIGALRM, handle);
        // What was in the queue has gone then, however long that took.
        call(cuStreamSynchronize, stream);
        alarm(1);
        for (;;) { launch(); call(cuStreamSynchronize, stream); }
    }
    if (!strcmp(how, "_exit")) _exit(CODE);
    if (!strcmp(how, "_Exit")) _Exit(CODE);
    if (!strcmp(how, "quick_exit")) quick_exit(CODE);
    exit(CODE);
}
