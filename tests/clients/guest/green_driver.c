/* A driver that answers what `weft doctor` asks about green contexts, in the layout of cuda.h: an
 * SM resource holds its number of SMs after a type and 92 bytes. It has one device and no more. */
#include <string.h>

typedef int Result;
enum { SUCCESS = 0, INVALID_VALUE = 1, SM_RESOURCE = 1 };

struct resource {
    unsigned type;
    unsigned char padding[92];
    unsigned sms, least, alignment, flags;
    unsigned char more[32];
    void *next;
};

Result cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
Result cuDriverGetVersion(int *version) { return *version = 13020, SUCCESS; }
Result cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
Result cuDeviceGetName(char *name, int size, int device) { return (void)device, strncpy(name, "green", size), SUCCESS; }
Result cuDeviceGetAttribute(int *value, int attribute, int device) { return (void)attribute, (void)device, *value = 0, SUCCESS; }

Result cuDeviceGetDevResource(int device, struct resource *resource, unsigned type)
{
    if (device || type != SM_RESOURCE)
        return INVALID_VALUE;
    *resource = (struct resource){.type = type, .sms = 132, .least = 8, .alignment = 8};
    return SUCCESS;
}

Result cuDevSmResourceSplitByCount(void) { return INVALID_VALUE; }
Result cuDevResourceGenerateDesc(void) { return INVALID_VALUE; }
Result cuGreenCtxCreate(void) { return INVALID_VALUE; }
#ifndef WITHOUT_STREAMS
Result cuGreenCtxStreamCreate(void) { return INVALID_VALUE; }
#endif
