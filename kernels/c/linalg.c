/* Module linalg: linear algebra on plain row-major arrays; sizes are parameters. */
#include "pappus.h"

/* The tiled products are launched with TILE x STEP threads; each has ROWS elements of the tile. */
#define TILE 32
#define ROWS 4
#define STEP (TILE / ROWS)
/* How much of the inner dimension a region takes: on the CPU the elements of `a` that it needs
 * (STRIP x ROWS) stay in vector registers or nearly so while it goes along x. */
#define STRIP 8
#define MAX_THREADS 1024

/* ---- products ------------------------------------------------------------------------------ */

/* C (m x n) = A (m x k) B (k x n), one thread per element. */
KERNEL(matmul_i64, (const i64 *, A), (const i64 *, B), (i64 *, C), (i64, m), (i64, n), (i64, k))
{
    FOR_EACH_XY(col, row, n, m)
    {
        i64 sum = 0;
        for (i64 i = 0; i < k; ++i)
            sum += A[row * k + i] * B[i * n + col];
        C[row * n + col] = sum;
    }
}

/* Copies the part of `source` (rows x cols) that lies under the tile at (top, left), and fills the
 * rest of the tile with zeros, so that the product needs no test per element. */
#define LOAD_TILE(tile, source, rows, cols, top, left)                                             \
    do {                                                                                           \
        i64 tile_rows = smaller(TILE, (rows) - (top)), tile_cols = smaller(TILE, (cols) - (left)); \
        if (tile_rows < TILE || tile_cols < TILE) {                                                \
            COVER_XY(x, 0, TILE, y, 0, TILE)                                                       \
            {                                                                                      \
                tile[y][x] = 0;                                                                    \
            }                                                                                      \
            BARRIER();                                                                             \
        }                                                                                          \
        COVER_XY(x, 0, tile_cols, y, 0, tile_rows)                                                 \
        {                                                                                          \
            tile[y][x] = (source)[((top) + y) * (cols) + (left) + x];                              \
        }                                                                                          \
    } while (0)

/* sums (of this block) = the block's tile of A (m x k) B (k x n). Thread (x, y) owns column x and the
 * rows y, y + STEP, y + 2 STEP, ...: what it reads of b serves all its rows. */
#define MULTIPLY_TILES(type, sums, A, B, m, n, k)                                                  \
    do {                                                                                           \
        SHARED type a[TILE][TILE];                                                                 \
        SHARED type b[TILE][TILE];                                                                 \
        REQUIRE(BLOCK_WIDTH == TILE && BLOCK_HEIGHT == STEP);                                      \
        FOR_EACH_THREAD_XY(x, y, TILE, STEP)                                                       \
        {                                                                                          \
            for (i64 row = 0; row < ROWS; ++row)                                                   \
                MINE(sums[row], y * TILE + x) = 0;                                                 \
        }                                                                                          \
        for (i64 base = 0; base < (k); base += TILE) {                                             \
            LOAD_TILE(a, A, m, k, BLOCK_Y * TILE, base);                                           \
            LOAD_TILE(b, B, k, n, base, BLOCK_X * TILE);                                           \
            BARRIER();                                                                             \
            for (i64 strip = 0; strip < TILE; strip += STRIP) {                                    \
                FOR_EACH_THREAD_XY(x, y, TILE, STEP)                                               \
                {                                                                                  \
                    type sum[ROWS];                                                                \
                    UNROLL for (i64 row = 0; row < ROWS; ++row)                                    \
                        sum[row] = MINE(sums[row], y * TILE + x);                                  \
                    UNROLL for (i64 i = strip; i < strip + STRIP; ++i)                             \
                        UNROLL for (i64 row = 0; row < ROWS; ++row)                                \
                            sum[row] += a[y + row * STEP][i] * b[i][x];                            \
                    UNROLL for (i64 row = 0; row < ROWS; ++row)                                    \
                        MINE(sums[row], y * TILE + x) = sum[row];                                  \
                }                                                                                  \
            }                                                                                      \
            BARRIER();                                                                             \
        }                                                                                          \
    } while (0)

/* C (m x n) = A (m x k) B (k x n) by tiles in shared memory. */
KERNEL(matmul_tiled_i64, (const i64 *, A), (const i64 *, B), (i64 *, C), (i64, m), (i64, n), (i64, k))
{
    PER_THREAD(i64, sums[ROWS], TILE * STEP);
    MULTIPLY_TILES(i64, sums, A, B, m, n, k);
    i64 top = BLOCK_Y * TILE, left = BLOCK_X * TILE;
    FOR_EACH_THREAD_XY(x, y, smaller(TILE, n - left), STEP)
    {
        for (i64 i = 0; i < ROWS && top + y + i * STEP < m; ++i)
            C[(top + y + i * STEP) * n + left + x] = MINE(sums[i], y * TILE + x);
    }
}

/* C (m x n) = alpha A (m x k) B (k x n) + beta C; with beta = 0 the old C is not looked at. */
KERNEL(sgemm, (const f32 *, A), (const f32 *, B), (f32 *, C), (i64, m), (i64, n), (i64, k),
       (f32, alpha), (f32, beta))
{
    PER_THREAD(f32, sums[ROWS], TILE * STEP);
    MULTIPLY_TILES(f32, sums, A, B, m, n, k);
    i64 top = BLOCK_Y * TILE, left = BLOCK_X * TILE;
    FOR_EACH_THREAD_XY(x, y, smaller(TILE, n - left), STEP)
    {
        for (i64 i = 0; i < ROWS && top + y + i * STEP < m; ++i) {
            f32 *element = C + (top + y + i * STEP) * n + left + x;
            f32 product = alpha * MINE(sums[i], y * TILE + x);
            *element = beta == 0 ? product : product + beta * *element;
        }
    }
}

/* ---- vectors ------------------------------------------------------------------------------- */

KERNEL(vec_add_f, (const f32 *, A), (const f32 *, B), (f32 *, C), (i64, n))
{
    FOR_EACH_X(i, n)
    {
        C[i] = A[i] + B[i];
    }
}

/* y = a x + y, with its parameters in one struct by value as CUTLASS kernels have them. */
typedef struct {
    address y;
    address x;
    i64 n;
    f32 a;
} axpy_parameters;

_Static_assert(sizeof(axpy_parameters) == 32, "one layout on every device");

KERNEL(axpy_f, (axpy_parameters, parameters))
{
    f32 *y = AT(f32, parameters.y);
    const f32 *x = AT(const f32, parameters.x);
    FOR_EACH_X(i, parameters.n)
    {
        y[i] = parameters.a * x[i] + y[i];
    }
}

/* ---- solvers and layers -------------------------------------------------------------------- */

/* One step of Jacobi's method for A x = b: x'[i] = x[i] + (b[i] - (A x)[i]) / A[i][i].
 * A is n x n, column by column: neighbouring threads then read neighbouring elements. */
KERNEL(jacobi_step_f, (const f32 *, A), (const f32 *, b), (const f32 *, x), (f32 *, x_next), (i64, n))
{
    PER_THREAD(f32, sums, MAX_THREADS);
    REQUIRE(BLOCK_WIDTH <= MAX_THREADS);
    i64 first = BLOCK_X * BLOCK_WIDTH;
    FOR_EACH_X(i, n)
    {
        MINE(sums, i - first) = 0;
    }
    for (i64 j = 0; j < n; ++j) {
        f32 x_j = x[j];
        FOR_EACH_X(i, n)
        {
            MINE(sums, i - first) += A[j * n + i] * x_j;
        }
    }
    FOR_EACH_X(i, n)
    {
        x_next[i] = x[i] + (b[i] - MINE(sums, i - first)) / A[i * n + i];
    }
}

/* e^x for x <= 0, in arithmetic that every device does alike (there is no common expf).
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r is a polynomial; n goes into the exponent's bits. */
INLINE f32 exp_of_nonpositive(f32 x)
{
    const f32 round_to_integer = 12582912.0f; /* 1.5 * 2^23: adding it leaves no fraction bits */
    f32 shifted = x * 1.44269504f + round_to_integer;
    f32 n = shifted - round_to_integer;
    f32 r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    f32 series = 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    u32 bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* the low bits of `shifted` are n; 127 is the exponent's bias */
    f32 scale;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : series * scale;
}

/* Combines partials[0..threads) pairwise into partials[0]. */
#define REDUCE(partials, threads, combine)                                                         \
    for (i64 count = (threads); count > 1; count = (count + 1) / 2) {                              \
        i64 half = (count + 1) / 2;                                                                \
        FOR_EACH_THREAD_BELOW(t, count - half)                                                     \
        {                                                                                          \
            f32 a = partials[t], b = partials[t + half];                                           \
            partials[t] = combine;                                                                 \
        }                                                                                          \
        BARRIER();                                                                                 \
    }

/* out[r][c] = e^(in[r][c] - max) / sum over the row; one block per row, any number of threads. */
KERNEL(softmax_f, (const f32 *, in), (f32 *, out), (i64, rows), (i64, cols))
{
    SHARED f32 partials[MAX_THREADS];
    i64 threads = BLOCK_THREADS;
    REQUIRE(threads <= MAX_THREADS);
    if (BLOCK_X >= rows || cols < 1)
        return;
    const f32 *row = in + BLOCK_X * cols;
    f32 *result = out + BLOCK_X * cols;

    FOR_EACH_THREAD(t)
    {
        partials[t] = row[t < cols ? t : 0];
    }
    for (i64 base = threads; base < cols; base += threads) {
        FOR_EACH_THREAD_BELOW(t, cols - base)
        {
            f32 value = row[base + t];
            partials[t] = value > partials[t] ? value : partials[t];
        }
    }
    BARRIER();
    REDUCE(partials, threads, a > b ? a : b);
    f32 largest = partials[0];
    BARRIER();

    FOR_EACH_THREAD(t)
    {
        partials[t] = 0;
    }
    for (i64 base = 0; base < cols; base += threads) {
        FOR_EACH_THREAD_BELOW(t, cols - base)
        {
            f32 power = exp_of_nonpositive(row[base + t] - largest);
            result[base + t] = power;
            partials[t] += power;
        }
    }
    BARRIER();
    REDUCE(partials, threads, a + b);
    f32 sum = partials[0];

    for (i64 base = 0; base < cols; base += threads) {
        FOR_EACH_THREAD_BELOW(t, cols - base)
        {
            result[base + t] = result[base + t] / sum;
        }
    }
}
