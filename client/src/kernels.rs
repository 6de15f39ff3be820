//! Which kernels a module file holds, and what they take as far as the file tells, without a device: the export list of
//! wasm, the declarations of PTX, the symbols of machine code.

use std::path::Path;

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};
use pappus_blueprint::{Blueprint, ParamKind, PassedParam, ptx};

use crate::error::{Error, Result};
use crate::variants::VariantFile;

/// No module may be larger: the supervisor's limit.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// What the linker for AMD GPUs puts behind a kernel's name.
const DESCRIPTOR: &str = ".kd";

/// A kernel of a module file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its symbol.
    pub name: String,
    /// What it takes, where the file tells.
    pub params: Option<Vec<ptx::Param>>,
}

/// What a module file tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The kernels in it.
    Kernels(Vec<Kernel>),
    /// Nothing without a driver.
    Unreadable,
}

/// Opens a module file.
pub fn of_file(file: &VariantFile) -> Result<Found> {
    let bytes = std::fs::metadata(&file.path).map_err(Error::file(&file.path))?.len();
    if bytes > MAX_FILE_BYTES {
        let most = MAX_FILE_BYTES >> 20;
        return Err(Error::content(&file.path, format!("{bytes} bytes, a module may have {most} MiB")));
    }
    let content = std::fs::read(&file.path).map_err(Error::file(&file.path))?;
    of_bytes(&file.path, file.format, &content)
}

fn of_bytes(path: &Path, format: &str, content: &[u8]) -> Result<Found> {
    let named = |name: String| Kernel { name, params: None };
    let kernels: Option<Vec<Kernel>> = match format {
        "wasm" => Some(
            wasm_exports(content)
                .ok_or_else(|| Error::content(path, "no WebAssembly, or cut off: compile it again"))?
                .into_iter()
                .map(named)
                .collect(),
        ),
        "ptx" => {
            let text =
                std::str::from_utf8(content).map_err(|_| Error::content(path, "PTX that is no text"))?;
            let entries = ptx::entries(text.trim_end_matches('\0')).ok();
            let of = |entry: ptx::Entry| Kernel { name: entry.name, params: entry.params };
            entries.map(|entries| entries.into_iter().map(of).collect())
        }
        "cubin" | "hsaco" => {
            let names = symbols(content)
                .ok_or_else(|| Error::content(path, "no machine code (an ELF file), or cut off"))?;
            Some(names.into_iter().map(named).collect())
        }
        _ => None,
    };
    Ok(kernels.map_or(Found::Unreadable, Found::Kernels))
}

/// Compares what a blueprint launches with the kernels of one of its modules' files.
pub fn check(blueprint: &Blueprint, module: usize, path: &Path, kernels: &[Kernel]) -> Result<()> {
    let named = |symbol: &str| kernels.iter().find(|kernel| kernel.name == symbol);
    let of_module = blueprint.kernels().iter().filter(|kernel| kernel.module == module);
    for kernel in of_module {
        if named(&kernel.symbol).is_none() {
            let there: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            let module = &blueprint.modules()[module].name;
            let message = format!("module {module} has no kernel {:?}; it has {there}", kernel.symbol);
            return Err(Error::content(path, message));
        }
    }
    for launch in blueprint.launches() {
        let kernel = &blueprint.kernels()[launch.kernel];
        let declared = named(&kernel.symbol).filter(|_| kernel.module == module);
        let Some(params) = declared.and_then(|declared| declared.params.as_ref()) else { continue };
        let passed: Vec<PassedParam> = launch.params().collect();
        if passed.len() != params.len() {
            let message = format!(
                "kernel {:?} takes {} arguments, the blueprint passes {} at {}[1]",
                kernel.name,
                params.len(),
                passed.len(),
                launch.place()
            );
            return Err(Error::content(path, message));
        }
        for (at, (param, passed)) in params.iter().zip(passed).enumerate() {
            if !agree(*param, passed) {
                let message = format!(
                    "kernel {:?}, argument {}: the kernel takes {} bytes{}, the blueprint passes {passed} ({} bytes) \
                     at {}[1][{at}]",
                    kernel.name,
                    at + 1,
                    param.bytes,
                    class(param.class),
                    passed.bytes,
                    launch.place()
                );
                return Err(Error::content(path, message));
            }
        }
    }
    Ok(())
}

fn agree(param: ptx::Param, passed: PassedParam) -> bool {
    let float = matches!(passed.kind, ParamKind::F32 | ParamKind::F64);
    let whole = !float && passed.kind != ParamKind::Struct;
    let wrong = param.class == ptx::Class::Integer && float || param.class == ptx::Class::Float && whole;
    param.bytes == passed.bytes && !wrong
}

fn class(class: ptx::Class) -> &'static str {
    match class {
        ptx::Class::Integer => " (integer or address)",
        ptx::Class::Float => " (float)",
        ptx::Class::Bits => "",
        ptx::Class::Struct => " (struct)",
    }
}

/// Names of exported functions; `None` where the bytes are no module.
fn wasm_exports(content: &[u8]) -> Option<Vec<String>> {
    const EXPORTS: u8 = 7;
    const FUNCTION: u8 = 0;
    let mut rest = content.strip_prefix(b"\0asm\x01\0\0\0")?;
    let mut names = Vec::new();
    while let Some((&id, behind)) = rest.split_first() {
        let (bytes, behind) = leb(behind)?;
        let (section, behind) = behind.split_at_checked(bytes as usize)?;
        rest = behind;
        if id != EXPORTS {
            continue;
        }
        let (count, mut section) = leb(section)?;
        for _ in 0..count {
            let (bytes, behind) = leb(section)?;
            let (name, behind) = behind.split_at_checked(bytes as usize)?;
            let (&kind, behind) = behind.split_first()?;
            let (_index, behind) = leb(behind)?;
            section = behind;
            if kind == FUNCTION {
                names.push(std::str::from_utf8(name).ok()?.to_owned());
            }
        }
    }
    Some(names)
}

/// An unsigned number of up to 32 bits in wasm's variable length.
fn leb(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, &bytes[at + 1..]));
        }
    }
    None
}

/// Names of functions in machine code; those of kernels, where the format marks them.
fn symbols(content: &[u8]) -> Option<Vec<String>> {
    let file = ElfFile64::<LittleEndian>::parse(content).ok()?;
    let defined = file.symbols().chain(file.dynamic_symbols()).filter(|symbol| !symbol.is_undefined());
    let mut names: Vec<String> = defined.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect();
    let marked: Vec<String> =
        names.iter().filter_map(|name| name.strip_suffix(DESCRIPTOR).map(str::to_owned)).collect();
    if !marked.is_empty() {
        names = marked;
    }
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels of a module that comes with Pappus.
    fn built(name: &str) -> Vec<Kernel> {
        let format = name.rsplit('.').next().unwrap();
        match of_bytes(Path::new(name), format, pappus_kernels::artefact(name).unwrap()).unwrap() {
            Found::Kernels(kernels) => kernels,
            Found::Unreadable => panic!("{name} is unreadable"),
        }
    }

    #[test]
    fn every_form_of_a_module_tells_its_kernels() {
        for name in ["mlops.wasm", "mlops.ptx", "mlops.sm_90.ptx", "mlops.hsaco", "mlops.gfx942.hsaco"] {
            let names: Vec<String> = built(name).into_iter().map(|kernel| kernel.name).collect();
            assert!(names.contains(&"matmul_para".to_owned()), "{name}: {names:?}");
        }
        let ptx = built("mlops.ptx");
        let params = ptx.iter().find(|kernel| kernel.name == "matmul_para").unwrap().params.as_ref().unwrap();
        assert_eq!(params.iter().map(|param| param.bytes).collect::<Vec<_>>(), [8, 8, 8]);
    }

    #[test]
    fn every_function_that_comes_with_pappus_fits_its_modules() {
        for (config, text) in pappus_kernels::CONFIGS {
            let blueprint = pappus_blueprint::parse(text.as_bytes()).unwrap();
            for (at, module) in blueprint.modules().iter().enumerate() {
                let stem = crate::variants::stem(Path::new(&*module.path));
                for format in ["wasm", "ptx", "sm_90.ptx", "hsaco", "gfx942.hsaco"] {
                    let name = format!("{stem}.{format}");
                    check(&blueprint, at, Path::new(&name), &built(&name))
                        .unwrap_or_else(|why| panic!("{config}: {why}"));
                }
            }
        }
    }

    fn blueprint(kernel: &str, arguments: &str) -> Blueprint {
        let one = r#"{"Absolute": 1}"#;
        let text = format!(
            r#"{{"modules": [{{"module_name": "m", "path": "m.ptx"}}],
            "kernels": [{{"module_name": "m", "kernel_name": "{kernel}"}}],
            "blueprint": {{"inputs": ["A"], "buffers": {{}}, "outputs": ["A"], "control_flow": [
                {{"ExecKernel": ["{kernel}", [{arguments}], {{
                    "grid_dim_x": {one}, "grid_dim_y": {one}, "grid_dim_z": {one}, "block_dim_x": {one},
                    "block_dim_y": {one}, "block_dim_z": {one}, "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#
        );
        pappus_blueprint::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_does_not_fit_names_kernel_module_and_argument() {
        let ptx = "m.ptx";
        let of = |text: &str| match of_bytes(Path::new(ptx), "ptx", text.as_bytes()).unwrap() {
            Found::Kernels(kernels) => kernels,
            Found::Unreadable => panic!("unreadable"),
        };
        let kernels = of(".entry k(.param .u64 a, .param .f32 b) {}");
        let judge = |kernel: &str, arguments: &str| {
            check(&blueprint(kernel, arguments), 0, Path::new(ptx), &kernels).map_err(|why| why.to_string())
        };
        judge("k", r#"{"Ptr": "A"}, {"F32": 1}"#).unwrap();
        for (kernel, arguments, words) in [
            ("j", "", "m.ptx: module m has no kernel \"j\"; it has k"),
            (
                "k",
                r#"{"Ptr": "A"}"#,
                "kernel \"k\" takes 2 arguments, the blueprint passes 1 at blueprint.control_flow[0]",
            ),
            (
                "k",
                r#"{"Ptr": "A"}, {"F64": 1}"#,
                "argument 2: the kernel takes 4 bytes (float), the blueprint passes f64",
            ),
            (
                "k",
                r#"{"Ptr": "A"}, {"I32": 1}"#,
                "argument 2: the kernel takes 4 bytes (float), the blueprint passes i32",
            ),
        ] {
            let why = judge(kernel, arguments).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn what_is_no_module_is_refused_and_never_panics() {
        for (format, content) in [
            ("wasm", &b"\0asm\x01\0\0\0\x07\x05\x01\xff\xff"[..]),
            ("wasm", b"\x7fELF"),
            ("hsaco", b"\x7fELF\x02\x01"),
            ("cubin", b""),
            ("ptx", b"\xff\xfe"),
        ] {
            of_bytes(Path::new("m"), format, content).unwrap_err();
        }
        assert_eq!(of_bytes(Path::new("m"), "fatbin", b"").unwrap(), Found::Unreadable);
        assert_eq!(of_bytes(Path::new("m"), "ptx", b".entry k(").unwrap(), Found::Unreadable);
    }
}
