/* Clears what a compute unit keeps when a kernel is over: LDS, vector and scalar registers, and the stacks that the
 * driver gives to threads. worker/src/device/gpu/scrub.rs launches these kernels and counts where they ran; the shapes
 * are in kernels.rs. After AMD's cleaner shader (linux, gfx_v9_4_3_cleaner_shader.asm), as far as a kernel reaches.
 *
 * A block of 1024 threads is 16 waves, 4 on each of the 4 SIMDs of a compute unit.
 *
 *   chip      64 KiB of LDS: one block on a compute unit. 128 vector registers each: 4 waves have all 512 of a SIMD,
 *             accumulation registers (AccVGPRs), which are the same file on these processors, among them.
 *   scalars   32 KiB of LDS: two blocks on a compute unit, 8 waves on a SIMD. 96 scalar registers each, 88 and vcc cleared.
 *   stack_N   two blocks on a compute unit, and N bytes of each thread's stack.
 *
 * On another processor, registers and LDS are other: these are for CDNA 2 and 3 (gfx90a, gfx942).
 */
#include "own.h"

#define THREADS 1024
/* Counters of 4 bytes: arrivals, then blocks by compute unit; the last is always zero. */
#define COUNTERS 1024
/* Waiting for other blocks ends after so many looks: a grid that is not resident all at once must not hang. */
#define LOOKS 100000

extern SHARED u32x4 space[];
/* Pointers that say which memory they are into: LDS, a thread's stack. */
#define LDS volatile __attribute__((address_space(3))) u32x4
#define PRIVATE volatile __attribute__((address_space(5))) u32x4

/* Zeroes the LDS that the block has. */
INLINE void clear_lds(u32 bytes)
{
    LDS *vectors = (LDS *)space;
    for (u32 at = THREAD; at < bytes / 16; at += THREADS) {
        vectors[at] = 0;
    }
}

/* HWREG(number, first bit, bits) */
#define HWREG(number, first, bits) ((number) | (first) << 6 | ((bits)-1) << 11)
#define HW_ID 4
#define XCC_ID 20

/* A number for this compute unit, below COUNTERS - 2. Two that had the same would be counted as one: then the scrub fails,
 * and never passes by mistake. */
INLINE u32 compute_unit(void)
{
    u32 unit = __builtin_amdgcn_s_getreg(HWREG(HW_ID, 8, 4));
#if defined(__gfx90a__)
    u32 engine = __builtin_amdgcn_s_getreg(HWREG(HW_ID, 12, 4)); /* array and engine */
    return unit | engine << 4;
#elif defined(__gfx942__)
    u32 engine = __builtin_amdgcn_s_getreg(HWREG(HW_ID, 13, 2));
    u32 die = __builtin_amdgcn_s_getreg(HWREG(XCC_ID, 0, 3));
    return unit | engine << 4 | die << 6;
#else
#error "how are compute units numbered here?"
#endif
}

/* Waits until all blocks are here, so that none takes another's place, and says where this one is. */
INLINE void meet(u32 *counters, u32 blocks)
{
    barrier();
    if (THREAD == 0) {
        __hip_atomic_fetch_add(counters, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#pragma clang loop unroll(disable)
        for (u32 looks = 0; looks < LOOKS; looks++) {
            if (__hip_atomic_load(counters, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) >= blocks) {
                break;
            }
            __builtin_amdgcn_s_sleep(1);
        }
        __hip_atomic_fetch_add(counters + 1 + compute_unit(), 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
    barrier();
}

/* Zeroes the registers of a wave, the last thing that it does. The last of them is named as overwritten, so that the
 * kernel has it and all before it. */
#define CLEAR_SCALARS(count)                                                                       \
    ".set nth, 0\n.rept " #count "\ns_mov_b32 s[nth], 0\n.set nth, nth + 1\n.endr\n"                \
    "s_mov_b64 vcc, 0\ns_mov_b32 m0, 0\n"
#define CLEAR_VECTORS(count) ".set nth, 0\n.rept " #count "\nv_mov_b32 v[nth], 0\n.set nth, nth + 1\n.endr\n"
#define END "s_endpgm"

KERNEL(THREADS, amdgpu_num_vgpr(128)) chip(u32 *counters, u32 blocks, u32 shared_bytes)
{
    clear_lds(shared_bytes);
    meet(counters, blocks);
    asm volatile("s_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b64 exec, -1\n" CLEAR_VECTORS(128)
                     CLEAR_SCALARS(96) END
                 :
                 :
                 : "v127", "s95", "vcc", "memory");
    __builtin_unreachable();
}

KERNEL(THREADS, amdgpu_num_sgpr(96)) scalars(u32 *counters, u32 blocks, u32 shared_bytes)
{
    clear_lds(shared_bytes);
    meet(counters, blocks);
    asm volatile(CLEAR_SCALARS(88) END : : : "s87", "vcc", "memory");
    __builtin_unreachable();
}

/* Behind a frame the compiler leaves so many bytes to a thread, which belong to its stack like the frame. */
#define ROOM 16

/* The stack is written from its first byte to its last, whatever the compiler thinks of that. */
#define STACK(bytes)                                                                               \
    KERNEL(THREADS) stack_##bytes(u32 *counters, u32 blocks, u32 shared_bytes)                      \
    {                                                                                              \
        u32x4 frame[bytes / 16];                                                                   \
        u32 end = (u32)(PRIVATE *)frame + bytes + ROOM;                                            \
        clear_lds(shared_bytes);                                                                   \
        _Pragma("clang loop unroll(disable)") for (u32 at = 0; at < end; at += 16)                  \
        {                                                                                          \
            *(PRIVATE *)at = 0;                                                                    \
        }                                                                                          \
        meet(counters, blocks);                                                                    \
    }

STACK(1024)
STACK(2048)
STACK(4096)
STACK(8192)
STACK(16384)
STACK(32768)
STACK(65536)
