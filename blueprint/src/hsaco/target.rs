//! What code is made for: a processor, and the settings of its memory's error correction (SRAM-ECC) and of its retries
//! after page faults (XNACK), which each instruction depends on. `gfx90a:sramecc+:xnack-`.

use super::CodeError;

/// A processor, or a family of them that code can be made for.
#[derive(Debug, PartialEq, Eq)]
struct Processor {
    name: &'static str,
    /// Its number in the header of a code object (`EF_AMDGPU_MACH`).
    machine: u8,
    /// The family whose code it runs.
    family: &'static str,
}

const fn of(name: &'static str, machine: u8, family: &'static str) -> Processor {
    Processor { name, machine, family }
}

/// From GFX9 on: HIP of any release that Pappus takes has left older ones behind. Numbers as LLVM 19 writes them, those of
/// gfx950, gfx1153 and gfx9-4-generic as LLVM's user guide has them.
const PROCESSORS: [Processor; 37] = [
    of("gfx900", 0x2c, "gfx9-generic"),
    of("gfx902", 0x2d, "gfx9-generic"),
    of("gfx904", 0x2e, "gfx9-generic"),
    of("gfx906", 0x2f, "gfx9-generic"),
    of("gfx908", 0x30, ""),
    of("gfx909", 0x31, "gfx9-generic"),
    of("gfx90a", 0x3f, ""),
    of("gfx90c", 0x32, "gfx9-generic"),
    of("gfx942", 0x4c, "gfx9-4-generic"),
    of("gfx950", 0x4f, "gfx9-4-generic"),
    of("gfx1010", 0x33, "gfx10-1-generic"),
    of("gfx1011", 0x34, "gfx10-1-generic"),
    of("gfx1012", 0x35, "gfx10-1-generic"),
    of("gfx1013", 0x42, "gfx10-1-generic"),
    of("gfx1030", 0x36, "gfx10-3-generic"),
    of("gfx1031", 0x37, "gfx10-3-generic"),
    of("gfx1032", 0x38, "gfx10-3-generic"),
    of("gfx1033", 0x39, "gfx10-3-generic"),
    of("gfx1034", 0x3e, "gfx10-3-generic"),
    of("gfx1035", 0x3d, "gfx10-3-generic"),
    of("gfx1036", 0x45, "gfx10-3-generic"),
    of("gfx1100", 0x41, "gfx11-generic"),
    of("gfx1101", 0x46, "gfx11-generic"),
    of("gfx1102", 0x47, "gfx11-generic"),
    of("gfx1103", 0x44, "gfx11-generic"),
    of("gfx1150", 0x43, "gfx11-generic"),
    of("gfx1151", 0x4a, "gfx11-generic"),
    of("gfx1152", 0x55, "gfx11-generic"),
    of("gfx1153", 0x58, "gfx11-generic"),
    of("gfx1200", 0x48, "gfx12-generic"),
    of("gfx1201", 0x4e, "gfx12-generic"),
    of("gfx9-generic", 0x51, "gfx9-generic"),
    of("gfx9-4-generic", 0x5f, "gfx9-4-generic"),
    of("gfx10-1-generic", 0x52, "gfx10-1-generic"),
    of("gfx10-3-generic", 0x53, "gfx10-3-generic"),
    of("gfx11-generic", 0x54, "gfx11-generic"),
    of("gfx12-generic", 0x59, "gfx12-generic"),
];

/// How a processor is set up, or what code requires of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// Code: runs either way. A device: has no such setting.
    Any,
    Off,
    On,
}

/// What code is made for, or what a device is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Target {
    processor: &'static Processor,
    sramecc: Setting,
    xnack: Setting,
}

impl Target {
    /// As HIP names a device (`gcnArchName`), a bundle its entries, and a note its object; nothing where that is no
    /// processor that is known here.
    pub fn of_text(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let name = parts.next()?;
        let processor = PROCESSORS.iter().find(|processor| processor.name == name)?;
        let mut target = Self { processor, sramecc: Setting::Any, xnack: Setting::Any };
        for part in parts {
            let (feature, setting) = match part.strip_suffix('+') {
                Some(feature) => (feature, Setting::On),
                None => (part.strip_suffix('-')?, Setting::Off),
            };
            let place = match feature {
                "sramecc" => &mut target.sramecc,
                "xnack" => &mut target.xnack,
                _ => return None,
            };
            if *place != Setting::Any {
                return None;
            }
            *place = setting;
        }
        Some(target)
    }

    /// As the header of an object of this version tells.
    pub(super) fn of_flags(flags: u32, version: u8) -> Result<Self, CodeError> {
        const GENERIC_VERSION: u32 = 0xff00_0000;
        const KNOWN: u32 = 0xfff;
        let machine = (flags & 0xff) as u8;
        let Some(processor) = PROCESSORS.iter().find(|processor| processor.machine == machine) else {
            return Err(CodeError(format!(
                "it is made for a processor that is not known here (machine {machine:#x})"
            )));
        };
        let is_family = processor.name == processor.family;
        let generic = if version >= 6 { GENERIC_VERSION } else { 0 };
        if flags & !(KNOWN | generic) != 0 {
            return Err(CodeError(format!("malformed: unknown flags {flags:#x} in its header")));
        }
        if is_family && version < 6 {
            return Err(CodeError(format!("malformed: code for {} before version 6", processor.name)));
        }
        let setting = |bits: u32| match bits {
            // The processor has no such setting, or either will do.
            0 | 1 => Setting::Any,
            2 => Setting::Off,
            _ => Setting::On,
        };
        Ok(Self { processor, xnack: setting(flags >> 8 & 3), sramecc: setting(flags >> 10 & 3) })
    }

    /// The processor without its settings, such as `gfx90a`.
    pub fn processor(&self) -> &'static str {
        self.processor.name
    }

    /// How well code for this target suits a device: more is better, none if it does not run there. Code for a
    /// processor runs on no other; code that requires a setting runs only with it; code for a family runs on all that
    /// belong to it.
    pub fn suits(&self, device: &Target) -> Option<u32> {
        let settings = [(self.sramecc, device.sramecc), (self.xnack, device.xnack)];
        let required = settings.iter().filter(|(needs, _)| *needs != Setting::Any);
        if settings.iter().any(|(needs, has)| *needs != Setting::Any && needs != has) {
            return None;
        }
        let required = required.count() as u32;
        if self.processor == device.processor {
            return Some(3 + required);
        }
        (self.processor.name == device.processor.family).then_some(required)
    }

    /// Bytes of shared memory (LDS) that a block can have.
    pub(super) fn lds_bytes(&self) -> u32 {
        match self.processor.name {
            "gfx950" => 160 << 10,
            _ => 64 << 10,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.processor.name)?;
        for (name, setting) in [("sramecc", self.sramecc), ("xnack", self.xnack)] {
            match setting {
                Setting::Any => {}
                Setting::Off => write!(f, ":{name}-")?,
                Setting::On => write!(f, ":{name}+")?,
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        Target::of_text(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn names_and_numbers_are_each_there_once_and_every_family_is_one() {
        for (at, one) in PROCESSORS.iter().enumerate() {
            let twins = PROCESSORS[..at].iter().filter(|o| o.name == one.name || o.machine == one.machine);
            assert_eq!(twins.count(), 0, "{one:?}");
            assert!(one.family.is_empty() || PROCESSORS.iter().any(|o| o.name == one.family), "{one:?}");
        }
    }

    #[test]
    fn what_clang_writes_reads() {
        // e_flags of clang 19 for each --offload-arch.
        for (flags, version, text) in [
            (0x53f, 5, "gfx90a"),
            (0x63f, 5, "gfx90a:xnack-"),
            (0xf3f, 5, "gfx90a:sramecc+:xnack+"),
            (0x54c, 4, "gfx942"),
            (0x41, 5, "gfx1100"),
            (0x48, 5, "gfx1200"),
            (0x4e, 5, "gfx1201"),
            (0x0100_0151, 6, "gfx9-generic"),
            (0x0100_0054, 6, "gfx11-generic"),
        ] {
            let read = Target::of_flags(flags, version).unwrap();
            assert_eq!((read, read.to_string().as_str()), (target(text), text));
        }
        for (flags, version, words) in [
            (0x2a, 5, "not known here (machine 0x2a)"),
            (0x0100_053f, 5, "unknown flags"),
            (0x1053f, 6, "unknown flags"),
            (0x151, 5, "gfx9-generic before version 6"),
        ] {
            let why = Target::of_flags(flags, version).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn code_runs_on_its_own_processor_with_its_own_settings_or_on_a_member_of_its_family() {
        let best = |codes: &[&'static str], device: &str| {
            let device = target(device);
            let suiting = codes.iter().filter_map(|code| Some((target(code).suits(&device)?, *code)));
            suiting.max().map(|(_, code)| code)
        };
        let all = [
            "gfx90a",
            "gfx90a:xnack-",
            "gfx90a:sramecc+:xnack-",
            "gfx90a:xnack+",
            "gfx942",
            "gfx9-4-generic",
            "gfx9-generic",
            "gfx11-generic",
        ];
        for (device, expected) in [
            ("gfx90a:sramecc+:xnack-", Some("gfx90a:sramecc+:xnack-")),
            ("gfx90a:sramecc-:xnack-", Some("gfx90a:xnack-")),
            ("gfx90a:sramecc-:xnack+", Some("gfx90a:xnack+")),
            ("gfx90a", Some("gfx90a")),
            ("gfx942:sramecc+:xnack-", Some("gfx942")),
            ("gfx950:sramecc+:xnack-", Some("gfx9-4-generic")),
            ("gfx906:sramecc+:xnack-", Some("gfx9-generic")),
            ("gfx908:sramecc+:xnack-", None),
            ("gfx1100", Some("gfx11-generic")),
            ("gfx1201", None),
        ] {
            assert_eq!(best(&all, device), expected, "{device}");
        }
        for wrong in ["", "gfx", "gfx90a:", "gfx90a:xnack", "gfx90a:xnack+:xnack+", "gfx90a:trap+", "GFX90A"]
        {
            assert_eq!(Target::of_text(wrong), None, "{wrong}");
        }
    }
}
