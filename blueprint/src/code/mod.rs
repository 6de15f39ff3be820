//! The formats of compiled modules: what each is called, which devices run it, and what a file tells of its kernels without
//! a device. Supervisor, worker and client know formats through [`CodeFormat`] alone; a new one is an implementation of it
//! and a place in [`FORMATS`].
//!
//! - `wasm`: for the CPU device. `nvidia`: [`Ptx`], [`Cubin`], [`Fatbin`]. `amd`: [`Hsaco`].

mod amd;
mod nvidia;
mod wasm;

pub use amd::Hsaco;
pub use nvidia::{Cubin, Fatbin, Ptx, has_clusters};
pub use wasm::Wasm;

use crate::kernel_info::{CodeError, CodeInfo, KernelInfo};

/// A format of compiled modules.
pub trait CodeFormat: std::fmt::Debug + Sync {
    /// Its name: of variants, and at the end of file names.
    fn name(&self) -> &'static str;

    /// What names of its architectures begin with; empty for a format that has none.
    fn arch_prefix(&self) -> &'static str;

    /// True if bytes begin as the format's do.
    fn recognises(&self, bytes: &[u8]) -> bool;

    /// How well code for the architecture `made_for` suits a device of another; more is better, none if the code does not
    /// run there. Code whose architecture is empty does not say what it is for.
    fn suits(&self, made_for: &str, device: &str) -> Option<Fit>;

    /// True if it is text, of which a device may make code that keeps kernels in a window of addresses.
    fn can_be_fenced(&self) -> bool {
        false
    }

    /// What a device of this architecture needs, such as `a .ptx for sm_90 or older`.
    fn needed(&self, device: &str) -> String;

    /// What is in a file, as far as the file tells: one program, or several for different targets.
    fn read(&self, bytes: &[u8]) -> Result<Vec<Part>, CodeError>;

    /// What a function may rely on whichever device runs the module; none for formats of which only a driver can tell.
    /// A blueprint is checked against that where no device runs the module.
    fn declared(&self) -> Option<Declare> {
        None
    }

    /// True if a module that declares these targets may be called after an architecture, or after none.
    fn is_called_right(&self, _arch: &str, targets: &[String]) -> bool {
        targets.is_empty()
    }
}

/// Every format.
pub static FORMATS: [&dyn CodeFormat; 5] = [&Wasm, &Ptx, &Cubin, &Fatbin, &Hsaco];

/// The format of a name.
pub fn of_name(name: &str) -> Option<&'static dyn CodeFormat> {
    FORMATS.into_iter().find(|format| format.name() == name)
}

/// What a module declares, whatever its format is.
pub fn declared(module: &[u8]) -> Result<CodeInfo, CodeError> {
    let format = FORMATS.into_iter().find(|format| format.recognises(module));
    let format = format.ok_or("this is no cubin, no fatbin and no PTX text (which has a `.version` line)")?;
    let declared = format.declared().ok_or_else(|| {
        let name = format.name();
        CodeError(format!(
            "it is {name}; only PTX and code objects of AMD's tell their kernels without a GPU"
        ))
    })?;
    declared(module)
}

/// How well code suits a device: first how it is made, then for how late an architecture.
pub type Fit = (u32, u32);

/// Reads what a module declares.
pub type Declare = fn(&[u8]) -> Result<CodeInfo, CodeError>;

/// A program of a module file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// What it is made for, such as `sm_90` or `gfx90a:xnack-`; empty where the file does not tell.
    pub target: String,
    /// Its kernels; nothing where only a driver can tell.
    pub kernels: Option<Vec<Kernel>>,
    /// What else it tells of all kernels together, by names of JSON.
    pub figures: Figures,
}

/// Numbers by their names.
pub type Figures = Vec<(&'static str, u64)>;

/// A kernel of a module file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// What every format may tell.
    pub info: KernelInfo,
    /// What it needs, by names of JSON.
    pub figures: Figures,
}

impl From<KernelInfo> for Kernel {
    fn from(info: KernelInfo) -> Self {
        Self { info, figures: Figures::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_how_they_begin() {
        for (bytes, name) in [
            (&include_bytes!("../../../kernels/built/module.wasm")[..], "wasm"),
            (include_bytes!("../../../kernels/built/module.ptx"), "ptx"),
            (include_bytes!("../../../kernels/built/module.hsaco"), "hsaco"),
            (b"// made by hand\n .version 7.0\n", "ptx"),
            (b"\x7fELF...", "cubin"),
            (b"\x50\xed\x55\xba", "fatbin"),
            (b"CCOB", "hsaco"),
        ] {
            let found: Vec<_> = FORMATS.iter().filter(|format| format.recognises(bytes)).collect();
            assert!(found.len() == 1 && found[0].name() == name, "{name}: {found:?}");
            assert_eq!(of_name(name).map(CodeFormat::name), Some(name));
        }
        for bytes in [&b""[..], b"\xff\xfe", b"text"] {
            assert!(declared(bytes).unwrap_err().0.contains("this is no cubin"));
        }
    }

    #[test]
    fn what_a_module_declares_is_known_without_a_device_or_refused() {
        let ptx = declared(b".version 7.0\n.entry k(.param .u64 a) {}").unwrap();
        assert_eq!((ptx.kernels.len(), ptx.targets.len()), (1, 0));
        let hsaco = declared(include_bytes!("../../../kernels/built/linalg.gfx942.hsaco")).unwrap();
        assert_eq!(hsaco.targets, ["gfx942"]);
        let vec_add = hsaco.kernels.iter().find(|kernel| kernel.name == "vec_add_f").unwrap();
        let params: Vec<_> =
            vec_add.params.iter().flatten().map(|one| (one.offset, one.bytes, one.class)).collect();
        use crate::kernel_info::ParamClass::{Pointer, Value};
        assert_eq!(params, [(0, 8, Pointer), (8, 8, Pointer), (16, 8, Pointer), (24, 8, Value)]);
        assert!(hsaco.kernels.iter().all(|kernel| kernel.max_threads == 1024 && kernel.stack_bytes == 0));
        for (module, words) in [
            (&b".version 7.0\n\0"[..], "zero byte"),
            (b".version 7.0\n.entry k(", "an end of its parameters"),
            (b"\x7fELF", "it is cubin; only PTX"),
            (b"CCOB", "a compressed bundle"),
        ] {
            assert!(declared(module).unwrap_err().0.contains(words), "{module:?}");
        }
    }

    #[test]
    fn a_module_is_what_it_is_called() {
        for (format, arch, targets, right) in [
            ("ptx", "sm_90", &[][..], true),
            ("ptx", "", &["gfx90a"], false),
            ("hsaco", "", &["gfx90a:xnack-"], true),
            ("hsaco", "", &[], false),
            ("hsaco", "gfx90a", &["gfx90a:xnack-"], true),
            ("hsaco", "gfx90a", &["gfx942", "gfx90a"], true),
            ("hsaco", "gfx90a", &["gfx942"], false),
        ] {
            let targets: Vec<String> = targets.iter().map(|target| (*target).to_owned()).collect();
            let format = of_name(format).unwrap();
            assert_eq!(format.is_called_right(arch, &targets), right, "{format:?} {arch} {targets:?}");
        }
    }
}
