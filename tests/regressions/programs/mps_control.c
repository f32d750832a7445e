// SPDX-License-Identifier: MIT OR Apache-2.0
// A control program of MPS, version 2, which behaves as that of driver 535.261.03 does without a
// GPU: its messages, files and exit codes were seen there. Waiting for clients at `quit` is by its
// manual page. A simulated driver in the mode `control` connects as a client.
//
// FAKE_MPS: `fails` at the start, `hangs` at the start, is `mute` to all questions.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST 128

static char pipes[4096];

static int address(struct sockaddr_un *at, const char *name) {
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    int length = snprintf(at->sun_path, sizeof at->sun_path, "%s/%s", pipes, name);
    return length < (int)sizeof at->sun_path - 1 ? 0 : -1;
}

static int listen_at(const char *name) {
    struct sockaddr_un at;
    if (address(&at, name)) return -1;
    unlink(at.sun_path);
    int one = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(one, (struct sockaddr *)&at, sizeof at) || listen(one, MOST)) return -1;
    return one;
}

static int knob(const char *name) {
    const char *said = getenv("FAKE_MPS");
    return said && strcmp(said, name) == 0;
}

static int peer(int one) {
    struct ucred who;
    socklen_t size = sizeof who;
    return getsockopt(one, SOL_SOCKET, SO_PEERCRED, &who, &size) ? -1 : who.pid;
}

static void serve(int door) {
    struct pollfd all[MOST] = {{.fd = door, .events = POLLIN}};
    int client[MOST] = {0}, count = 1, served = 0, quits = -1;
    for (;;) {
        int clients = 0;
        for (int i = 1; i < count; i++) clients += client[i];
        if (quits >= 0 && clients == 0) exit(0);
        if (poll(all, count, -1) < 0) continue;
        if (all[0].revents && count < MOST) {
            all[count] = (struct pollfd){.fd = accept(door, NULL, NULL), .events = POLLIN};
            client[count++] = 0;
        }
        for (int i = 1; i < count; i++) {
            char line[256] = {0}, answer[4096] = {0};
            if (!all[i].revents) continue;
            ssize_t length = read(all[i].fd, line, sizeof line - 1);
            if (length > 0 && !strcmp(line, "client\n") && quits < 0) {
                client[i] = served = 1;
                continue;
            }
            if (length > 0 && knob("mute")) continue;
            if (length > 0 && !strcmp(line, "quit\n") && quits < 0) {
                quits = i;
                continue;
            }
            if (length > 0 && quits >= 0) strcpy(answer, "The MPS control daemon is shutting down\n");
            else if (!strcmp(line, "get_server_list\n") && served) sprintf(answer, "%d\n", getpid());
            else if (!strncmp(line, "get_client_list ", 16)) {
                for (int j = 1; j < count; j++)
                    if (client[j]) sprintf(answer + strlen(answer), "%d\n", peer(all[j].fd));
            } else if (length > 0 && strcmp(line, "get_server_list\n")) sprintf(answer, "Unknown command \"%s\"\n", line);
            if (length > 0 && write(all[i].fd, answer, strlen(answer)) < 0) perror("answer");
            close(all[i].fd);
            if (quits == count - 1) quits = i;
            all[i] = all[--count];
            client[i] = client[count];
            i--;
        }
    }
}

static int daemon_begins(void) {
    char path[4200];
    if (knob("fails")) return puts("Cannot start for the test"), 1;
    if (knob("hangs")) return pause(), 1;
    if (access(pipes, W_OK | X_OK)) return printf("Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n", pipes), 1;
    snprintf(path, sizeof path, "%s/control_lock", pipes);
    int lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (flock(lock, LOCK_EX | LOCK_NB)) return puts("An instance of this daemon is already running"), 1;
    int door = listen_at("control");
    if (door < 0 || listen_at("control_privileged") < 0) return 1;
    const char *logs = getenv("CUDA_MPS_LOG_DIRECTORY");
    snprintf(path, sizeof path, "%s/control.log", logs ? logs : "/var/log/nvidia-mps");
    FILE *log = fopen(path, "a");
    if (log) fprintf(log, "Starting control daemon using socket %s/control\n", pipes), fclose(log);
    if (fork()) return 0;
    setsid();
    serve(door);
    return 0;
}

int main(int count, char **arguments) {
    const char *said = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(pipes, sizeof pipes, "%s", said ? said : "/tmp/nvidia-mps");
    signal(SIGPIPE, SIG_IGN);
    if (count == 2 && !strcmp(arguments[1], "-d")) return daemon_begins();
    if (count > 1) return printf("Unknown option %s\n", arguments[1]), 1;
    char line[256], answer[4096];
    while (fgets(line, sizeof line, stdin)) {
        struct sockaddr_un at;
        int one = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (address(&at, "control") || connect(one, (struct sockaddr *)&at, sizeof at))
            return puts("Cannot find MPS control daemon process"), 1;
        if (write(one, line, strlen(line)) < 0) return 1;
        for (ssize_t length; (length = read(one, answer, sizeof answer)) > 0;) fwrite(answer, 1, length, stdout);
        close(one);
    }
    return 0;
}
