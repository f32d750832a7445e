/* Linked against the driver, as few programs are: among its references one that no header declares. */
#include <stdio.h>

extern int cuInit(unsigned);
extern int cuDriverGetVersion(int *);
extern int cuMemGetAttribute(void *, int, void *);

int main(void)
{
    int version = -1;
    int result = cuDriverGetVersion(&version);
    printf("%d %d, %d, %d\n", result, version, cuMemGetAttribute(NULL, 0, NULL), cuInit(0));
    return 0;
}
