/* The probes of the conformance, leak and fault suites for CUDA: the kernels of ../probes.wat under the same
 * names where they mean something on a GPU, and what only a GPU has. `scripts/probes build` makes probes.ptx.
 *
 * What is read before it was written is volatile or hand-written PTX, so that no compiler removes the read.
 */
typedef unsigned int u32;
typedef unsigned long long u64;

#define GLOBAL __attribute__((device))
#define CONSTANT __attribute__((constant))
#define SHARED __attribute__((shared))
#define BOUNDED(threads) extern "C" __attribute__((global, launch_bounds(threads))) void
#define KERNEL BOUNDED(1024)

#define THREAD __nvvm_read_ptx_sreg_tid_x()
#define THREADS __nvvm_read_ptx_sreg_ntid_x()
#define ADD(to, n) asm volatile("red.add.u64 [%0], %1;" ::"l"(to), "l"((u64)(n)) : "memory")

GLOBAL static inline u32 processor()
{
    u32 number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

/* ---- plain work ------------------------------------------------------------------------------- */

/* From the end that leaves overlapping bytes right. */
KERNEL copy(const volatile unsigned char *from, volatile unsigned char *to, u64 bytes)
{
    if ((u64)to <= (u64)from)
        for (u64 i = 0; i < bytes; i++)
            to[i] = from[i];
    else
        for (u64 i = bytes; i > 0; i--)
            to[i - 1] = from[i - 1];
}

KERNEL fill(volatile unsigned char *to, u64 byte, u64 bytes)
{
    for (u64 i = 0; i < bytes; i++)
        to[i] = (unsigned char)byte;
}

KERNEL count_blocks(u64 *counter)
{
    if (THREAD == 0)
        ADD(counter, 1);
}

/* Something to do for every block. */
KERNEL work()
{
    asm volatile("nanosleep.u32 100;");
}

/* Takes `ns` nanoseconds of a processor. */
KERNEL occupy(u64 ns)
{
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}

/* seen[number of a processor] counts the blocks that ran on it. */
KERNEL smid_map(u64 *seen)
{
    if (THREAD == 0)
        ADD(seen + processor(), 1);
}

/* One parameter of every class that machine code can tell. */
KERNEL parameters(u64 *seen, u32 number, float real, double precise)
{
    *seen = number + (u64)real + (u64)precise;
}

/* ---- a module's memory: the first 8 bytes as found, then overwritten ---------------------------- */

GLOBAL volatile u64 data_word = 0x656e697473697270; /* "pristine" */
GLOBAL volatile u64 bss_words[512];
CONSTANT u64 constant_words[512] = {0x656e697473697270};

KERNEL module_global(volatile u64 *seen)
{
    *seen = data_word;
    data_word = ~0ull;
}

KERNEL module_bss(volatile u64 *seen)
{
    *seen = bss_words[0] | bss_words[511];
    bss_words[0] = ~0ull;
    bss_words[511] = ~0ull;
}

KERNEL constant_read(volatile u64 *seen, u64 at)
{
    *seen = constant_words[at & 511];
}

/* Constants lie in memory that a generic address can name: the store either faults or must be undone. */
KERNEL constant_write(u64 value)
{
    u64 generic;
    asm("cvta.const.u64 %0, constant_words;" : "=l"(generic));
    for (u32 i = 0; i < 512; i++)
        ((volatile u64 *)generic)[i] = value;
}

/* ---- local memory ------------------------------------------------------------------------------- */

KERNEL local_memory(volatile u64 *seen, u64 step)
{
    volatile u64 frame[64];
    *seen = frame[(7 * step) & 63];
    for (u32 i = 0; i < 64; i++)
        frame[(i * step) & 63] = ~0ull;
}

#define FRAME_WORDS 1024

/* Leaves `pattern` in 4 KiB of every thread. `step` is odd; unknown, so that the frame is really there. */
KERNEL local_fill(u32 pattern, u32 step)
{
    volatile u32 frame[FRAME_WORDS];
    for (u32 i = 0; i < FRAME_WORDS; i++)
        frame[(i * step) % FRAME_WORDS] = pattern;
    if (frame[step % FRAME_WORDS] != pattern)
        frame[0] = 0;
}

KERNEL local_scan(u32 pattern, u32 step, u64 *hits)
{
    volatile u32 frame[FRAME_WORDS];
    u64 found = 0;
    for (u32 i = 0; i < FRAME_WORDS; i++)
        found += frame[(i * step) % FRAME_WORDS] == pattern;
    if (step == 0)
        frame[step] = pattern;
    ADD(hits, found);
}

/* ---- shared memory -------------------------------------------------------------------------------- */

extern SHARED __attribute__((aligned(16))) volatile u32 shared_words[];

KERNEL shared_memory(volatile u64 *seen)
{
    volatile u64 *words = (volatile u64 *)shared_words;
    *seen = words[0];
    words[0] = ~0ull;
}

/* `marks` gets a 1 for every processor that was reached. */
KERNEL shared_fill(u32 pattern, u32 words, u32 *marks)
{
    for (u32 i = THREAD; i < words; i += THREADS)
        shared_words[i] = pattern;
    if (THREAD == 0)
        marks[processor()] = 1;
}

KERNEL shared_scan(u32 pattern, u32 words, u64 *hits, u32 *marks)
{
    u64 found = 0;
    for (u32 i = THREAD; i < words; i += THREADS)
        found += shared_words[i] == pattern;
    ADD(hits, found);
    if (THREAD == 0)
        marks[processor()] = 1;
}

/* ---- registers -------------------------------------------------------------------------------------- */

#define TEN(F, d) F(d##0) F(d##1) F(d##2) F(d##3) F(d##4) F(d##5) F(d##6) F(d##7) F(d##8) F(d##9)
#define HUNDRED(F, h) TEN(F, h##0) TEN(F, h##1) TEN(F, h##2) TEN(F, h##3) TEN(F, h##4) \
    TEN(F, h##5) TEN(F, h##6) TEN(F, h##7) TEN(F, h##8) TEN(F, h##9)
#define REGISTERS(F) HUNDRED(F, 1) HUNDRED(F, 2)

/* 200 registers of every thread hold words of `from` at the same time; a block of 256 threads fills a
 * processor's file. */
BOUNDED(256) register_fill(const u32 *from, u32 *to)
{
#define STORE(n) "st.volatile.global.u32 [%1 + 4 * (" #n " - 100)], v" #n ";"
#define DECLARE(n) ".reg .u32 v" #n ";"
#define LOAD(n) "ld.volatile.global.u32 v" #n ", [%0 + 4 * (" #n " - 100)];"
    asm volatile("{" REGISTERS(DECLARE) REGISTERS(LOAD) "bar.sync 0;" REGISTERS(STORE) "}" ::"l"(from), "l"(to)
                 : "memory");
}

/* Counts registers that hold `pattern` although nothing was written to them: loads that do not happen, `load` is
 * 0, but could for all the compiler knows, keep 200 registers apart. */
BOUNDED(256) register_scan(u32 pattern, u64 *hits, u32 load)
{
    u32 found = 0;
#define MAYBE(n) "@really ld.volatile.global.u32 v" #n ", [%2 + 4 * (" #n " - 100)];"
#define COUNT(n) "setp.eq.u32 same, v" #n ", %1; selp.u32 one, 1, 0, same; add.u32 %0, %0, one;"
    asm volatile("{ .reg .pred same, really; .reg .u32 one; setp.ne.u32 really, %3, 0;" REGISTERS(DECLARE)
                     REGISTERS(MAYBE) "bar.sync 0;" REGISTERS(COUNT) "}"
                 : "+r"(found)
                 : "r"(pattern), "l"(hits), "r"(load)
                 : "memory");
    ADD(hits, found);
}

/* ---- a launch's parameters ---------------------------------------------------------------------------- */

/* 8 bytes at an offset from the first parameter. */
KERNEL arguments(volatile u64 *seen, u64 at)
{
    u64 found;
    asm volatile("{ .reg .u64 place; mov.b64 place, arguments_param_0; add.u64 place, place, %1;"
                 "ld.param.u64 %0, [place]; }"
                 : "=l"(found)
                 : "l"(at));
    *seen = found;
}

/* ---- faults ---------------------------------------------------------------------------------------------- */

KERNEL trap()
{
    asm volatile("trap;");
}

KERNEL illegal(volatile u64 *address)
{
    *address = 1;
}

/* With addresses as numbers, which blueprints may pass that name no buffer. */
KERNEL read_at(u64 from, volatile unsigned char *to, u64 bytes)
{
    for (u64 i = 0; i < bytes; i++)
        to[i] = ((const volatile unsigned char *)from)[i];
}

KERNEL write_at(u64 to, u64 byte, u64 bytes)
{
    for (u64 i = 0; i < bytes; i++)
        ((volatile unsigned char *)to)[i] = (unsigned char)byte;
}

/* `place` is aligned, the store is not. */
KERNEL misaligned(u64 place)
{
    *(volatile u64 *)(place + 1) = 1;
}

extern "C" GLOBAL void __assertfail(const char *, const char *, u32, const char *, u64);

KERNEL assertion(u64 holds)
{
    if (!holds)
        __assertfail("holds", "probes.cu", 1, "assertion", 1);
}

KERNEL wild_jump(u64 place)
{
    ((void (*)())place)();
}

/* Frames that need each other, far more than any stack has room for. */
GLOBAL __attribute__((noinline)) u64 deeper(u64 depth, volatile u64 *above)
{
    volatile u64 frame[32];
    frame[depth & 31] = above[depth & 31] + depth;
    return depth == 0 ? frame[0] : deeper(depth - 1, frame) + frame[depth & 31];
}

KERNEL recurse(u64 depth, volatile u64 *seen)
{
    *seen = deeper(depth, seen);
}

KERNEL endless(const volatile u64 *flag)
{
    while (*flag == 0)
        ;
}

/* Writes for ever, round and round. */
KERNEL endless_writes(volatile u64 *words, u64 count, u64 value)
{
    for (u64 at = 0;; at = at + 1 < count ? at + 1 : 0)
        words[at] = value;
}

/* Every block waits for all others; more of them than fit on the processors never meet. */
KERNEL grid_barrier(volatile u64 *arrived, u64 blocks)
{
    u64 before;
    asm volatile("atom.global.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(arrived) : "memory");
    while (*arrived < blocks)
        ;
}

/* A function whose address every kernel may know; its result shows whether its code was changed. */
GLOBAL __attribute__((noinline)) u64 plus_seven(u64 x)
{
    volatile u64 sum = x + 7;
    return sum;
}

KERNEL code_address(volatile u64 *address)
{
    *address = (u64)(void *)&plus_seven;
}

KERNEL code_works(volatile u64 *sum)
{
    *sum = ((u64(*)(u64))(void *)&plus_seven)(35);
}

/* Waits for a second warp that does not exist. */
KERNEL barrier_never()
{
    asm volatile("bar.sync 1, 64;" ::: "memory");
}

/* ---- what the driver would serve kernels with ------------------------------------------------------------- */

extern "C" GLOBAL int vprintf(const char *, const void *);

KERNEL printf_flood(u64 lines)
{
    for (u64 i = 0; i < lines; i++)
        vprintf("a line that a kernel prints\n", 0);
}
