/* The probes of the conformance suite for HIP: kernels of probes.cu under the same names, where they mean something on
 * an AMD GPU. `scripts/probes build` makes probes.gfx90a.hsaco and probes.gfx942.hsaco.
 *
 * Not here: kernels that need a stack without an end or calls through pointers (`recurse`, `wild_jump`), which are
 * refused at registration, and unaligned accesses, which this hardware permits.
 */
typedef unsigned int u32;
typedef unsigned long long u64;

#define GLOBAL __attribute__((device))
#define KERNEL extern "C" __attribute__((global, launch_bounds(1024))) void

#define THREAD __builtin_amdgcn_workitem_id_x()
#define ADD(to, n) __hip_atomic_fetch_add(to, (u64)(n), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)

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

GLOBAL volatile u64 data_word = 0x656e697473697270; /* "pristine" */
GLOBAL volatile u64 bss_words[512];

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

KERNEL trap()
{
    __builtin_trap();
}

KERNEL illegal(volatile u64 *address)
{
    *address = 1;
}

KERNEL endless(const volatile u64 *flag)
{
    while (*flag == 0)
        ;
}
