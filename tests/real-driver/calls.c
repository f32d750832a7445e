/* Calls every function of a file of names with zeroes for all arguments, each in a process of its own, and tells what came of it: the answer, or the signal.
 *
 *   calls before NAMES       in a process that never called cuInit
 *   calls after NAMES        in one whose cuInit found no device
 *
 * A driver without a device refuses nearly all of them before it looks at an argument.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef int (*text)(int, const char **);
typedef int (*version)(int *);

/* Seconds that one call may take. */
enum { PATIENCE = 20 };

int main(int argc, char **argv)
{
    static char name[128];
    if (argc != 3) {
        fprintf(stderr, "calls before|after NAMES\n");
        return 2;
    }
    FILE *list = fopen(argv[2], "r");
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    int *answer = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (list == NULL || handle == NULL || answer == MAP_FAILED) {
        fprintf(stderr, "no list, no library or no memory: %s\n", dlerror());
        return 1;
    }
    int number = -1;
    printf("cuDriverGetVersion\t%d", ((version)dlsym(handle, "cuDriverGetVersion"))(&number));
    printf(" %d\n", number);
    for (int code = -1; code < 1100; code++) {
        const char *is = NULL, *says = NULL;
        int result = ((text)dlsym(handle, "cuGetErrorName"))(code, &is);
        int other = ((text)dlsym(handle, "cuGetErrorString"))(code, &says);
        if (result != 1 || is)
            printf("error %d\t%d %s, %d %s\n", code, result, is ? is : "-", other, says ? says : "-");
    }
    if (!strcmp(argv[1], "after")) {
        function start = (function)dlsym(handle, "cuInit");
        printf("cuInit 1\t%d\n", start(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
        printf("cuInit\t%d\n", start(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
        printf("cuInit again\t%d\n", start(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    }
    while (fgets(name, sizeof name, list)) {
        name[strcspn(name, "\n")] = 0;
        function call = (function)dlsym(handle, name);
        if (call == NULL) {
            printf("%s\tabsent\n", name);
            continue;
        }
        fflush(stdout);
        *answer = -1;
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE);
            *answer = call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            _exit(0);
        }
        int ended = 0;
        if (child < 0 || waitpid(child, &ended, 0) != child) {
            perror("fork");
            return 1;
        }
        if (WIFSIGNALED(ended))
            printf("%s\tsignal %d\n", name, WTERMSIG(ended));
        else
            printf("%s\t%d\n", name, *answer);
    }
    return 0;
}
