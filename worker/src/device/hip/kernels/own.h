/* What the kernels that Pappus launches on its own account have in common. HIP without its SDK. */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 u32x4 __attribute__((ext_vector_type(4)));

#define KERNEL(threads, ...)                                                                       \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads), ##__VA_ARGS__)) void
#define INLINE static inline __attribute__((device, always_inline))
#define SHARED __attribute__((shared))

#define THREAD __builtin_amdgcn_workitem_id_x()
#define BLOCK __builtin_amdgcn_workgroup_id_x()
/* The first of the arguments that the driver adds: how many blocks there are along x. */
#define BLOCKS (*(const __attribute__((address_space(4))) u32 *)__builtin_amdgcn_implicitarg_ptr())

/* s_barrier alone orders no memory. */
INLINE void barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
