/* A slow disk: each fsync and fdatasync waits while the file that HELD_BY names is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int held(const char *name, int fd)
{
    const char *file = getenv("HELD_BY");
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);

    while (file && access(file, F_OK) == 0)
        usleep(10000);
    return real(fd);
}

int fsync(int fd) { return held("fsync", fd); }
int fdatasync(int fd) { return held("fdatasync", fd); }
