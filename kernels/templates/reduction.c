/* Sums: each block adds up its own part of the values, and a second launch, of one block, adds up the blocks' sums. */
#include "pappus.h"

#define THREADS 256

/* sums[b] = the sum of block b's part: `each` values from b * each on, as far as there are n. */
KERNEL(sum_parts, (const f32 *, values), (f32 *, sums), (i64, n), (i64, each))
{
    SHARED f32 partial[THREADS];
    REQUIRE(BLOCK_THREADS == THREADS);
    i64 first = BLOCK_X * each, end = smaller(first + each, n);

    FOR_EACH_THREAD(t)
    {
        partial[t] = 0;
    }
    for (i64 base = first; base < end; base += THREADS) {
        FOR_EACH_THREAD_BELOW(t, end - base)
        {
            partial[t] += values[base + t];
        }
    }
    BARRIER();
    for (i64 half = THREADS / 2; half > 0; half /= 2) {
        FOR_EACH_THREAD_BELOW(t, half)
        {
            partial[t] += partial[t + half];
        }
        BARRIER();
    }
    FOR_EACH_THREAD_BELOW(t, 1)
    {
        sums[BLOCK_X] = partial[t];
    }
}
