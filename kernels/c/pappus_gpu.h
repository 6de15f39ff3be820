/* The GPU half of pappus.h (CUDA and HIP without either SDK). Include pappus.h, not this. */

#define INLINE static inline __attribute__((device))
/* Without the bound a kernel may be given more registers than a block of 1024 threads can have. */
#define KERNEL(name, ...)                                                                          \
    extern "C" __attribute__((global, launch_bounds(1024))) void name(                             \
        PAPPUS_TAIL(PAPPUS_MAP(PAPPUS_PARAMETER, __VA_ARGS__)))

#define PART(name, ...)                                                                            \
    INLINE void name(PAPPUS_TAIL(PAPPUS_MAP(PAPPUS_PARAMETER, __VA_ARGS__)))
#define RUN(name, ...) name(__VA_ARGS__)

#ifdef __CUDA__
#define PAPPUS_SPECIAL(what, axis) ((i64)__nvvm_read_ptx_sreg_##what##_##axis())
#define THREAD_X PAPPUS_SPECIAL(tid, x)
#define THREAD_Y PAPPUS_SPECIAL(tid, y)
#define THREAD_Z PAPPUS_SPECIAL(tid, z)
#define BLOCK_X PAPPUS_SPECIAL(ctaid, x)
#define BLOCK_Y PAPPUS_SPECIAL(ctaid, y)
#define BLOCK_Z PAPPUS_SPECIAL(ctaid, z)
#define BLOCK_WIDTH PAPPUS_SPECIAL(ntid, x)
#define BLOCK_HEIGHT PAPPUS_SPECIAL(ntid, y)
#define BLOCK_DEPTH PAPPUS_SPECIAL(ntid, z)
#define BARRIER() __syncthreads()
#else
#define THREAD_X ((i64)__builtin_amdgcn_workitem_id_x())
#define THREAD_Y ((i64)__builtin_amdgcn_workitem_id_y())
#define THREAD_Z ((i64)__builtin_amdgcn_workitem_id_z())
#define BLOCK_X ((i64)__builtin_amdgcn_workgroup_id_x())
#define BLOCK_Y ((i64)__builtin_amdgcn_workgroup_id_y())
#define BLOCK_Z ((i64)__builtin_amdgcn_workgroup_id_z())
#define BLOCK_WIDTH ((i64)__builtin_amdgcn_workgroup_size_x())
#define BLOCK_HEIGHT ((i64)__builtin_amdgcn_workgroup_size_y())
#define BLOCK_DEPTH ((i64)__builtin_amdgcn_workgroup_size_z())
/* s_barrier alone orders no memory: the fences make shared memory visible across it. */
#define BARRIER()                                                                                  \
    (__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"), __builtin_amdgcn_s_barrier(),          \
     __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"))
#endif

#define BLOCK_THREADS (BLOCK_WIDTH * BLOCK_HEIGHT * BLOCK_DEPTH)
#define PAPPUS_THREAD (THREAD_X + BLOCK_WIDTH * (THREAD_Y + BLOCK_HEIGHT * THREAD_Z))

/* A loop that runs once or not at all is what lets a region look the same on both halves. */
#define PAPPUS_ONCE(variable, value, limit)                                                        \
    for (i64 variable = (value), variable##_left = variable < (limit); variable##_left;            \
         variable##_left = 0)

#define FOR_EACH_THREAD(t) PAPPUS_ONCE(t, PAPPUS_THREAD, BLOCK_THREADS)
#define FOR_EACH_THREAD_BELOW(t, n) PAPPUS_ONCE(t, PAPPUS_THREAD, n)
#define FOR_EACH_THREAD_XY(x, y, width, height)                                                    \
    PAPPUS_ONCE(y, THREAD_Y, height) PAPPUS_ONCE(x, THREAD_X, width)
#define FOR_EACH_X(x, width) PAPPUS_ONCE(x, BLOCK_X * BLOCK_WIDTH + THREAD_X, width)
#define FOR_EACH_XY(x, y, width, height)                                                           \
    PAPPUS_ONCE(y, BLOCK_Y * BLOCK_HEIGHT + THREAD_Y, height)                                      \
    PAPPUS_ONCE(x, BLOCK_X * BLOCK_WIDTH + THREAD_X, width)

/* y in 32 bits, which it always fits. Both bounds are one test: a second one would keep the load of the
 * second bound waiting for the first. */
#define PAPPUS_STRIP(count) ((u32)BLOCK_Y * (u32)BLOCK_HEIGHT + (u32)THREAD_Y * (count))
#define FOR_EACH_CELL(x, y, width, height)                                                         \
    for (extent x = (extent)(BLOCK_X * BLOCK_WIDTH + THREAD_X), y = (extent)PAPPUS_STRIP(1),       \
                x##_left = (BLOCK_X * BLOCK_WIDTH + THREAD_X < (width)) &                          \
                           (PAPPUS_STRIP(1) < (u32)(height));                                      \
         x##_left; x##_left = 0)

/* Cells x, y to x, bottom - 1 for one thread. The first threads of the block get `count` rows each and the
 * others none: what one load brings serves several cells, and the warps that are left are all busy. */
INLINE u32 pappus_bottom(u32 strip, u32 block, u32 grid)
{
    u32 bottom = strip < block ? strip : block;
    return bottom < grid ? bottom : grid;
}
#define FOR_EACH_STRIP(x, y, bottom, count, width, height)                                         \
    for (extent x = (extent)(BLOCK_X * BLOCK_WIDTH + THREAD_X), y = (extent)PAPPUS_STRIP(count),   \
                bottom = (extent)pappus_bottom(PAPPUS_STRIP(count) + (count),                      \
                                               ((u32)BLOCK_Y + 1) * (u32)BLOCK_HEIGHT, height),    \
                x##_left = (BLOCK_X * BLOCK_WIDTH + THREAD_X < (width)) &                          \
                           (PAPPUS_STRIP(count) < (u32)bottom);                                    \
         x##_left; x##_left = 0)

#define FOR_THE_FIRST_THREAD() if (!(BLOCK_X | BLOCK_Y | BLOCK_Z | THREAD_X | THREAD_Y))

#define COVER_X(x, left, right)                                                                    \
    for (i64 x = (left) + PAPPUS_THREAD; x < (right); x += BLOCK_THREADS)
#define COVER_XY(x, left, right, y, top, bottom)                                                   \
    for (i64 y = (top) + THREAD_Y; y < (bottom); y += BLOCK_HEIGHT)                                \
        for (i64 x = (left) + THREAD_X; x < (right); x += BLOCK_WIDTH)

#define SHARED __attribute__((shared))
#define SHARED_DYNAMIC(type, name) extern SHARED type name[]
#define PER_THREAD(type, name, threads) type name[1]
#define MINE(name, t) (name)[(t) * 0] /* names t, so that no compiler calls it unused */

/* What a pointer shows, or 0 where it points outside: predicated, so that many loads run at
 * once. Only for what the kernel does not write: a store does not hold it back. */
#ifdef __CUDA__
INLINE f32 load_or_zero(const f32 *from, bool inside)
{
    f32 value;
    asm("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.f32 %0, 0f00000000;\n\t"
        "@p ld.global.f32 %0, [%1];\n\t}"
        : "=&f"(value)
        : "l"((const __attribute__((address_space(1))) f32 *)from), "r"((int)inside));
    return value;
}
#else
INLINE f32 load_or_zero(const f32 *from, bool inside) { return inside ? *from : 0; }
#endif

/* A failed REQUIRE on an NVIDIA GPU leaves its text in a page of the host's memory that a worker has at this address, for the device,
 * too: a mark, and behind it the text up to a zero. The trap loses the context, not the page. All threads that fail at the same
 * place write the same. Of an AMD GPU, the error tells that the kernel faulted. */
#ifdef __CUDA__
#define PAPPUS_FAILED_AT ((volatile __attribute__((address_space(1))) u64 *)0x300000000000u)
#define PAPPUS_FAIL(condition)                                                                     \
    do {                                                                                           \
        PAPPUS_LEAVE_TEXT(condition);                                                              \
        PAPPUS_FAILED_AT[0] = PAPPUS_FAILED_MARK;                                                  \
        __nvvm_membar_sys();                                                                       \
        __builtin_trap();                                                                          \
    } while (0)
#else
#define PAPPUS_FAIL(condition) __builtin_trap()
#endif
