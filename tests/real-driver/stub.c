/* Stands for the library that CUDA's toolkit keeps in `stubs` to link against: every call answers CUDA_ERROR_STUB_LIBRARY. */
int cuInit(unsigned flags)
{
    (void)flags;
    return 34;
}

int cuDriverGetVersion(int *version)
{
    (void)version;
    return 34;
}
