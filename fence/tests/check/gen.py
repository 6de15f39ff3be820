ZERO=[l for l in open('/work/fence-check/fence/src/check/rules.rs').read().split('ZERO: [&str; 25] = [')[1].split('];')[0].replace('"','').split('\n')]
ZERO='\n'.join('\t'+l.strip().rstrip(',') for l in ZERO if l.strip())
HEAD='''	.reg .b32 %pappus_hi, %pappus_lo, %pappus_fuel, %pappus_step, %pappus_end;
	.reg .b64 %pappus_at, %pappus_base;
	.reg .pred %pappus_out;'''
STOP='''	mov.b32 %pappus_lo, 0xfffff000;
	mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};
	ld.volatile.global.u32 %pappus_lo, [%pappus_at];
	setp.ne.u32 %pappus_out, %pappus_lo, 0;
	@%pappus_out exit;'''
def fuel(n): return f'''	sub.u32 %pappus_fuel, %pappus_fuel, 1;
	setp.eq.u32 %pappus_out, %pappus_fuel, 0;
	@%pappus_out bra $pappus_check_{n};
$pappus_on_{n}:'''
def chk(n): return f'''$pappus_check_{n}:
{STOP}
	mov.b32 %pappus_fuel, 16384;
	bra.uni $pappus_on_{n};'''
def fence(r): return f'''	cvt.u32.u64 %pappus_lo, {r};
	mov.b64 %pappus_at, {{%pappus_lo, %pappus_hi}};'''
text=f'''.version 8.6
.target sm_90a
.address_size 64
.const .align 4 .b32 table[3] = {{1, -2, 0x3}};
.const .align 4 .f32 one = 0f3F800000;
.shared .align 16 .b8 tile[2048];
.extern .shared .align 16 .b8 dynamic[];

.func (.param .b32 half_result) half(
	.param .b32 half_0,
	.param .b32 pappus_window
)
{{
{HEAD}
	.reg .b32 %r<3>;
	ld.param.b32 %pappus_hi, [pappus_window];
	st.param.b32 [half_result], 0;
	ld.param.b32 %r1, [half_0];
	shr.u32 %r2, %r1, 1;
	st.param.b32 [half_result], %r2;
	ret;
}}

.func (.param .align 8 .b8 total_result[16]) total(
	.param .b64 total_0,
	.param .align 8 .b8 total_1[12],
	.param .b32 pappus_window
)
{{
{HEAD}
	.reg .pred %p;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	.param .b32 pappus_argument;
	.param .b32 number;
	.param .b32 halved;
	ld.param.b32 %pappus_hi, [pappus_window];
	mov.b32 %pappus_fuel, 16384;
{STOP}
	st.param.b64 [total_result], 0;
	st.param.b64 [total_result+8], 0;
	ld.param.b64 %rd1, [total_0];
	ld.param.b32 %r1, [total_1+8];
	mov.b32 %r2, 0;
$L2:
{fence('%rd1')}
	ld.global.v2.u32 {{%r3, _}}, [%pappus_at+-8];
	st.param.b32 [number], %r3;
	st.param.b32 [pappus_argument], %pappus_hi;
	call.uni (halved), half, (number, pappus_argument);
	ld.param.b32 %r3, [halved];
	add.u32 %r2, %r2, %r3;
	sub.u32 %r1, %r1, 1;
	setp.ne.u32 %p, %r1, 0;
{fuel(7)}
	@%p bra $L2;
	st.param.b32 [total_result+4], %r2;
	ret.uni;
{chk(7)}
}}

.visible .entry everything(
	.param .u64 everything_0,
	.param .align 4 .b8 everything_1[12],
	.param .b32 pappus_window
)
.maxntid 256, 1, 1
.minnctapersm 2
{{
{HEAD}
	.reg .pred %p<4>;
	.reg .b16 %h<4>;
	.reg .b32 %r<12>;
	.reg .f32 %f<12>;
	.reg .b64 %rd<8>, %carry;
	.local .align 16 .b8 depot[24];
	.param .b32 pappus_argument;
	.param .b64 passed_0;
	.param .align 8 .b8 passed_1[12];
	.param .align 8 .b8 came[16];
	ld.param.b32 %pappus_hi, [pappus_window];
	mov.b32 %pappus_fuel, 16384;
{ZERO}
	st.local.b64 [depot], 0;
	st.local.b64 [depot+8], 0;
	st.local.b64 [depot+16], 0;
	mov.pred %p1, 0;
	mov.b32 %r1, 0;
	mov.b32 %r10, 0;
	mov.b64 %rd1, 0;
	ld.param.u64 %rd1, [everything_0];
	ld.param.b32 %r1, [everything_1+8];
	mov.u32 %r2, %tid.x;
	@!%p1 bra $L_loop;
	mov.u64 %rd2, tile+16;
	cvta.shared.u64 %rd3, %rd2;
	cvt.u32.u64 %r3, %rd2;
$L_loop:
{fence('%rd1')}
	@%p1 ld.global.nc.L1::no_allocate.L2::128B.u32 %r10, [%pappus_at+4096];
{fence('%rd1')}
	st.global.v4.b32 [%pappus_at], {{%r1, %r10, %r1, 7}};
	mov.b32 %pappus_lo, 4096;
	mov.b64 %pappus_at, {{%pappus_lo, %pappus_hi}};
	atom.global.add.u32 %r4, [%pappus_at+2147483647], %r1;
	mov.b32 %pappus_lo, 4096;
	mov.b64 %pappus_at, {{%pappus_lo, %pappus_hi}};
	red.relaxed.gpu.global.add.f32 [%pappus_at+-2147483647], 0f3F800000;
{fence('%rd1')}
	prefetch.global.L2 [%pappus_at];
	mov.b32 %r3, 64;
{fence('%rd1')}
	cp.async.cg.shared.global.L2::128B [%r3+1024], [%pappus_at+64], 16;
	cp.async.commit_group;
	cp.async.wait_group 0;
	bar.sync 0;
	ld.shared.v4.f32 {{%f1, %f2, %f3, %f4}}, [tile+32];
	st.shared.u32 [dynamic], %r3;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r5, %r6, %r7, %r8}}, [%r3];
	mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{%f5, %f6, %f7, %f8}}, {{%r5, %r6, %r7, %r8}}, {{%r5, %r6}}, {{%f1, %f2, %f3, %f4}};
	mbarrier.init.shared.b64 [%r3], 1;
	mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
	ld.const.b32 %r9, [table+4];
	mov.u64 %rd2, table;
	ld.const.b32 %r9, [%rd2];
	add.cc.u32 %r9, %r9, %r1;
	addc.u32 %r9, %r9, 0;
	shfl.sync.down.b32 %r9|%p3, %r9, 16, 31, -1;
	mov.b64 {{%r5, %r6}}, %rd1;
	cvt.u64.u32 %pappus_at, %r9;
	mov.b64 %pappus_base, depot;
	min.u64 %pappus_at, %pappus_at, 16;
	add.s64 %pappus_at, %pappus_at, %pappus_base;
	st.local.b64 [%pappus_at], %rd1;
	ld.local.v2.b32 {{%r5, %r6}}, [depot+16];
	st.param.b64 [passed_0], %rd1;
	st.param.b32 [passed_1], %r5;
	st.param.b64 [passed_1+4], 0;
	st.param.b32 [pappus_argument], %pappus_hi;
	call (came), total, (passed_0, passed_1, pappus_argument);
	ld.param.b32 %r5, [came+12];
	setp.lt.s32 %p2|%p3, %r5, -5;
{fuel(0)}
	@!%p2 bra $L_loop;
	setp.eq.u32 %p2, %r5, 3;
	@%p2 bra $L_end;
{fuel(1)}
	bra.uni $L_loop;
$L_end:
	exit;
{chk(0)}
{chk(1)}
}}

.entry nothing(
	.param .b32 pappus_window
)
{{
{HEAD}
	ld.param.b32 %pappus_hi, [pappus_window];
	ret;
}}
'''
open('everything.ptx','w').write(text)
