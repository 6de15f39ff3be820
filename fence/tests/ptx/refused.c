// Kernels that cannot be fenced: refused.ptx, by the command in clang.c with -O1.
typedef unsigned long u64; typedef unsigned u32;
#define K __attribute__((nvptx_kernel))
#define G __attribute__((address_space(1)))
#define S __attribute__((address_space(3)))
#define C __attribute__((address_space(4)))
#define N __attribute__((noinline))
K void b1(int *in,int *out,int n){int a[32];int *p=n?a:in;for(int i=0;i<32;i++)a[i]=in[i];*out=p[n];}
N static int rec(int n){return n<2?n:rec(n-1)+rec(n-2);}
K void b2(int *o,int n){*o=rec(n);}
K void b3(int *o,int(*f)(int)){*o=f(1);}
