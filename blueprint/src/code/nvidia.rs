//! The formats of NVIDIA's: PTX, which the driver compiles; machine code (cubin); and bundles of both (fatbin).
//!
//! A device takes a cubin of the same architecture, else of the same generation and older, else a fatbin, else the newest
//! PTX that is not newer, else a cubin that does not say what it is for.

use std::collections::BTreeMap;

use object::read::elf::{ElfFile64, FileHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};

use super::{CodeFormat, Declare, Fit, Kernel, Part};
use crate::hsaco;
use crate::kernel_info::{CodeError, CodeInfo, KernelInfo, ParamClass, ParamInfo, check_size};
use crate::ptx;

/// What architectures begin with.
const PREFIX: &str = "sm_";
/// From this architecture on, blocks can be launched in clusters, and kernels can read tensor maps.
const CLUSTERS_FROM: u32 = 90;

/// How a variant is made, worst first: what [`Fit`] begins with.
const SAYS_NOTHING: u32 = 1;
const PTX: u32 = 2;
const FATBIN: u32 = 3;
const GENERATION: u32 = 4;
const ARCHITECTURE: u32 = 5;
const EXACT: u32 = 6;

/// PTX.
#[derive(Debug)]
pub struct Ptx;
/// Machine code.
#[derive(Debug)]
pub struct Cubin;
/// Machine code and PTX for several architectures.
#[derive(Debug)]
pub struct Fatbin;

/// The number of an architecture, and whether code for it runs on that chip alone: `sm_90a` is 90 and true.
fn sm(arch: &str) -> Option<(u32, bool)> {
    let rest = arch.strip_prefix(PREFIX)?;
    let digits = rest.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let number = digits.parse().ok().filter(|n| (10..1000).contains(n))?;
    Some((number, digits.len() < rest.len()))
}

/// True if a device of this architecture launches blocks in clusters and has tensor maps.
pub fn has_clusters(arch: &str) -> bool {
    sm(arch).is_some_and(|(number, _)| number >= CLUSTERS_FROM)
}

impl CodeFormat for Ptx {
    fn name(&self) -> &'static str {
        "ptx"
    }

    fn arch_prefix(&self) -> &'static str {
        PREFIX
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        let text = std::str::from_utf8(bytes);
        text.is_ok_and(|text| text.lines().any(|line| line.trim_start().starts_with(".version")))
    }

    fn suits(&self, made_for: &str, device: &str) -> Option<Fit> {
        if made_for.is_empty() {
            return Some((PTX, 0));
        }
        let ((made_for, that_chip), (device, _)) = (sm(made_for)?, sm(device)?);
        let runs = if that_chip { made_for == device } else { made_for <= device };
        runs.then_some((PTX, made_for))
    }

    fn can_be_fenced(&self) -> bool {
        true
    }

    fn needed(&self, device: &str) -> String {
        format!("a .ptx for {device} or older")
    }

    /// Kernels are left out where a declaration is malformed: the driver's compiler is the judge.
    fn read(&self, bytes: &[u8]) -> Result<Vec<Part>, CodeError> {
        let text = std::str::from_utf8(bytes).map_err(|_| "PTX that is no text")?;
        let kernel = |info: KernelInfo| {
            let most = Some(info.max_threads).filter(|most| *most > 0);
            let figures = most.map(|most| ("max_threads", most.into())).into_iter().collect();
            Kernel { info, figures }
        };
        let kernels = ptx::entries(text.trim_end_matches('\0')).ok();
        Ok(vec![Part {
            target: ptx::target(text).unwrap_or_default().to_owned(),
            kernels: kernels.map(|kernels| kernels.into_iter().map(kernel).collect()),
            figures: Vec::new(),
        }])
    }

    fn declared(&self) -> Option<Declare> {
        Some(|bytes| {
            let text = std::str::from_utf8(bytes).map_err(|e| CodeError(e.to_string()))?;
            if text.contains('\0') {
                return Err("the PTX text has a zero byte in it".into());
            }
            let kernels = ptx::entries(text).map_err(|e| CodeError(e.to_string()))?;
            check_size(&kernels)?;
            Ok(CodeInfo { kernels, ..CodeInfo::default() })
        })
    }
}

impl CodeFormat for Cubin {
    fn name(&self) -> &'static str {
        "cubin"
    }

    fn arch_prefix(&self) -> &'static str {
        PREFIX
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(b"\x7fELF") && !hsaco::recognises(bytes)
    }

    fn suits(&self, made_for: &str, device: &str) -> Option<Fit> {
        if made_for.is_empty() {
            return Some((SAYS_NOTHING, 0));
        }
        let ((number, that_chip), (there, _)) = (sm(made_for)?, sm(device)?);
        match made_for == device {
            true => Some((EXACT, 0)),
            _ if number == there => Some((ARCHITECTURE, 0)),
            _ => (!that_chip && number / 10 == there / 10 && number < there).then_some((GENERATION, number)),
        }
    }

    fn needed(&self, device: &str) -> String {
        format!("a .cubin for {device}")
    }

    fn read(&self, bytes: &[u8]) -> Result<Vec<Part>, CodeError> {
        Ok(vec![part(bytes).ok_or("no machine code (an ELF file), or cut off")?])
    }
}

impl CodeFormat for Fatbin {
    fn name(&self) -> &'static str {
        "fatbin"
    }

    fn arch_prefix(&self) -> &'static str {
        PREFIX
    }

    /// True if bytes begin with the magic number of `fatBinaryHeader` in the CUDA toolkit.
    fn recognises(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(&0xba55_ed50u32.to_le_bytes())
    }

    fn suits(&self, _made_for: &str, _device: &str) -> Option<Fit> {
        Some((FATBIN, 0))
    }

    fn needed(&self, _device: &str) -> String {
        "a .fatbin".to_owned()
    }

    fn read(&self, _bytes: &[u8]) -> Result<Vec<Part>, CodeError> {
        Ok(vec![Part::default()])
    }
}

/// Functions in NVIDIA's machine code with their parameters, and the architecture in its header.
fn part(content: &[u8]) -> Option<Part> {
    /// From this version of its header on, the architecture lies one byte further up.
    const LATER: u8 = 8;
    let file = ElfFile64::<LittleEndian>::parse(content).ok()?;
    let defined = file.symbols().chain(file.dynamic_symbols()).filter(|symbol| !symbol.is_undefined());
    let mut names: Vec<String> = defined.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect();
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    let header = file.elf_header();
    let flags = header.e_flags(LittleEndian);
    let sm = if header.e_ident().abi_version >= LATER { flags >> 8 } else { flags } & 0xff;
    let kernel = |name: String| -> Kernel {
        let info = file.section_by_name(&format!(".nv.info.{name}")).and_then(|section| section.data().ok());
        KernelInfo { name, params: info.and_then(params_of_cubin), ..KernelInfo::default() }.into()
    };
    let kernels = Some(names.into_iter().map(kernel).collect());
    Some(Part { target: format!("sm_{sm}"), kernels, figures: Vec::new() })
}

/// What a cubin tells of a kernel: records of one attribute each, of which those of parameters are read. `None` where there
/// are none, or any is of an unknown form.
fn params_of_cubin(mut info: &[u8]) -> Option<Vec<ParamInfo>> {
    const SIZED: u8 = 4;
    const PARAMETER: u8 = 0x17;
    let mut params = BTreeMap::new();
    while let Some((&[form, attribute, low, high], behind)) = info.split_first_chunk() {
        info = behind;
        match form {
            1..SIZED => continue,
            SIZED => {}
            _ => return None,
        }
        let (value, behind) = info.split_at_checked(u16::from_le_bytes([low, high]).into())?;
        info = behind;
        if attribute == PARAMETER {
            // An index, which parameter, its offset, and flags below its bytes.
            let &[_, _, _, _, n0, n1, o0, o1, f0, f1, f2, f3] = value.first_chunk()?;
            let bytes = u32::from_le_bytes([f0, f1, f2, f3]) >> 18;
            let offset = u16::from_le_bytes([o0, o1]).into();
            let param = ParamInfo { name: Box::default(), offset, bytes, class: ParamClass::Unknown };
            params.insert(u16::from_le_bytes([n0, n1]), param);
        }
    }
    let whole = !params.is_empty() && params.keys().copied().eq(0..u16::try_from(params.len()).ok()?);
    whole.then(|| params.into_values().collect())
}
