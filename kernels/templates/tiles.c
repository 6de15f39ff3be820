/* A matrix product by tiles: a block computes TILE x TILE elements of the result, and has the tiles of both factors that
 * it is at in shared memory. */
#include "pappus.h"

#define TILE 16

/* c (m x n) = a (m x k) b (k x n), row by row. */
KERNEL(product, (const f32 *, a), (const f32 *, b), (f32 *, c), (i64, m), (i64, n), (i64, k))
{
    SHARED f32 left[TILE][TILE];
    SHARED f32 right[TILE][TILE];
    PER_THREAD(f32, sums, TILE * TILE);
    REQUIRE(BLOCK_WIDTH == TILE && BLOCK_HEIGHT == TILE);
    i64 top = BLOCK_Y * TILE, first = BLOCK_X * TILE;

    FOR_EACH_THREAD_XY(x, y, TILE, TILE)
    {
        MINE(sums, y * TILE + x) = 0;
    }
    for (i64 base = 0; base < k; base += TILE) {
        FOR_EACH_THREAD_XY(x, y, TILE, TILE)
        {
            left[y][x] = top + y < m && base + x < k ? a[(top + y) * k + base + x] : 0;
            right[y][x] = base + y < k && first + x < n ? b[(base + y) * n + first + x] : 0;
        }
        BARRIER();
        FOR_EACH_THREAD_XY(x, y, TILE, TILE)
        {
            f32 sum = MINE(sums, y * TILE + x);
            for (i64 i = 0; i < TILE; ++i)
                sum += left[y][i] * right[i][x];
            MINE(sums, y * TILE + x) = sum;
        }
        BARRIER();
    }
    FOR_EACH_THREAD_XY(x, y, smaller(TILE, n - first), smaller(TILE, m - top))
    {
        c[(top + y) * n + first + x] = MINE(sums, y * TILE + x);
    }
}
