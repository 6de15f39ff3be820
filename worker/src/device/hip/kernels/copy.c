/* Copies and clears small ranges; worker/src/device/gpu/copy_kernels.rs launches it and says what it must do. */
#include "own.h"

#define THREADS 256

struct segment {
    u64 from, to, bytes, clears;
};

struct segments {
    u64 count;
    struct segment of[16];
};

/* All threads go over one range after the other, in vectors first, then byte by byte over what is left. */
KERNEL(THREADS) copy(struct segments segments)
{
    u64 first = (u64)BLOCK * THREADS + THREAD;
    u64 threads = (u64)BLOCKS * THREADS;

    for (u64 nth = 0; nth < segments.count; nth++) {
        struct segment segment = segments.of[nth];
        u64 vectors = segment.bytes / 16;
        for (u64 at = first; at < vectors; at += threads) {
            u32x4 value = 0;
            if (segment.from) {
                value = ((const u32x4 *)segment.from)[at];
            }
            ((u32x4 *)segment.to)[at] = value;
            if (segment.clears) {
                ((u32x4 *)segment.from)[at] = 0;
            }
        }
        for (u64 at = vectors * 16 + first; at < segment.bytes; at += threads) {
            u8 value = 0;
            if (segment.from) {
                value = ((const u8 *)segment.from)[at];
            }
            ((u8 *)segment.to)[at] = value;
            if (segment.clears) {
                ((u8 *)segment.from)[at] = 0;
            }
        }
    }
}
