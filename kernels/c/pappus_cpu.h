/* The CPU half of pappus.h: how the built-in device calls a kernel. Include pappus.h, not this. */

#define INLINE static inline __attribute__((always_inline, unused))

/* The launch record of the ABI. `shared` is the address of the block's dynamic shared memory:
 * 4 bytes in wasm, where the record is 32 bytes long. */
typedef struct {
    u32 grid[3];
    u32 block[3];
    u32 shared_bytes;
    __UINTPTR_TYPE__ shared;
} pappus_launch;

#ifdef __wasm__
_Static_assert(sizeof(pappus_launch) == 32, "the launch record is part of the ABI");
#define PAPPUS_EXPORT(name) __attribute__((export_name(#name)))
#else
#define PAPPUS_EXPORT(name)
#endif

/* Where a kernel is: its launch and the block it is running. */
typedef struct {
    i64 index[3];
    i64 size[3];
    __UINTPTR_TYPE__ shared;
} pappus_block;

INLINE pappus_block pappus_first_block(const pappus_launch *launch, i64 first)
{
    i64 width = launch->grid[0], height = launch->grid[1];
    pappus_block block = {
        {first % width, first / width % height, first / width / height},
        {launch->block[0], launch->block[1], launch->block[2]},
        launch->shared,
    };
    return block;
}

/* The next block of the grid: x fastest, then y, then z. */
INLINE void pappus_next_block(const pappus_launch *launch, pappus_block *block)
{
    if (++block->index[0] < launch->grid[0])
        return;
    block->index[0] = 0;
    if (++block->index[1] < launch->grid[1])
        return;
    block->index[1] = 0;
    ++block->index[2];
}

/* Every parameter starts an 8-byte slot; a struct takes as many as it needs. */
#define PAPPUS_UNPACK(type, name)                                                                  \
    type name = *(type const *)pappus_slot;                                                        \
    pappus_slot += (sizeof(type) + 7) / 8;

/* What a kernel takes, for `pappus kernel build`, which finds it in the object by its first bytes and makes a section of
 * the module of it. Nothing refers to it, so the linker leaves it out. Behind the last parameter stands an empty one, and
 * behind each parameter's name a comma. */
#ifdef __wasm__
#define PAPPUS_TAKES(type, name)                                                                   \
    {sizeof(type), _Alignof(type), __builtin_classify_type(*(type const *)0)},
#define PAPPUS_TITLE(type, name) #name ","
#define PAPPUS_SIGNATURE(name, ...)                                                                \
    __attribute__((visibility("hidden"))) const struct {                                           \
        char mark[16];                                                                             \
        u32 parameters, kernel_bytes, names_bytes;                                                 \
        struct {                                                                                   \
            u32 bytes, align, type_class;                                                          \
        } takes[PAPPUS_COUNT(__VA_ARGS__) + 1];                                                    \
        char kernel[sizeof #name];                                                                 \
        char names[sizeof "" PAPPUS_MAP(PAPPUS_TITLE, __VA_ARGS__)];                               \
    } name##_signature = {                                                                         \
        "pappus-kernel-2",                                                                         \
        PAPPUS_COUNT(__VA_ARGS__),                                                                 \
        sizeof #name - 1,                                                                          \
        sizeof "" PAPPUS_MAP(PAPPUS_TITLE, __VA_ARGS__) - 1,                                       \
        {PAPPUS_MAP(PAPPUS_TAKES, __VA_ARGS__) {0, 0, 0}},                                         \
        #name,                                                                                     \
        "" PAPPUS_MAP(PAPPUS_TITLE, __VA_ARGS__),                                                  \
    };
#else
#define PAPPUS_SIGNATURE(name, ...)
#endif

#define KERNEL(name, ...)                                                                          \
    PAPPUS_SIGNATURE(name, __VA_ARGS__)                                                            \
    PART(name##_block, __VA_ARGS__);                                                               \
    PAPPUS_EXPORT(name)                                                                            \
    void name(const u64 *pappus_slot, const pappus_launch *launch, i64 first, i64 count)           \
    {                                                                                              \
        PAPPUS_MAP(PAPPUS_UNPACK, __VA_ARGS__)                                                     \
        (void)pappus_slot;                                                                         \
        pappus_block at = pappus_first_block(launch, first);                                       \
        for (; count > 0; --count, pappus_next_block(launch, &at))                                 \
            name##_block(&at PAPPUS_MAP(PAPPUS_NAME, __VA_ARGS__));                                \
    }                                                                                              \
    PART(name##_block, __VA_ARGS__)

#define PART(name, ...)                                                                            \
    INLINE void name(__attribute__((unused)) const pappus_block *pappus_at                         \
                         PAPPUS_MAP(PAPPUS_PARAMETER, __VA_ARGS__))
#define RUN(name, ...) name(pappus_at __VA_OPT__(,) __VA_ARGS__)

#define BLOCK_X (pappus_at->index[0])
#define BLOCK_Y (pappus_at->index[1])
#define BLOCK_Z (pappus_at->index[2])
#define BLOCK_WIDTH (pappus_at->size[0])
#define BLOCK_HEIGHT (pappus_at->size[1])
#define BLOCK_DEPTH (pappus_at->size[2])
#define BLOCK_THREADS (BLOCK_WIDTH * BLOCK_HEIGHT * BLOCK_DEPTH)
#define BARRIER() ((void)0)

#define PAPPUS_SPAN(variable, start, end)                                                          \
    for (i64 variable = (start), variable##_end = (end); variable < variable##_end; ++variable)

/* Threads along an axis that a region does not name would repeat the same work: they are left out. */
#define FOR_EACH_THREAD(t) PAPPUS_SPAN(t, 0, BLOCK_THREADS)
#define FOR_EACH_THREAD_BELOW(t, n) PAPPUS_SPAN(t, 0, smaller(BLOCK_THREADS, n))
#define FOR_EACH_THREAD_XY(x, y, width, height)                                                    \
    PAPPUS_SPAN(y, 0, smaller(BLOCK_HEIGHT, height))                                               \
    PAPPUS_SPAN(x, 0, smaller(BLOCK_WIDTH, width))
#define FOR_EACH_X(x, width)                                                                       \
    PAPPUS_SPAN(x, BLOCK_X * BLOCK_WIDTH, smaller((BLOCK_X + 1) * BLOCK_WIDTH, width))
#define FOR_EACH_XY(x, y, width, height)                                                           \
    PAPPUS_SPAN(y, BLOCK_Y * BLOCK_HEIGHT, smaller((BLOCK_Y + 1) * BLOCK_HEIGHT, height))          \
    PAPPUS_SPAN(x, BLOCK_X * BLOCK_WIDTH, smaller((BLOCK_X + 1) * BLOCK_WIDTH, width))
#define FOR_EACH_CELL(x, y, width, height) FOR_EACH_XY(x, y, width, height)
#define FOR_THE_FIRST_THREAD() FOR_EACH_XY(x, y, BLOCK_Z == 0, BLOCK_Z == 0)

#define COVER_X(x, left, right) PAPPUS_SPAN(x, left, right)
#define COVER_XY(x, left, right, y, top, bottom)                                                   \
    PAPPUS_SPAN(y, top, bottom) PAPPUS_SPAN(x, left, right)

/* Shared memory lives on the stack of the one thread that runs the block. */
#define SHARED
#define SHARED_DYNAMIC(type, name) type *name = (type *)pappus_at->shared
#define PER_THREAD(type, name, threads) type name[threads]
#define MINE(name, t) (name)[t]

/* A failed REQUIRE in wasm leaves its text at the far end of the stack, which nobody uses any more: a mark at address 8,
 * the text from 16 on, up to a zero. */
#ifdef __wasm__
#define PAPPUS_FAILED_AT ((volatile u64 *)8)
#define PAPPUS_FAIL(condition)                                                                     \
    do {                                                                                           \
        PAPPUS_FAILED_AT[0] = PAPPUS_FAILED_MARK;                                                  \
        PAPPUS_LEAVE_TEXT(condition);                                                              \
        PAPPUS_FAILED_AT[1 + PAPPUS_FAILED_WORDS] = 0;                                             \
        __builtin_trap();                                                                          \
    } while (0)
#else
#define PAPPUS_FAIL(condition) __builtin_trap()
#endif
