//! Modules, as far as they are read before a compiler or a driver is: what passes is what the rules say.

use pappus_worker::device::{MAX_MODULE_BYTES, cpu, cuda};
use wasmparser::{Parser, Payload, Validator};

/// wasm: what is judged to be a module is, rewritten, a valid one that imports nothing and offers these kernels.
pub fn read_wasm(bytes: &[u8]) {
    let (rewritten, kernels) = match cpu::compiler::judge(bytes) {
        Ok(judged) => judged,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    assert!(!kernels.is_empty() && bytes.len() <= MAX_MODULE_BYTES);
    Validator::new().validate_all(&rewritten).expect("rewritten modules are valid");
    let mut exported = Vec::new();
    for payload in Parser::new(0).parse_all(&rewritten) {
        match payload.expect("it is valid") {
            Payload::ImportSection(_) | Payload::StartSection { .. } => panic!("nothing of others runs"),
            Payload::ExportSection(exports) => {
                for export in exports {
                    exported.push(export.expect("it is valid").name.to_owned());
                }
            }
            _ => {}
        }
    }
    assert!(kernels.iter().all(|kernel| exported.contains(kernel)));
}

/// cubin, fatbin or PTX: what passes is no longer than it says.
pub fn read_cuda(bytes: &[u8]) {
    if let Err(why) = cuda::judge(bytes) {
        assert!(!why.to_string().is_empty());
    }
}
