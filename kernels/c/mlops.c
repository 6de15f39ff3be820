/* Module mlops: integer and float matrices that carry their own dimensions.
 *
 * An integer matrix is one i64 n followed by n x n values; a float matrix is two f32 (rows, cols)
 * followed by rows x cols values, row by row. Results carry their dimensions too. Grids may be
 * larger than the matrix. Kernels named _batched work on many float matrices of one size: the
 * values of all of them follow one pair of dimensions, and grid z chooses the matrix. */
#include "pappus.h"

#define HEADER 2
#define FILTER 5
#define REACH 2
#define TILE 32
#define HALO_TILE (TILE + 2 * REACH)

/* The cfg words of the batched kernels, in order. */
enum { CFG_OUTPUT_BYTES, CFG_GRID_A, CFG_GRID_D, CFG_REPETITIONS, CFG_BATCH };

/* ---- integers ------------------------------------------------------------------------------ */

/* The n of an integer matrix, or 0 where the buffer has no room for n x n values. */
INLINE i64 integer_side(const i64 *A, u64 A_bytes)
{
    if (A_bytes < sizeof(i64))
        return 0;
    i64 room = (i64)(A_bytes / sizeof(i64)) - 1;
    return A[0] > 0 && A[0] <= room / A[0] ? A[0] : 0;
}

INLINE i64 dot(const i64 *a, const i64 *b, i64 n)
{
    i64 sum = 0;
    for (i64 k = 0; k < n; ++k)
        sum += a[k] * b[k];
    return sum;
}

/* B = A times its transpose, one thread per element. */
KERNEL(matmul_para, (const i64 *, A), (u64, A_bytes), (i64 *, B))
{
    i64 n = integer_side(A, A_bytes);
    const i64 *rows = A + 1;
    FOR_EACH_XY(x, y, n, n)
    {
        if (x == 0 && y == 0)
            B[0] = n;
        B[1 + y * n + x] = dot(rows + y * n, rows + x * n, n);
    }
}

/* The same by the first thread alone. */
KERNEL(matmul_loop, (const i64 *, A), (u64, A_bytes), (i64 *, B))
{
    i64 n = integer_side(A, A_bytes);
    const i64 *rows = A + 1;
    FOR_EACH_XY(x, y, smaller(n, 1), 1)
    {
        B[0] = n;
        for (i64 row = 0; row < n; ++row)
            for (i64 col = 0; col < n; ++col)
                B[1 + row * n + col] = dot(rows + row * n, rows + col * n, n);
    }
}

/* ---- floats -------------------------------------------------------------------------------- */

INLINE i64 rows_of(const f32 *matrix) { return dimension(matrix[0]); }
INLINE i64 cols_of(const f32 *matrix) { return dimension(matrix[1]); }

PART(write_dimensions, (f32 *, matrix), (i64, rows), (i64, cols))
{
    FOR_EACH_XY(x, y, BLOCK_Z == 0, BLOCK_Z == 0)
    {
        matrix[0] = (f32)rows;
        matrix[1] = (f32)cols;
    }
}

/* C = A x B. The inner dimension is what both have. */
KERNEL(matmul_f, (f32 *, C), (const f32 *, A), (const f32 *, B))
{
    i64 rows = rows_of(A), cols = cols_of(B), a_cols = cols_of(A);
    i64 inner = smaller(a_cols, rows_of(B));
    const f32 *a = A + HEADER, *b = B + HEADER;
    RUN(write_dimensions, C, rows, cols);
    FOR_EACH_XY(x, y, cols, rows)
    {
        f32 sum = 0;
        for (i64 k = 0; k < inner; ++k)
            sum += a[y * a_cols + k] * b[k * cols + x];
        C[HEADER + y * cols + x] = sum;
    }
}

/* 5x5 convolution with zero padding: out[r][c] = sum of in[r-k][c-l] * filter[2+k][2+l]. */
PART(convolve, (f32 *, out), (const f32 *, in), (const f32 *, filter), (i64, rows), (i64, cols))
{
    SHARED f32 tile[HALO_TILE][HALO_TILE];
    f32 weights[FILTER][FILTER];
    REQUIRE(BLOCK_WIDTH <= TILE && BLOCK_HEIGHT <= TILE);
    i64 top = BLOCK_Y * BLOCK_HEIGHT - REACH, left = BLOCK_X * BLOCK_WIDTH - REACH;
    i64 bottom = top + BLOCK_HEIGHT + 2 * REACH, right = left + BLOCK_WIDTH + 2 * REACH;

    /* Copied because the compiler must assume that writing `out` may change the filter. */
    for (i64 k = 0; k < FILTER; ++k)
        for (i64 l = 0; l < FILTER; ++l)
            weights[k][l] = filter[k * FILTER + l];

    /* The padding first, so that the copy and the sum need no test per element. */
    COVER_XY(x, 0, right - left, y, 0, bottom - top)
    {
        tile[y][x] = 0;
    }
    BARRIER();
    COVER_XY(x, larger(left, 0), smaller(right, cols), y, larger(top, 0), smaller(bottom, rows))
    {
        tile[y - top][x - left] = in[y * cols + x];
    }
    BARRIER();
    FOR_EACH_XY(x, y, cols, rows)
    {
        f32 sum = 0;
        UNROLL for (i64 k = -REACH; k <= REACH; ++k)
            UNROLL for (i64 l = -REACH; l <= REACH; ++l)
                sum += tile[y - top - k][x - left - l] * weights[REACH + k][REACH + l];
        out[y * cols + x] = sum;
    }
}

PART(relu, (f32 *, values), (i64, rows), (i64, cols))
{
    FOR_EACH_XY(x, y, cols, rows)
    {
        f32 value = values[y * cols + x];
        values[y * cols + x] = value > 0 ? value : 0;
    }
}

/* The largest of every factor x factor square; what is left over at the edges is dropped. */
PART(maxpool_by, (f32 *, out), (const f32 *, in), (i64, factor), (i64, out_rows), (i64, out_cols),
     (i64, in_cols))
{
    FOR_EACH_XY(x, y, out_cols, out_rows)
    {
        const f32 *corner = in + y * factor * in_cols + x * factor;
        f32 largest = corner[0];
        for (i64 k = 0; k < factor; ++k)
            for (i64 l = 0; l < factor; ++l)
                largest = corner[k * in_cols + l] > largest ? corner[k * in_cols + l] : largest;
        out[y * out_cols + x] = largest;
    }
}

PART(maxpool, (f32 *, out), (const f32 *, in), (i64, factor), (i64, out_rows), (i64, out_cols),
     (i64, in_cols))
{
    /* The usual factor as a constant: its loops unroll and the region vectorises. */
    if (factor == 2)
        RUN(maxpool_by, out, in, 2, out_rows, out_cols, in_cols);
    else
        RUN(maxpool_by, out, in, factor, out_rows, out_cols, in_cols);
}

KERNEL(convolution_f, (f32 *, C), (const f32 *, A), (const f32 *, B))
{
    i64 rows = rows_of(A), cols = cols_of(A);
    RUN(write_dimensions, C, rows, cols);
    RUN(convolve, C + HEADER, A + HEADER, B + HEADER, rows, cols);
}

KERNEL(relu_2d_f, (f32 *, C))
{
    RUN(relu, C + HEADER, rows_of(C), cols_of(C));
}

KERNEL(maxpool_f, (f32 *, D), (const f32 *, C), (i64, factor))
{
    REQUIRE(factor > 0);
    i64 cols = cols_of(C), out_rows = rows_of(C) / factor, out_cols = cols / factor;
    RUN(write_dimensions, D, out_rows, out_cols);
    RUN(maxpool, D + HEADER, C + HEADER, factor, out_rows, out_cols, cols);
}

/* ---- many float matrices ------------------------------------------------------------------- */

KERNEL(convolution_f_batched, (f32 *, C), (const f32 *, A), (const f32 *, B), (const u64 *, cfg))
{
    i64 rows = rows_of(A), cols = cols_of(A);
    if ((u64)BLOCK_Z >= cfg[CFG_BATCH])
        return;
    i64 member = HEADER + BLOCK_Z * rows * cols;
    RUN(write_dimensions, C, rows, cols);
    RUN(convolve, C + member, A + member, B + HEADER, rows, cols);
}

KERNEL(relu_2d_f_batched, (f32 *, C), (const u64 *, cfg))
{
    i64 rows = rows_of(C), cols = cols_of(C);
    if ((u64)BLOCK_Z >= cfg[CFG_BATCH])
        return;
    RUN(relu, C + HEADER + BLOCK_Z * rows * cols, rows, cols);
}

KERNEL(maxpool_f_batched, (f32 *, D), (const f32 *, C), (i64, factor), (const u64 *, cfg))
{
    REQUIRE(factor > 0);
    i64 rows = rows_of(C), cols = cols_of(C), out_rows = rows / factor, out_cols = cols / factor;
    if ((u64)BLOCK_Z >= cfg[CFG_BATCH])
        return;
    RUN(write_dimensions, D, out_rows, out_cols);
    RUN(maxpool, D + HEADER + BLOCK_Z * out_rows * out_cols, C + HEADER + BLOCK_Z * rows * cols,
        factor, out_rows, out_cols, cols);
}
