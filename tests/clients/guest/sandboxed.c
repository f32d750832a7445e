// A job that shuts itself in once it runs: from then on all its threads may make few system calls (seccomp, for all threads at once).
//
//   sandboxed errno      every other call fails with EPERM: weft's own calls on the job's threads too
//   sandboxed kill       every other call ends the process; the list holds what docs/limits.md says weft needs there
#include "plain.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

// What the job, the C library and a driver need to go on.
static const int job[] = {
    SYS_read, SYS_write, SYS_close, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_brk, SYS_ioctl, SYS_futex, SYS_poll, SYS_ppoll, SYS_epoll_wait, SYS_epoll_pwait,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_sched_yield, SYS_getpid, SYS_gettid, SYS_tgkill, SYS_clone, SYS_clone3, SYS_rseq, SYS_set_robust_list,
    SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_rt_sigreturn, SYS_restart_syscall, SYS_sigaltstack, SYS_sched_getaffinity, SYS_exit, SYS_exit_group,
};
// And weft, on the job's threads and on its own: the doorbell is compared with what it was, waits are precise, the broker's messages are heard.
static const int weft[] = {SYS_fstat, SYS_prctl, SYS_fcntl, SYS_recvmsg, SYS_sendmsg};

static void *other(void *nothing) {
    enter();
    printf("thread %u\n", work(100, new_stream()));
    return nothing;
}

int main(int count, char **words) {
    struct sock_filter program[128];
    int kill = count > 1 && !strcmp(words[1], "kill"), length = 0, allowed = 0;
    open_gpu();
    void *stream = new_stream();
    printf("%u\n", work(50, stream));
    fflush(stdout);
    int numbers[100];
    for (size_t at = 0; at < sizeof job / sizeof *job; at++) numbers[allowed++] = job[at];
    for (size_t at = 0; kill && at < sizeof weft / sizeof *weft; at++) numbers[allowed++] = weft[at];
    program[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int at = 0; at < allowed; at++) program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[at], allowed - at, 0);
    program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM);
    program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {length, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)) {
        printf("no seccomp here\n");
        return 0;
    }
    pthread_t thread;
    if (pthread_create(&thread, 0, other, 0)) return 4;
    for (int turn = 0; turn < 40; turn++) if (work(50, stream) != 49) return 5;
    pthread_join(thread, 0);
    // Long enough for weft's own thread to look after the broker.
    usleep(600000);
    printf("sandboxed %u\n", work(300, stream));
    return 0;
}
