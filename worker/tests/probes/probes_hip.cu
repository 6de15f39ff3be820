/* The probes of the conformance, leak and fault suites for HIP: kernels of probes.cu under the same names, where they mean
 * something on an AMD GPU. `scripts/probes build` makes probes.gfx90a.hsaco and probes.gfx942.hsaco.
 *
 * Not here: kernels that need a stack without an end or calls through pointers (`recurse`, `wild_jump`), the host
 * (`assertion`, `printf_flood`) or clusters, which are refused at registration; unaligned accesses, which this hardware
 * permits; barriers of some of the threads, which it does not have.
 */
typedef unsigned int u32;
typedef unsigned long long u64;

#define GLOBAL __attribute__((device))
#define CONSTANT __attribute__((constant))
#define SHARED __attribute__((shared))
#define BOUNDED(threads, ...) extern "C" __attribute__((global, launch_bounds(threads), ##__VA_ARGS__)) void
#define KERNEL BOUNDED(1024)

#define THREAD __builtin_amdgcn_workitem_id_x()
#define THREADS __builtin_amdgcn_workgroup_size_x()
#define ADD(to, n) __hip_atomic_fetch_add(to, (u64)(n), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)

/* A number of the compute unit, below 512, as in worker/src/device/hip/kernels/scrub.c. */
#define HWREG(number, first, bits) ((number) | (first) << 6 | ((bits)-1) << 11)
GLOBAL static inline u32 processor()
{
    u32 unit = __builtin_amdgcn_s_getreg(HWREG(4, 8, 4));
#if defined(__gfx90a__)
    return unit | __builtin_amdgcn_s_getreg(HWREG(4, 12, 4)) << 4;
#elif defined(__gfx942__)
    return unit | __builtin_amdgcn_s_getreg(HWREG(4, 13, 2)) << 4 | __builtin_amdgcn_s_getreg(HWREG(20, 0, 3)) << 6;
#else
#error "how are compute units numbered here?"
#endif
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
    __builtin_amdgcn_s_sleep(1);
}

/* Takes `ns` nanoseconds of a compute unit: its clock has 100 MHz. */
KERNEL occupy(u64 ns)
{
    u64 start = __builtin_amdgcn_s_memrealtime();
    while (__builtin_amdgcn_s_memrealtime() - start < ns / 10)
        __builtin_amdgcn_s_sleep(1);
}

/* seen[number of a compute unit] counts the blocks that ran on it. */
KERNEL smid_map(u64 *seen)
{
    if (THREAD == 0)
        ADD(seen + processor(), 1);
}

/* A byte of each page, as far as it gets. */
KERNEL touch_pages(volatile unsigned char *to, u64 byte, u64 bytes)
{
    for (u64 at = 0; at < bytes; at += 4096)
        to[at] = (unsigned char)byte;
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

/* Constants lie in memory that kernels can write: it must be undone. */
KERNEL constant_write(u64 value)
{
    for (u32 i = 0; i < 512; i++)
        ((volatile u64 *)constant_words)[i] = value;
}

/* ---- stacks ------------------------------------------------------------------------------------- */

#define FRAME_WORDS 256

/* Leaves `pattern` in 1 KiB of every thread. `step` is odd; unknown, so that the frame is really there. */
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

/* ---- LDS ------------------------------------------------------------------------------------------ */

extern SHARED volatile u32 shared_words[];

/* `marks` gets a 1 for every compute unit that was reached. */
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

/* ---- registers ------------------------------------------------------------------------------------ */

/* Does something to each of many registers, from `first` on. A wave with 128 vector registers shares a SIMD with three
 * others; the compiler needs fewer than `first` of either kind. */
#define EACH(first, count, body) ".set nth, " #first "\n.rept " #count "\n" body ".set nth, nth + 1\n.endr\n"

BOUNDED(256, amdgpu_num_vgpr(128)) register_fill(const volatile u32 *from, u32 *)
{
    u32 pattern = *from;
    asm volatile(EACH(32, 96, "v_mov_b32 v[nth], %0\n") "s_endpgm" ::"v"(pattern) : "v127", "memory");
    __builtin_unreachable();
}

/* Counts registers that hold `pattern` although nothing was written to them. */
BOUNDED(256, amdgpu_num_vgpr(128)) register_scan(u32 pattern, u64 *hits, u32)
{
    u32 found;
    asm volatile("v_mov_b32 %0, 0\n" EACH(32, 96, "v_cmp_eq_u32 vcc, %1, v[nth]\nv_addc_co_u32 %0, vcc, 0, %0, vcc\n")
                 : "=&v"(found)
                 : "v"(pattern)
                 : "v127", "vcc");
    ADD(hits, found);
}

BOUNDED(256) scalar_fill(u32 pattern)
{
    asm volatile(EACH(32, 48, "s_mov_b32 s[nth], %0\n") "s_endpgm" ::"s"(pattern) : "s95", "memory");
    __builtin_unreachable();
}

BOUNDED(256) scalar_scan(u32 pattern, u64 *hits)
{
    u32 found;
    asm volatile("s_mov_b32 %0, 0\n" EACH(32, 48, "s_cmp_eq_u32 %1, s[nth]\ns_addc_u32 %0, %0, 0\n")
                 : "=&s"(found)
                 : "s"(pattern)
                 : "s95", "scc");
    if (THREAD % 64 == 0)
        ADD(hits, found);
}

/* ---- faults --------------------------------------------------------------------------------------- */

KERNEL trap()
{
    __builtin_trap();
}

/* Addresses as numbers, which blueprints may pass that name no buffer. */
KERNEL illegal(u64 address)
{
    *(volatile u64 *)address = 1;
}

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

/* Every block waits for all others; more of them than fit on the compute units never meet. */
KERNEL grid_barrier(volatile u64 *arrived, u64 blocks)
{
    ADD((u64 *)arrived, 1);
    while (*arrived < blocks)
        __builtin_amdgcn_s_sleep(1);
}

/* A function whose address every kernel may know; its result shows whether its code was changed. */
GLOBAL __attribute__((noinline)) static u64 plus_seven(u64 x)
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
    *sum = plus_seven(35);
}
