/* Names of CUDA's, HIP's and the C library that a kernel of Pappus does not have. Each is declared as unavailable, so that the
 * compiler says at the very place what to write instead. Include pappus.h, not this.
 *
 * A native build of a kernel may include the C library beside it, so there the names are the library's.
 */
#if defined(__wasm__) || defined(PAPPUS_GPU)

#ifdef PAPPUS_GPU
#define PAPPUS_INSTEAD(words) __attribute__((device, unavailable(words)))
extern "C" {
#else
#define PAPPUS_INSTEAD(words) __attribute__((unavailable(words)))
#endif

/* The coordinates of a thread come from its region. */
typedef struct { u32 x, y, z; } pappus_cuda_index;
extern const pappus_cuda_index threadIdx
    PAPPUS_INSTEAD("a region gives each thread its place: FOR_EACH_X(x, n) { } or FOR_EACH_THREAD(t) { }");
extern const pappus_cuda_index blockIdx PAPPUS_INSTEAD("write BLOCK_X, BLOCK_Y, BLOCK_Z");
extern const pappus_cuda_index blockDim PAPPUS_INSTEAD("write BLOCK_WIDTH, BLOCK_HEIGHT, BLOCK_DEPTH");
extern const pappus_cuda_index gridDim
    PAPPUS_INSTEAD("pass what the grid covers as a parameter of the kernel; FOR_EACH_X(x, n) has the bound in it");

/* clang has this one itself where it compiles CUDA. */
#ifndef __CUDA__
void __syncthreads(void) PAPPUS_INSTEAD("write BARRIER() between two regions");
#endif
void __syncwarp(void) PAPPUS_INSTEAD("write BARRIER() between two regions");
void __threadfence(void) PAPPUS_INSTEAD("a later launch of the same function sees what an earlier one wrote");

int printf(const char *, ...) PAPPUS_INSTEAD("write pappus_print_i64(\"i\", i) or pappus_print_f64(\"x\", x), and call it with \
`pappus invoke --checked`");
#ifndef __CUDA__
extern int (*const assert)(...) PAPPUS_INSTEAD("write REQUIRE(condition)");
#endif

#define PAPPUS_CUDA_ATOMIC PAPPUS_INSTEAD("kernels have no atomics: each block writes a part, a second launch adds \
them up (`pappus kernel new NAME --template reduction`)")
extern int (*const atomicAdd)(...) PAPPUS_CUDA_ATOMIC;
extern int (*const atomicMax)(...) PAPPUS_CUDA_ATOMIC;
extern int (*const atomicMin)(...) PAPPUS_CUDA_ATOMIC;
extern int (*const atomicCAS)(...) PAPPUS_CUDA_ATOMIC;

#define PAPPUS_NO_LIBRARY(name, instead)                                                           \
    float name##f(float) PAPPUS_INSTEAD("write " instead ", which is the same to the bit on every device");
PAPPUS_NO_LIBRARY(sqrt, "f32_sqrt(x)")
PAPPUS_NO_LIBRARY(rsqrt, "f32_rsqrt(x)")
PAPPUS_NO_LIBRARY(exp, "f32_exp(x)")
PAPPUS_NO_LIBRARY(exp2, "f32_exp2(x)")
PAPPUS_NO_LIBRARY(log, "f32_log(x)")
PAPPUS_NO_LIBRARY(log2, "f32_log2(x)")
PAPPUS_NO_LIBRARY(sin, "f32_sin(x)")
PAPPUS_NO_LIBRARY(cos, "f32_cos(x)")
PAPPUS_NO_LIBRARY(tanh, "f32_tanh(x)")
PAPPUS_NO_LIBRARY(erf, "f32_erf(x)")
PAPPUS_NO_LIBRARY(fabs, "f32_abs(x)")
PAPPUS_NO_LIBRARY(floor, "f32_floor(x)")
PAPPUS_NO_LIBRARY(ceil, "f32_ceil(x)")
PAPPUS_NO_LIBRARY(round, "f32_round(x)")
PAPPUS_NO_LIBRARY(trunc, "f32_trunc(x)")
float powf(float, float) PAPPUS_INSTEAD("write f32_pow(x, y), which is the same to the bit on every device");
float fminf(float, float) PAPPUS_INSTEAD("write f32_min(a, b)");
float fmaxf(float, float) PAPPUS_INSTEAD("write f32_max(a, b)");

#ifdef PAPPUS_GPU
}
#endif

/* Words that are part of a declaration, where an attribute would say nothing. */
#define __global__ _Static_assert(0, "a kernel is KERNEL(name, (type, parameter), ...) { }");
#define __device__ _Static_assert(0, "a function of one thread is INLINE type name(...)");
#define __shared__ _Static_assert(0, "shared memory is SHARED type name[N], or SHARED_DYNAMIC(type, name)");

#endif
