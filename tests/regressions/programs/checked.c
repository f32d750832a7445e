// A few launches whose last must be there.
#include "plain.h"

int main(void) {
    open_gpu();
    printf("%u\n", work(100, new_stream()));
    return 0;
}
