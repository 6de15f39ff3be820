# Writes triton_*.ptx beside it; Triton 3.9 needs no GPU for that.
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0)*B + tl.arange(0,B)
    m = i < n
    tl.store(o+i, tl.load(x+i,mask=m)+tl.load(y+i,mask=m), mask=m)


@triton.jit
def softmax(o, x, n, s, B: tl.constexpr):
    r = tl.program_id(0); c = tl.arange(0,B)
    v = tl.load(x+r*s+c, mask=c<n, other=-float('inf'))
    v = tl.exp(v - tl.max(v,axis=0))
    tl.store(o+r*s+c, v/tl.sum(v,axis=0), mask=c<n)


@triton.jit
def matmul(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0); pn = tl.program_id(1)
    om = pm*BM + tl.arange(0,BM); on = pn*BN + tl.arange(0,BN); ok = tl.arange(0,BK)
    pa = a + om[:,None]*sa + ok[None,:]; pb = b + ok[:,None]*sb + on[None,:]
    acc = tl.zeros((BM,BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(pa, mask=ok[None,:] < K-k, other=0.0); y = tl.load(pb, mask=ok[:,None] < K-k, other=0.0)
        acc += tl.dot(x,y)
        pa += BK; pb += BK*sb
    tl.store(c + om[:,None]*sc + on[None,:], acc.to(tl.float16), mask=(om[:,None]<M)&(on[None,:]<N))


@triton.jit
def hist(x, o, n, lock, B: tl.constexpr):
    i = tl.program_id(0)*B + tl.arange(0,B)
    v = tl.load(x+i, mask=i<n, other=0)
    tl.atomic_add(o+v, 1, mask=i<n)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.atomic_xchg(lock, 0)


A = [
    (add, dict(x="*fp32", y="*fp32", o="*fp32", n="i32"), dict(B=1024), (90,), {}),
    (softmax, dict(o="*fp32", x="*fp32", n="i32", s="i32"), dict(B=4096), (90,), {}),
    (matmul, dict(a="*fp16", b="*fp16", c="*fp16", M="i32", N="i32", K="i32", sa="i32", sb="i32", sc="i32"), dict(BM=128, BN=128, BK=64), (80, 90), dict(num_stages=3, num_warps=8)),
    (hist, dict(x="*i32", o="*i32", n="i32", lock="*i32"), dict(B=1024), (90,), {}),
]
for kernel, types, constants, targets, options in A:
    for target in targets:
        names = kernel.arg_names
        signature = {name: types.get(name, "constexpr") for name in names}
        divisible = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in types}
        source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, divisible)
        compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=dict(options, ptx_version=88))
        open(f"triton_{kernel.__name__}_{target}.ptx", "w").write(compiled.asm["ptx"])
