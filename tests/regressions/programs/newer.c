// Finds a function that is newer than weft, in the way that the first argument names, with launches left behind; calls it, and launches on.
#include "strict.h"

int main(int count, char **words) {
    int (*news)(void) = 0, status;
    open_strict();
    launch();
    check(call(cuStreamSynchronize, stream));
    leave_behind();
    if (!strcmp(words[1], "dlsym")) *(void **)&news = dlsym(library, "cuStrictNews");
    else check(call(cuGetProcAddress_v2, "cuStrictNews", &news, 99000, 0L, &status));
    printf("overtaken: %ld\n", made - news());
    long behind = 0;
    for (int at = 0; at < 5; at++) { launch(); behind += made - news(); }
    printf("overtaken later: %ld\n", behind);
    return 0;
}
