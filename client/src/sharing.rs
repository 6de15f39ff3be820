//! Whether kernels of a module file can run in a worker that tenants share, told without a device: PTX is fenced and checked, wasm
//! is fenced already, machine code cannot be.

use pappus_fence::Refused;

use crate::error::Result;
use crate::kernels::MAX_FILE_BYTES;
use crate::variants::VariantFile;

/// What can be said of a module file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sharing {
    /// All kernels of the module can run in a shared worker.
    Shared,
    /// What stands in the way in the module's PTX, in the order of the text.
    InTheWay(Vec<Refused>),
    /// The driver gets no text that could be fenced.
    MachineCode,
}

/// Reads a module file.
pub fn of_file(file: &VariantFile) -> Result<Sharing> {
    match file.format.name() {
        "ptx" => Ok(of_ptx(&file.source.read(MAX_FILE_BYTES, "a module")?)),
        "wasm" => Ok(Sharing::Shared),
        _ => Ok(Sharing::MachineCode),
    }
}

/// What can be said of PTX.
pub fn of_ptx(content: &[u8]) -> Sharing {
    let refused = |line, what: &str, why: String| {
        Sharing::InTheWay(vec![Refused { line, column: 1, kernel: String::new(), what: what.into(), why }])
    };
    let Ok(text) = std::str::from_utf8(content) else {
        return refused(1, "module", "PTX that is no text".into());
    };
    let text = text.trim_end_matches('\0');
    match pappus_fence::fence(text) {
        Err(_) => Sharing::InTheWay(pappus_fence::reasons(text)),
        // A worker asks the checker as well, and would refuse what the fence made of the text.
        Ok(fenced) => pappus_fence::check(&fenced.text).map_or_else(
            |unfenced| refused(1, "module", format!("please report it: the fence made {unfenced}")),
            |_| Sharing::Shared,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_way_is_told_by_line_and_kernel() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 p) {\nbrkpt;\n\
            isspacep.global %p1, %rd1;\nret;\n}\n";
        let Sharing::InTheWay(reasons) = of_ptx(text.as_bytes()) else { panic!("{text}") };
        let places: Vec<_> = reasons.iter().map(|r| (r.line, r.kernel.as_str(), r.what.as_str())).collect();
        assert_eq!(places, [(5, "k", "brkpt"), (6, "k", "isspacep.global %p1, %rd1")]);
        assert!(matches!(of_ptx(b"\xff"), Sharing::InTheWay(one) if one.len() == 1));
    }

    #[test]
    fn text_that_ends_in_a_zero_byte_is_the_same_text() {
        let text = pappus_kernels::artefact("mlops.ptx").unwrap();
        assert_eq!(of_ptx(text), Sharing::Shared);
        assert_eq!(of_ptx(&[text, b"\0"].concat()), Sharing::Shared);
    }
}
