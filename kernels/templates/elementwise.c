/* y = factor x + offset, each element by itself. */
#include "pappus.h"

KERNEL(scale, (const f32 *, x), (f32 *, y), (i64, n), (f32, factor), (f32, offset))
{
    FOR_EACH_X(i, n)
    {
        y[i] = factor * x[i] + offset;
    }
}
