/* Module module: the smallest kernels there are, for latencies and for tests. Launched 1x1. */
#include "pappus.h"

/* What check_then_write looks for, and what it leaves. */
#define BEFORE 12345
#define AFTER 98765

KERNEL(hello_world)
{
}

KERNEL(check_then_write, (i64 *, A))
{
    FOR_EACH_X(i, 1)
    {
        if (A[i] == BEFORE)
            A[i] = AFTER;
    }
}
