/* Pappus kernels: one source for every device.
 *
 * A kernel body is a sequence of thread regions (FOR_EACH_...) separated by BARRIER().
 *   On a GPU   a region is straight-line code of one thread, and a barrier is a barrier.
 *   On the CPU a region is a loop over the block's threads, and a barrier is nothing:
 *              the loop before it has ended for every thread.
 * So whatever stands outside a region must be the same for all threads of the block (bounds, loop
 * counters), and a value that one thread carries from one region to the next is PER_THREAD.
 *
 * The bounds are part of the region (`i < n`) rather than an `if` inside it: on the CPU they are
 * worked out once per block, and the loop that remains vectorises.
 *
 * CPU means wasm for the built-in device, and any native compiler for comparison.
 *
 * What the two halves (pappus_gpu.h, pappus_cpu.h) define:
 *
 *   KERNEL(name, (type, parameter), ...) { }   a kernel, exported under its name
 *   PART(name, (type, parameter), ...) { }     a piece of a kernel; RUN(name, argument, ...) runs it
 *   INLINE                                     a function of one thread, no regions in it
 *
 *   FOR_EACH_X(x, width)                 the block's threads by global x, those below width
 *   FOR_EACH_XY(x, y, width, height)     the same in two dimensions
 *   FOR_EACH_CELL(x, y, width, height)   the same with coordinates of type extent
 *   FOR_THE_FIRST_THREAD()               one thread of the whole grid
 *   FOR_EACH_STRIP(x, y, bottom, count, width, height)   GPU only: up to `count` cells from y to bottom
 *   FOR_EACH_THREAD(t)                   every thread of the block by its number in the block
 *   FOR_EACH_THREAD_BELOW(t, n)          those with a number below n
 *   FOR_EACH_THREAD_XY(x, y, width, height)   by position in the block, those inside width x height
 *   COVER_X(x, left, right)              the threads divide a range among themselves: who gets what
 *   COVER_XY(x, left, right, y, top, bottom)   is not defined, every cell is visited once
 *   BARRIER()                            between two regions, at a place every thread reaches
 *
 *   SHARED type name[N]                  shared memory of fixed size, undefined at first
 *   SHARED_DYNAMIC(type, name)           the launch's shared memory
 *   PER_THREAD(type, name, N)            one value per thread (at most N threads): MINE(name, t)
 *   load_or_zero(pointer, inside)        GPU only: what the kernel does not write, or 0 where not inside
 *   UNROLL                               before a `for` whose count is a constant
 *   pappus_print_i64("i", i)             in a checked call on the CPU device a line for whoever calls, nothing otherwise;
 *   pappus_print_f64("x", x)             the same for floats
 *   BLOCK_X, BLOCK_Y, BLOCK_Z            the block's place in the grid
 *   BLOCK_WIDTH, _HEIGHT, _DEPTH         its size; BLOCK_THREADS is their product
 *
 * pappus_math.h has f32_exp, f32_sin and others, which are the same to the bit on every device.
 */
#ifndef PAPPUS_H
#define PAPPUS_H

#if defined(__CUDA__) || defined(__HIP__)
#define PAPPUS_GPU 1
#endif

typedef unsigned char u8;
typedef signed int i32;
typedef unsigned int u32;
typedef signed long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

/* A dimension or a coordinate, below 2^31. A GPU has no 64-bit integer units, and a CPU would have to
 * widen every index: so it has 32 bits on the one and 64 on the other. Products of two belong in an i64. */
#ifdef PAPPUS_GPU
typedef i32 extent;
#else
typedef i64 extent;
#endif

/* Types with one size on every device, or the data of two devices would differ. */
_Static_assert(sizeof(u8) == 1 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(f32) == 4, "LP64");

/* ---- PAPPUS_MAP(F, (a, b), (c, d)) is F(a, b) F(c, d); up to ten pairs --------------------- */

#define PAPPUS_COUNT(...) PAPPUS_COUNT_(__VA_ARGS__ __VA_OPT__(,) 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define PAPPUS_COUNT_(a, b, c, d, e, f, g, h, i, j, n, ...) n
#define PAPPUS_JOIN(a, b) PAPPUS_JOIN_(a, b)
#define PAPPUS_JOIN_(a, b) a##b
#define PAPPUS_MAP(F, ...) PAPPUS_JOIN(PAPPUS_MAP_, PAPPUS_COUNT(__VA_ARGS__))(F, __VA_ARGS__)
#define PAPPUS_MAP_0(F, ...)
#define PAPPUS_MAP_1(F, p) F p
#define PAPPUS_MAP_2(F, p, ...) F p PAPPUS_MAP_1(F, __VA_ARGS__)
#define PAPPUS_MAP_3(F, p, ...) F p PAPPUS_MAP_2(F, __VA_ARGS__)
#define PAPPUS_MAP_4(F, p, ...) F p PAPPUS_MAP_3(F, __VA_ARGS__)
#define PAPPUS_MAP_5(F, p, ...) F p PAPPUS_MAP_4(F, __VA_ARGS__)
#define PAPPUS_MAP_6(F, p, ...) F p PAPPUS_MAP_5(F, __VA_ARGS__)
#define PAPPUS_MAP_7(F, p, ...) F p PAPPUS_MAP_6(F, __VA_ARGS__)
#define PAPPUS_MAP_8(F, p, ...) F p PAPPUS_MAP_7(F, __VA_ARGS__)
#define PAPPUS_MAP_9(F, p, ...) F p PAPPUS_MAP_8(F, __VA_ARGS__)
#define PAPPUS_MAP_10(F, p, ...) F p PAPPUS_MAP_9(F, __VA_ARGS__)

/* A comma that comes before the first parameter too would be wrong, so lists are built as
 * ", type name" and their first comma is swallowed by PAPPUS_TAIL. */
#define PAPPUS_PARAMETER(type, name) , type name
#define PAPPUS_NAME(type, name) , name
#define PAPPUS_TAIL(...) PAPPUS_TAIL_(__VA_ARGS__)
#define PAPPUS_TAIL_(first, ...) __VA_ARGS__

#ifdef PAPPUS_GPU
#include "pappus_gpu.h"
#else
#include "pappus_cpu.h"
#endif

#define UNROLL _Pragma("unroll")

/* Writes where a failed REQUIRE stands and what it says behind the word at PAPPUS_FAILED_AT, where a device has that. The words
 * are immediate operands, so that a module without constants stays without. */
#define PAPPUS_FAILED_MARK 0x3a45524955514552u /* "REQUIRE:" */
#define PAPPUS_FAILED_WORDS 24
#define PAPPUS_LINE_(line) #line
#define PAPPUS_LINE(line) PAPPUS_LINE_(line)
#define PAPPUS_LEAVE_TEXT(condition)                                                               \
    static const union {                                                                           \
        char text[sizeof __FILE_NAME__ ":" PAPPUS_LINE(__LINE__) ": requires " condition];         \
        u64 words[PAPPUS_FAILED_WORDS + 1];                                                        \
    } pappus_text = {__FILE_NAME__ ":" PAPPUS_LINE(__LINE__) ": requires " condition};             \
    _Pragma("clang loop unroll(full)") for (int i = 0; i < PAPPUS_FAILED_WORDS; ++i)               \
        if ((u64)i < (sizeof pappus_text.text + 7) / 8)                                            \
            PAPPUS_FAILED_AT[1 + i] = pappus_text.words[i]

/* What a launch must satisfy; a launch that does not ends in a fault, not in a wrong result. On the CPU device
 * and on NVIDIA GPUs the fault's message has the condition, and where it stands. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            PAPPUS_FAIL(#condition);                                                               \
    } while (0)

/* What `pappus invoke --checked` shows: records in a buffer of the call, whose address and length stand behind the launch record
 * at its fixed address. Other calls have none. What finds no room is counted. */
#ifdef __wasm__
#define PAPPUS_PRINTS_AT ((const volatile u32 *)0x2000020)
static __attribute__((noinline, unused)) void pappus_print(const char *what, u8 kind, u64 bits)
{
    u32 *head = (u32 *)PAPPUS_PRINTS_AT[0];
    u32 room = PAPPUS_PRINTS_AT[1], length = 0;
    if (room == 0)
        return;
    while (length < 63 && what[length])
        ++length;
    if (length + 10 > room - 8 - head[0]) {
        ++head[1];
        return;
    }
    u8 *record = (u8 *)(head + 2) + head[0];
    head[0] += length + 10;
    record[0] = kind;
    record[1] = (u8)length;
    __builtin_memcpy(record + 2, &bits, 8);
    for (u32 i = 0; i < length; ++i)
        record[10 + i] = (u8)what[i];
}
INLINE void pappus_print_i64(const char *what, i64 value) { pappus_print(what, 'i', (u64)value); }
INLINE void pappus_print_f64(const char *what, f64 value)
{
    u64 bits;
    __builtin_memcpy(&bits, &value, 8);
    pappus_print(what, 'f', bits);
}
#else
INLINE void pappus_print_i64(const char *what, i64 value) { (void)what, (void)value; }
INLINE void pappus_print_f64(const char *what, f64 value) { (void)what, (void)value; }
#endif

/* A pointer inside a struct passed by value: 8 bytes everywhere, narrowed where it is used. */
typedef u64 address;
#define AT(type, a) ((type *)(__UINTPTR_TYPE__)(a))

#include "pappus_math.h"
#include "pappus_cuda_names.h"

INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 larger(i64 a, i64 b) { return a > b ? a : b; }

/* A dimension that is stored as a float. Whatever the bits are, the result is in 0..2^24 (up to
 * there every integer is a float), so products of two dimensions never overflow. */
INLINE extent dimension(f32 stored)
{
    extent whole = stored < 16777216.0f ? (extent)stored : 16777216;
    whole = stored >= 1.0f ? whole : 0;
#ifdef PAPPUS_GPU
    __builtin_assume(whole >= 0); /* a product of two is then one instruction */
#endif
    return whole;
}

#endif
