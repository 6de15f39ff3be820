//! The PTX of the kernel that copies and clears small ranges, as `gpu::copy_kernels` launches it.

use pappus_protocol::{Fault, FaultCode};

use super::driver::module::{Kernel, Module, Source, link};
use crate::device::gpu::copy_kernels::{PARAM_BYTES, SEGMENT_BYTES, THREADS};

/// Compiles it for the current context's device.
pub(super) fn load() -> Result<(Module, Kernel), Fault> {
    let internal = |why: String| Fault::new(FaultCode::Internal, format!("the copying kernel: {why}"));
    let code = link(Source::Ptx, (ptx() + "\0").as_bytes()).map_err(|e| internal(e.to_string()))?;
    let module = Module::load(&code).map_err(|e| internal(e.to_string()))?;
    let kernel = module.find("copy").ok_or_else(|| internal("it is missing".into()))?;
    Ok((module, kernel))
}

/// All threads go over one range after the other, in vectors first, then byte by byte over what is left.
fn ptx() -> String {
    format!(
        "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry copy(.param .align 8 .b8 segments[{PARAM_BYTES}])
.maxntid {THREADS}, 1, 1
{{
    .reg .u64 %table, %count, %nth, %from, %to, %bytes, %clears, %first, %threads, %vectors, %at, %source, %target;
    .reg .u32 %thread, %block, %width, %grid, %a, %b, %c, %d, %zero;
    .reg .pred %more, %clearing, %copying;
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %grid, %nctaid.x;
    mul.wide.u32 %threads, %grid, %width;
    mul.wide.u32 %first, %block, %width;
    cvt.u64.u32 %at, %thread;
    add.u64 %first, %first, %at;
    mov.u32 %zero, 0;
    mov.b64 %table, segments;
    ld.param.u64 %count, [%table];
    mov.u64 %nth, 0;
segment:
    setp.ge.u64 %more, %nth, %count;
    @%more bra done;
    ld.param.u64 %from, [%table+8];
    ld.param.u64 %to, [%table+16];
    ld.param.u64 %bytes, [%table+24];
    ld.param.u64 %clears, [%table+32];
    setp.ne.u64 %copying, %from, 0;
    setp.ne.u64 %clearing, %clears, 0;
    shr.u64 %vectors, %bytes, 4;
    mov.u64 %at, %first;
vector:
    setp.ge.u64 %more, %at, %vectors;
    @%more bra tail;
    shl.b64 %target, %at, 4;
    add.u64 %source, %from, %target;
    add.u64 %target, %to, %target;
    mov.u32 %a, 0;
    mov.u32 %b, 0;
    mov.u32 %c, 0;
    mov.u32 %d, 0;
    @%copying ld.global.v4.u32 {{%a, %b, %c, %d}}, [%source];
    st.global.v4.u32 [%target], {{%a, %b, %c, %d}};
    @%clearing st.global.v4.u32 [%source], {{%zero, %zero, %zero, %zero}};
    add.u64 %at, %at, %threads;
    bra vector;
tail:
    shl.b64 %at, %vectors, 4;
    add.u64 %at, %at, %first;
byte:
    setp.ge.u64 %more, %at, %bytes;
    @%more bra next;
    add.u64 %source, %from, %at;
    add.u64 %target, %to, %at;
    mov.u32 %a, 0;
    @%copying ld.global.u8 %a, [%source];
    st.global.u8 [%target], %a;
    @%clearing st.global.u8 [%source], %zero;
    add.u64 %at, %at, %threads;
    bra byte;
next:
    add.u64 %nth, %nth, 1;
    add.u64 %table, %table, {SEGMENT_BYTES};
    bra segment;
done:
    ret;
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::check;

    #[test]
    fn the_kernels_text_passes_the_check_for_modules() {
        assert_eq!(check::format(ptx().as_bytes()), Ok(check::Format::Ptx));
        assert_eq!(ptx().matches('{').count(), ptx().matches('}').count());
    }
}
