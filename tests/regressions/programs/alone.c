// Starts what it is told to, or says hello.
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count > 1) execv(words[1], words + 1);
    puts("hello");
    return 0;
}
