// What a launch leaves alone: errno, the modes of the floating-point unit, the linker's last error, a thread's signal mask, and who gets a signal that the
// process waits for. And a program that has the unit trap what is no number (Fortran's do), in all threads, is not ended by other people's arithmetic.
#include "plain.h"
#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <xmmintrin.h>

int main(void) {
    feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    open_gpu();
    void *stream = new_stream();
    for (unsigned value = 0; value < 500; value++) fill(value, stream);
    _mm_setcsr(_mm_getcsr() | 0x8040); // flush to zero, denormals are zero
    // Without the flags of what has happened so far, which any library raises.
    unsigned modes = _mm_getcsr() & ~0x3fu;
    int touched = 0;
    for (unsigned value = 0; value < 2000; value++) {
        errno = 77;
        fill(value, stream);
        touched += errno != 77;
    }
    printf("errno touched %d times, modes %s\n", touched, (_mm_getcsr() & ~0x3fu) == modes ? "kept" : "changed");
    dlopen("libnothing.so", RTLD_NOW);
    fill(1, stream);
    printf("dlerror %s\n", dlerror() ? "kept" : "lost");

    sigset_t all, one, now;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    for (int turn = 0; turn < 200; turn++) {
        int got = 0;
        fill(1, stream);
        kill(getpid(), SIGUSR1);
        sigwait(&one, &got);
        if (got != SIGUSR1) return 3;
    }
    pthread_sigmask(SIG_BLOCK, 0, &now);
    printf("mask %s, last %u\n", sigismember(&now, SIGTERM) ? "kept" : "changed", work(50, stream));
    return 0;
}
