// Kernels whose PTX tests fence: clang_O0.ptx and clang_O1.ptx, by
// clang-19 --target=nvptx64-nvidia-cuda -march=sm_80 -Xclang -target-feature -Xclang +ptx81 -O0 -S
typedef unsigned long u64; typedef unsigned u32;
#define K __attribute__((nvptx_kernel))
#define G __attribute__((address_space(1)))
#define S __attribute__((address_space(3)))
#define C __attribute__((address_space(4)))
#define N __attribute__((noinline))
static C const int table[8]={1,2,3,4,5,6,7,8};
G int counter=5; G float big[1000]; G int *G pointer=&counter; G u64 list[3]={1,(u64)&counter,3};
S int tile[256];
N static int helper(int *p,int n){int s=0;for(int i=0;i<n;i++)s+=p[i];return s;}
N static float pick(float x,int w){switch(w){case 0:return x+1;case 1:return x*2;case 2:return x/3;case 3:return x-4;case 4:return __builtin_sqrtf(x);case 5:return x*x*x;case 6: return -x; default:return 0;}}
struct P{float a,b;char c;int d[4];};
N static struct P make(struct P p){p.a+=p.b;p.d[2]++;return p;}
K void k1(int *in,int *out,int n){int i=__nvvm_read_ptx_sreg_tid_x();tile[i&255]=in[i];__asm__ volatile("bar.sync 0;":::"memory");out[i]=tile[255-(i&255)]+table[i&7]+counter;counter++;big[i]=n;}
K void k2(int *in,int *out,int n){int i=__nvvm_read_ptx_sreg_tid_x();out[i]=helper(in+i,n);}
K void k3(float *in,float *out,int w){int i=__nvvm_read_ptx_sreg_tid_x();out[i]=pick(in[i],w+i);}
K void k4(int *in,int *out,int n){int a[32];for(int i=0;i<32;i++)a[i]=in[i]*n;int s=0;for(int i=0;i<n;i++){a[in[i]&31]+=s;s+=a[(in[i]>>3)&63];}*out=s;}
K void k5(struct P p,struct P *out,int i){out[i]=make(p);out[i].d[1]=p.d[i&3];}
K void k6(int **in,int *out){out[0]=**in;out[1]=*pointer;out[2]=list[1]==(u64)&counter;}
K void k7(int *o){__atomic_fetch_add(o,1,__ATOMIC_RELAXED);__atomic_fetch_add(o+1,2,__ATOMIC_SEQ_CST);*(volatile int*)(o+2)=3;}
