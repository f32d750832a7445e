// A library that opens the driver by itself, in a scope of its own. Built twice: with -DLIBRARY it is the library.
//   deep LIBRARY HOW NAME [FILE]   HOW: deepbind or namespace; NAME: what the library opens as the driver. Says whose cuInit it gets. With FILE it stays until that is gone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef LIBRARY
const char *initialises(const char *name) {
    Dl_info about;
    void *driver = dlopen(name, RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : 0;
    if (!init || !dladdr((void *)init, &about) || init(0)) return "nobody's";
    return dlsym(driver, "weft_interposer") ? "weft's" : "the driver's";
}
#else
int main(int count, char **words) {
    void *library = strcmp(words[2], "namespace") ? dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND) : dlmopen(LM_ID_NEWLM, words[1], RTLD_NOW);
    const char *(*initialises)(const char *) = library ? (const char *(*)(const char *))dlsym(library, "initialises") : 0;
    if (!initialises) { fprintf(stderr, "%s\n", dlerror()); return 9; }
    puts(initialises(words[3]));
    fflush(stdout);
    while (count > 4 && !access(words[4], F_OK)) usleep(10000);
    return 0;
}
#endif
