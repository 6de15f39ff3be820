/* Module vision: 8-bit pictures, row by row, channels interleaved. Pixels beyond an edge are
 * taken from the edge. Width and height are in pixels; one thread per pixel unless said
 * otherwise. */
#include "pappus.h"

INLINE i64 clamp(i64 value, i64 last) { return value < 0 ? 0 : smaller(value, last); }

/* Luma of ITU-R BT.601, in 1/256: 77 + 150 + 29 = 256. */
KERNEL(rgb_to_gray, (const u8 *, rgb), (u8 *, gray), (i64, width), (i64, height))
{
    FOR_EACH_XY(x, y, width, height)
    {
        const u8 *pixel = rgb + (y * width + x) * 3;
        gray[y * width + x] = (u8)((pixel[0] * 77 + pixel[1] * 150 + pixel[2] * 29 + 128) >> 8);
    }
}

/* Binomial weights 1 4 6 4 1, rounded. */
INLINE u8 gaussian(i32 a, i32 b, i32 c, i32 d, i32 e)
{
    return (u8)((a + 4 * b + 6 * c + 4 * d + e + 8) >> 4);
}

/* The horizontal half of a 5x5 Gaussian. */
KERNEL(gaussian_rows, (const u8 *, in), (u8 *, out), (i64, width), (i64, height), (i64, channels))
{
    FOR_EACH_XY(x, y, width, height)
    {
        const u8 *row = in + y * width * channels;
        const u8 *far_left = row + clamp(x - 2, width - 1) * channels;
        const u8 *left = row + clamp(x - 1, width - 1) * channels;
        const u8 *here = row + x * channels;
        const u8 *right = row + clamp(x + 1, width - 1) * channels;
        const u8 *far_right = row + clamp(x + 2, width - 1) * channels;
        for (i64 c = 0; c < channels; ++c)
            out[(y * width + x) * channels + c] =
                gaussian(far_left[c], left[c], here[c], right[c], far_right[c]);
    }
}

/* The vertical half. Channels make no difference to it: one thread per sample, `samples` in a row. */
KERNEL(gaussian_columns, (const u8 *, in), (u8 *, out), (i64, samples), (i64, height))
{
    FOR_EACH_XY(x, y, samples, height)
    {
        out[y * samples + x] = gaussian(in[clamp(y - 2, height - 1) * samples + x],
                                        in[clamp(y - 1, height - 1) * samples + x],
                                        in[y * samples + x],
                                        in[clamp(y + 1, height - 1) * samples + x],
                                        in[clamp(y + 2, height - 1) * samples + x]);
    }
}

/* Length of the brightness gradient, at most 255. */
KERNEL(sobel, (const u8 *, gray), (u8 *, edges), (i64, width), (i64, height))
{
    FOR_EACH_XY(x, y, width, height)
    {
        i64 left = clamp(x - 1, width - 1), right = clamp(x + 1, width - 1);
        const u8 *above = gray + clamp(y - 1, height - 1) * width;
        const u8 *here = gray + y * width;
        const u8 *below = gray + clamp(y + 1, height - 1) * width;
        i32 across = above[right] + 2 * here[right] + below[right] - above[left] - 2 * here[left]
                     - below[left];
        i32 down = below[left] + 2 * below[x] + below[right] - above[left] - 2 * above[x]
                   - above[right];
        f32 length = __builtin_sqrtf((f32)(across * across + down * down));
        edges[y * width + x] = length < 255.0f ? (u8)length : 255;
    }
}

/* Colours darkened where there are edges: a drawing with ink outlines. */
KERNEL(ink_outlines, (const u8 *, rgb), (const u8 *, edges), (u8 *, out), (i64, width), (i64, height))
{
    FOR_EACH_XY(x, y, width, height)
    {
        i64 pixel = y * width + x;
        i32 light = 255 - edges[pixel];
        for (i64 channel = 0; channel < 3; ++channel)
            out[pixel * 3 + channel] = (u8)(rgb[pixel * 3 + channel] * light / 255);
    }
}
