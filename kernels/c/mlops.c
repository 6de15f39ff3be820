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
#ifdef PAPPUS_GPU
#define STRIP 1 /* rows of a convolution per thread: 2 halve the blocks that are resident together */
#define SIDE 32 /* of a square of integers */
#define EACH 2  /* of its rows per thread */
#endif

/* The cfg words of the batched kernels, in order. */
enum { CFG_OUTPUT_BYTES, CFG_GRID_A, CFG_GRID_D, CFG_REPETITIONS, CFG_BATCH };

/* ---- integers ------------------------------------------------------------------------------ */

/* The n of an integer matrix, or 0 where the buffer has no room for n x n values. */
INLINE i64 integer_side(const i64 *A, u64 A_bytes)
{
    if (A_bytes < sizeof(i64))
        return 0;
    i64 room = (i64)(A_bytes / sizeof(i64)) - 1;
#ifdef PAPPUS_GPU
    /* Every thread works it out: multiplied where that cannot overflow, because it has no 64-bit division. */
    return A[0] > 0 && A[0] < (i64)1 << 31 && A[0] * A[0] <= room ? A[0] : 0;
#else
    return A[0] > 0 && A[0] <= room / A[0] ? A[0] : 0;
#endif
}

INLINE i64 dot(const i64 *a, const i64 *b, i64 n)
{
    i64 sum = 0;
    for (i64 k = 0; k < n; ++k)
        sum += a[k] * b[k];
    return sum;
}

#ifdef PAPPUS_GPU
/* B = A times its transpose for a block of SIDE x SIDE threads. A warp that read its own rows of A would
 * touch 32 cache lines at once, so the block copies a square of them side by side first. Integers may be
 * added in any order. */
PART(product_of_squares, (i64 *, B), (const i64 *, rows), (i64, n))
{
    SHARED i64 right[SIDE][SIDE + 1], down[SIDE][SIDE + 1]; /* + 1: no two rows in the same banks */
    i64 left = BLOCK_X * SIDE, top = BLOCK_Y * SIDE;
    int x = (int)THREAD_X, y = (int)THREAD_Y;
    if (left >= n || top >= n)
        return;
    i64 sums[EACH] = {};
    for (i64 k = 0; k < n; k += SIDE)
    {
        BARRIER();
        right[y][x] = left + y < n && k + x < n ? rows[(left + y) * n + k + x] : 0;
        down[y][x] = top + y < n && k + x < n ? rows[(top + y) * n + k + x] : 0;
        BARRIER();
        if (y < SIDE / EACH)
            _Pragma("unroll 4") for (int i = 0; i < SIDE; ++i)
                UNROLL for (int s = 0; s < EACH; ++s)
                    sums[s] += down[y * EACH + s][i] * right[x][i];
    }
    UNROLL for (int s = 0; s < EACH; ++s)
        if (y < SIDE / EACH && left + x < n && top + y * EACH + s < n)
            B[(top + y * EACH + s) * n + left + x] = sums[s];
}
#endif

/* B = A times its transpose, one thread per element. */
KERNEL(matmul_para, (const i64 *, A), (u64, A_bytes), (i64 *, B))
{
    i64 n = integer_side(A, A_bytes);
    const i64 *rows = A + 1;
#ifdef PAPPUS_GPU
    if (BLOCK_WIDTH == SIDE && BLOCK_HEIGHT == SIDE)
    {
        if (!(BLOCK_X | BLOCK_Y | THREAD_X | THREAD_Y) && n > 0)
            B[0] = n;
        RUN(product_of_squares, B + 1, rows, n);
        return;
    }
#endif
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

INLINE extent rows_of(const f32 *matrix) { return dimension(matrix[0]); }
INLINE extent cols_of(const f32 *matrix) { return dimension(matrix[1]); }

/* Where a value of a matrix is behind the header. */
INLINE i64 cell(extent row, extent cols, extent col) { return (i64)row * cols + col; }

PART(write_dimensions, (f32 *, matrix), (extent, rows), (extent, cols))
{
    FOR_THE_FIRST_THREAD()
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

/* 5x5 convolution with zero padding: out[r][c] = sum of in[r-k][c-l] * filter[2+k][2+l]. Both ways below
 * add in the order of the filter's values, and what lies outside counts as 0: they agree bit for bit. */
#ifdef PAPPUS_GPU
/* Straight from global memory: the cache keeps what neighbours share, and every thread uses what it reads
 * for STRIP rows. A shared tile costs two barriers, which is longer than the sums take. */
PART(convolve, (f32 *, out), (const f32 *, in), (const f32 *, filter), (extent, rows), (extent, cols))
{
    REQUIRE(BLOCK_WIDTH <= TILE && BLOCK_HEIGHT <= TILE); /* as on the CPU */
    FOR_EACH_STRIP(x, y, bottom, STRIP, cols, rows)
    {
        f32 weights[FILTER][FILTER], sums[STRIP] = {};
        UNROLL for (int k = 0; k < FILTER * FILTER; ++k)
            weights[k / FILTER][k % FILTER] = filter[k];
        const f32 *row = in + cell(y + STRIP - 1 + REACH, cols, x);
        UNROLL for (int from = STRIP - 1 + REACH; from >= -REACH; --from, row -= cols)
        {
            bool inside = y + from >= 0 && y + from < rows;
            f32 values[FILTER];
            UNROLL for (int l = -REACH; l <= REACH; ++l)
                values[REACH + l] = load_or_zero(row - l, inside & (x >= l) & (x - l < cols));
            UNROLL for (int s = 0; s < STRIP; ++s)
                if (from - REACH <= s && s <= from + REACH)
                    UNROLL for (int l = 0; l < FILTER; ++l)
                        sums[s] += values[l] * weights[REACH + s - from][l];
        }
        f32 *to = out + cell(y, cols, x);
        UNROLL for (int s = 0; s < STRIP; ++s, to += cols)
            if (y + s < bottom)
                *to = sums[s];
    }
}
#else
/* From a padded tile: the sum has no test per element, and the loops over a row vectorise. */
PART(convolve, (f32 *, out), (const f32 *, in), (const f32 *, filter), (extent, rows), (extent, cols))
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
#endif

PART(relu, (f32 *, values), (extent, rows), (extent, cols))
{
    FOR_EACH_CELL(x, y, cols, rows)
    {
        f32 *at = values + cell(y, cols, x);
        *at = *at > 0 ? *at : 0;
    }
}

/* The largest of every factor x factor square; what is left over at the edges is dropped. */
PART(maxpool_by, (f32 *, out), (const f32 *, in), (extent, factor), (extent, out_rows),
     (extent, out_cols), (extent, in_cols))
{
    FOR_EACH_CELL(x, y, out_cols, out_rows)
    {
        const f32 *corner = in + cell(y * factor, in_cols, 0) + x * factor;
        f32 largest = corner[0];
        for (extent k = 0; k < factor; ++k)
            for (extent l = 0; l < factor; ++l)
                largest = corner[cell(k, in_cols, l)] > largest ? corner[cell(k, in_cols, l)] : largest;
        out[cell(y, out_cols, x)] = largest;
    }
}

PART(maxpool, (f32 *, out), (const f32 *, in), (extent, factor), (extent, out_rows),
     (extent, out_cols), (extent, in_cols))
{
    /* The usual factor as a constant: its loops unroll and the region vectorises. */
    if (factor == 2)
        RUN(maxpool_by, out, in, 2, out_rows, out_cols, in_cols);
    else
        RUN(maxpool_by, out, in, factor, out_rows, out_cols, in_cols);
}

/* How many whole parts of `factor` there are: factor is above 0, and 2 mostly, which needs no division. */
INLINE extent split(extent dimension, i64 factor)
{
#ifdef PAPPUS_GPU
    if (factor == 2)
        return (extent)((u32)dimension / 2);
    return factor > dimension ? 0 : (extent)((u32)dimension / (u32)factor);
#else
    return dimension / factor;
#endif
}

KERNEL(convolution_f, (f32 *, C), (const f32 *, A), (const f32 *, B))
{
    extent rows = rows_of(A), cols = cols_of(A);
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
    extent cols = cols_of(C), out_rows = split(rows_of(C), factor), out_cols = split(cols, factor);
    RUN(write_dimensions, D, out_rows, out_cols);
    RUN(maxpool, D + HEADER, C + HEADER, (extent)factor, out_rows, out_cols, cols);
}

/* ---- many float matrices ------------------------------------------------------------------- */

KERNEL(convolution_f_batched, (f32 *, C), (const f32 *, A), (const f32 *, B), (const u64 *, cfg))
{
    extent rows = rows_of(A), cols = cols_of(A);
    if ((u64)BLOCK_Z >= cfg[CFG_BATCH])
        return;
    i64 member = HEADER + BLOCK_Z * rows * cols;
    RUN(write_dimensions, C, rows, cols);
    RUN(convolve, C + member, A + member, B + HEADER, rows, cols);
}

KERNEL(relu_2d_f_batched, (f32 *, C), (const u64 *, cfg))
{
    extent rows = rows_of(C), cols = cols_of(C);
    if ((u64)BLOCK_Z >= cfg[CFG_BATCH])
        return;
    RUN(relu, C + HEADER + BLOCK_Z * rows * cols, rows, cols);
}

KERNEL(maxpool_f_batched, (f32 *, D), (const f32 *, C), (i64, factor), (const u64 *, cfg))
{
    REQUIRE(factor > 0);
    extent rows = rows_of(C), cols = cols_of(C);
    extent out_rows = split(rows, factor), out_cols = split(cols, factor);
    if ((u64)BLOCK_Z >= cfg[CFG_BATCH])
        return;
    RUN(write_dimensions, D, out_rows, out_cols);
    RUN(maxpool, D + HEADER + BLOCK_Z * out_rows * out_cols, C + HEADER + BLOCK_Z * rows * cols,
        (extent)factor, out_rows, out_cols, cols);
}
