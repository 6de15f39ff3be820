/* In each step every element becomes the mean of itself and its four neighbours. */
#include "pappus.h"

/* Beyond an edge lies the edge itself. */
KERNEL(blur, (const f32 *, in), (f32 *, out), (i64, width), (i64, height))
{
    FOR_EACH_XY(x, y, width, height)
    {
        i64 left = larger(x - 1, 0), right = smaller(x + 1, width - 1);
        i64 above = larger(y - 1, 0), below = smaller(y + 1, height - 1);
        f32 sum = in[y * width + x] + in[y * width + left] + in[y * width + right] + in[above * width + x] +
                  in[below * width + x];
        out[y * width + x] = sum / 5;
    }
}
