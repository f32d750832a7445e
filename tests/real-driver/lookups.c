/* Every way to look a driver function up, tried with every name of a file; what came of each is a line on stdout.
 *
 *   lookups LIBRARY NAMES          by dlsym, dlvsym, cuGetProcAddress and cuGetProcAddress_v2, before and after cuInit
 *
 * An address is told as what it is: `-` nothing, `F+OFFSET` in the file F (driver or weft), and for weft's own the name of the export.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*init)(unsigned);
typedef int (*by_version)(const char *, void **, int, uint64_t);
typedef int (*by_version_2)(const char *, void **, int, uint64_t, int *);

static const int VERSIONS[] = {2000, 11000, 11030, 12000, 12020, 13000};
/* CU_GET_PROC_ADDRESS_DEFAULT, ..._LEGACY_STREAM, ..._PER_THREAD_DEFAULT_STREAM, both, and one that does not exist. */
static const uint64_t FLAGS[] = {0, 1, 2, 3, 4};

static char names[4096][96];
static int count;

static void tell(const void *address)
{
    Dl_info about;
    if (address == NULL) {
        printf("\t-");
        return;
    }
    if (!dladdr(address, &about) || about.dli_fname == NULL) {
        printf("\tnowhere");
        return;
    }
    if (strstr(about.dli_fname, "libweft") != NULL)
        printf("\tweft:%s", about.dli_saddr == address && about.dli_sname ? about.dli_sname : "?");
    else if (strstr(about.dli_fname, "libcuda") != NULL)
        printf("\tdriver+%lx", (unsigned long)((const char *)address - (const char *)about.dli_fbase));
    else
        printf("\t%s", about.dli_fname);
}

static void by_handle(const char *when, const char *how, void *handle)
{
    static const char *const of[] = {"", "libcuda.so.1", "GLIBC_2.2.5"};
    for (int at = 0; at < count; at++) {
        printf("%s\tdlsym %s\t%s", when, how, names[at]);
        tell(dlsym(handle, names[at]));
        printf("\n");
        for (int version = 1; version < 3; version++) {
            printf("%s\tdlvsym %s %s\t%s", when, how, of[version], names[at]);
            tell(dlvsym(handle, names[at], of[version]));
            printf("\n");
        }
    }
}

static void by_driver(const char *when, void *handle)
{
    by_version first = (by_version)dlsym(handle, "cuGetProcAddress");
    by_version_2 second = (by_version_2)dlsym(handle, "cuGetProcAddress_v2");
    for (int at = 0; at < count; at++)
        for (size_t version = 0; version < sizeof VERSIONS / sizeof *VERSIONS; version++)
            for (size_t flag = 0; flag < sizeof FLAGS / sizeof *FLAGS; flag++) {
                /* What must be written over, and what must stay where the driver writes nothing. */
                void *address = NULL;
                int status = -7;
                if (first) {
                    int result = first(names[at], &address, VERSIONS[version], FLAGS[flag]);
                    printf("%s\tcuGetProcAddress %d %d: %d\t%s", when, VERSIONS[version], (int)FLAGS[flag], result, names[at]);
                    tell(address);
                    printf("\n");
                }
                address = NULL;
                if (second) {
                    int result = second(names[at], &address, VERSIONS[version], FLAGS[flag], &status);
                    printf("%s\tcuGetProcAddress_v2 %d %d: %d, %d\t%s", when, VERSIONS[version], (int)FLAGS[flag], result, status, names[at]);
                    tell(address);
                    printf("\n");
                    address = NULL;
                    result = second(names[at], &address, VERSIONS[version], FLAGS[flag], NULL);
                    printf("%s\tcuGetProcAddress_v2 %d %d, no status: %d\t%s", when, VERSIONS[version], (int)FLAGS[flag], result, names[at]);
                    tell(address);
                    printf("\n");
                }
            }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "lookups LIBRARY NAMES\n");
        return 2;
    }
    FILE *list = fopen(argv[2], "r");
    if (list == NULL) {
        perror(argv[2]);
        return 2;
    }
    for (; count < 4096 && fgets(names[count], sizeof *names, list); count++)
        names[count][strcspn(names[count], "\n")] = 0;
    fclose(list);
    const char *const ways[] = {"libcuda.so.1", "libcuda.so", argv[1]};
    void *handles[3];
    for (int way = 0; way < 3; way++) {
        handles[way] = dlopen(ways[way], RTLD_NOW | RTLD_LOCAL);
        if (handles[way] == NULL) {
            fprintf(stderr, "%s: %s\n", ways[way], dlerror());
            return 1;
        }
    }
    by_handle("before", "libcuda.so.1", handles[0]);
    by_handle("before", "libcuda.so", handles[1]);
    by_handle("before", "absolute", handles[2]);
    by_driver("before", handles[0]);
    init start = (init)dlsym(handles[0], "cuInit");
    printf("init\tcuInit\t%d\n", start(0));
    by_handle("after", "libcuda.so.1", handles[0]);
    by_driver("after", handles[0]);
    return 0;
}
