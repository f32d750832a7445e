// A job that shuts itself in once it has begun: from then on a thread that it starts is its end.
#include <stddef.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "strict.h"

static void shut_in(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

int main(int count, char **words) {
    open_strict();
    shut_in();
    launch();
    check(call(cuStreamSynchronize, stream));
    if (!strcmp(words[1], "background")) leave_behind();
    check(call(cuStreamSynchronize, stream));
    printf("%ld left\n", left());
    return 0;
}
