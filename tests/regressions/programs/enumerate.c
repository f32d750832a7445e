// Lists the kernels of its code with room for more than there are. What stands behind them is no handle, and nobody may follow it.
#include "strict.h"

enum { ROOM = 64 };

int main(void) {
    Handle module, code, listed[ROOM];
    open_strict();
    check(call(cuModuleLoadData, &module, "code"));
    memset(listed, 0x5a, sizeof listed);
    check(call(cuModuleEnumerateFunctions, listed, ROOM, module));
    printf("functions: %s\n", listed[2] != listed[3] && listed[3] == listed[ROOM - 1] ? "three" : "others");
    check(call(cuLibraryLoadData, &code, "code", 0, 0, 0, 0, 0, 0));
    memset(listed, 0x5a, sizeof listed);
    check(call(cuLibraryEnumerateKernels, listed, ROOM, code));
    printf("kernels: %s\n", listed[2] != listed[3] && listed[3] == listed[ROOM - 1] ? "three" : "others");
    // With room for fewer than there are, none behind that is touched.
    memset(listed, 0x5a, sizeof listed);
    check(call(cuModuleEnumerateFunctions, listed, 1, module));
    printf("with room for one: %s\n", listed[0] != listed[1] && listed[1] == listed[2] ? "one" : "others");
    return 0;
}
