// A job whose children are made past the C library's fork handlers while it launches, and end by exit. Argument: how many there are. Says how many hung.
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include "plain.h"

static volatile int *done;

static void *launches(void *nothing) {
    enter();
    void *stream = new_stream();
    for (unsigned at = 0; !*done; at++) {
        fill(at, stream);
        if (at % 16 == 15) check(cuStreamSynchronize(stream));
    }
    return nothing;
}

static double now(void) { struct timespec time; clock_gettime(CLOCK_MONOTONIC, &time); return time.tv_sec + time.tv_nsec * 1e-9; }

int main(int count, char **words) {
    int children = atoi(words[1]), hung = 0;
    pthread_t thread;
    done = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    open_gpu();
    void *stream = new_stream();
    pthread_create(&thread, 0, launches, 0);
    for (int child = 0; child < children; child++) {
        for (unsigned at = 0; at < 20; at++) fill(at, stream);
        pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (!pid) exit(0);
        double begun = now();
        // The queue is given two seconds at a process's end.
        while (!waitpid(pid, 0, WNOHANG) && now() - begun < 10) usleep(1000);
        if (now() - begun >= 1.9) hung++;
        kill(pid, SIGKILL);
    }
    check(cuStreamSynchronize(stream));
    *done = 1;
    pthread_join(thread, 0);
    printf("%d hung\n", hung);
    return 0;
}
