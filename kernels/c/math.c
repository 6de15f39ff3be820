/* Module math: each function of pappus_math.h over an array; for tests, and for blueprints that need no more. */
#include "pappus.h"

#define OF_ONE(function)                                                                           \
    KERNEL(function##_f, (const f32 *, x), (f32 *, y), (i64, n))                                   \
    {                                                                                              \
        FOR_EACH_X(i, n)                                                                           \
        {                                                                                          \
            y[i] = f32_##function(x[i]);                                                           \
        }                                                                                          \
    }
#define OF_TWO(function)                                                                           \
    KERNEL(function##_f, (const f32 *, a), (const f32 *, b), (f32 *, y), (i64, n))                 \
    {                                                                                              \
        FOR_EACH_X(i, n)                                                                           \
        {                                                                                          \
            y[i] = f32_##function(a[i], b[i]);                                                     \
        }                                                                                          \
    }

OF_ONE(abs)
OF_ONE(floor)
OF_ONE(ceil)
OF_ONE(trunc)
OF_ONE(round)
OF_ONE(sqrt)
OF_ONE(rsqrt)
OF_ONE(exp)
OF_ONE(exp2)
OF_ONE(log)
OF_ONE(log2)
OF_ONE(sin)
OF_ONE(cos)
OF_ONE(tanh)
OF_ONE(erf)
OF_TWO(min)
OF_TWO(max)
OF_TWO(copysign)
OF_TWO(pow)
