//! Modules, as far as they are read before a compiler or a driver is: what passes is what the rules say.

use pappus_blueprint::hsaco;
use pappus_worker::device::{MAX_MODULE_BYTES, cpu, cuda};
use wasmparser::{Parser, Payload, Validator};

/// wasm: what is judged to be a module is, rewritten, a valid one that imports nothing and offers these kernels.
pub fn read_wasm(bytes: &[u8]) {
    let (rewritten, kernels) = match cpu::compiler::judge(bytes, true) {
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
    assert!(kernels.iter().all(|kernel| exported.contains(&kernel.name)));
}

/// hsaco: what passes keeps its promises, and reads the same again.
pub fn read_hsaco(bytes: &[u8]) {
    let objects = match hsaco::read(bytes) {
        Ok(objects) => objects,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    for object in &objects {
        assert!(!object.kernels.is_empty() && object.kernels.len() <= hsaco::MAX_KERNELS);
        for kernel in &object.kernels {
            let ends = kernel.arguments.iter().map(|one| u64::from(one.offset) + u64::from(one.bytes));
            assert!(ends.max().unwrap_or(0) <= kernel.kernarg_bytes.into());
        }
        for section in &object.writable {
            assert!(
                section.variables.iter().all(|variable| variable.offset + variable.bytes <= section.bytes)
            );
        }
        let alone = hsaco::read(object.bytes).expect("an object by itself is as good as in its bundle");
        assert!(alone.len() == 1 && alone[0] == *object);
        assert!(hsaco::pick(bytes, &object.target).is_ok());
    }
}

/// cubin, fatbin or PTX: what passes is no longer than it says.
pub fn read_cuda(bytes: &[u8]) {
    if let Err(why) = cuda::judge(bytes) {
        assert!(!why.to_string().is_empty());
    }
}
