//! Which compiled form of a module a device runs.
//!
//! ```text
//! cpu    wasm
//! cuda   cubin of the same architecture, else of the same generation and older,
//!        else fatbin, else the newest ptx that is not newer, else a cubin that does not say
//! ```

use pappus_protocol::Kind;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::kind::{CodeFamily, UnknownKind};

use super::compile::Compiler;
use super::records::Variant;
use crate::config::DeviceConfig;
use crate::device::process::Target;
use crate::limits::MAX_WEIGHT_BYTES;

/// What machine code is made for, as a worker says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeTarget {
    /// The kind of device.
    pub kind: Kind,
    /// Its architecture, such as `sm_90`; empty where there is only one.
    pub arch: String,
    /// Whatever else the code depends on.
    pub fingerprint: String,
}

impl CodeTarget {
    /// A worker's greeting is a stranger's word: its fingerprint becomes part of a file name.
    pub fn greeted(hello: &Hello) -> Result<Self, String> {
        let plain = |text: &str| {
            text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        if hello.version != pappus_protocol::header::VERSION {
            return Err(format!("it is of another build (protocol {})", hello.version));
        }
        if hello.fingerprint.is_empty() || !plain(&hello.fingerprint) {
            return Err("its fingerprint is no plain word".to_owned());
        }
        if !plain(&hello.arch) {
            return Err("its architecture is no plain word".to_owned());
        }
        let kind = hello.device.parse().map_err(|e: UnknownKind| e.to_string())?;
        Ok(Self { kind, arch: hello.arch.clone(), fingerprint: hello.fingerprint.clone() })
    }

    /// Remembers this target in place of what was known for the same devices; whether that is news.
    pub fn learn(&self, known: &mut Vec<CodeTarget>) -> bool {
        match known.iter_mut().find(|other| other.kind == self.kind && other.arch == self.arch) {
            Some(other) if other == self => false,
            Some(other) => {
                other.clone_from(self);
                true
            }
            None => {
                known.push(self.clone());
                true
            }
        }
    }
}

/// Configured devices that run the same machine code.
#[derive(Debug, Clone)]
pub struct DeviceClass {
    /// Their kind.
    pub kind: Kind,
    /// Their architecture.
    pub arch: String,
    /// Their names.
    pub devices: Vec<String>,
    /// The smallest of their `stack` settings; none where stacks are no memory of the device.
    pub stack_bytes: Option<u64>,
    /// What the weights of one function may take on any of them.
    pub weights_bytes: u64,
    /// Compiles for them.
    pub compiler: Compiler,
}

impl DeviceClass {
    /// The classes of the configured devices, with `program` as their workers.
    pub fn of(devices: &[DeviceConfig], program: &std::path::Path) -> Vec<Self> {
        let mut classes: Vec<Self> = Vec::new();
        for device in devices {
            let stack_bytes = device.kind.traits().has_own_memory.then_some(device.stack_bytes);
            let weights_bytes = match device.kind.traits().has_own_memory {
                true => device.weights_bytes,
                false => MAX_WEIGHT_BYTES,
            };
            match classes.iter_mut().find(|class| class.kind == device.kind && class.arch == device.arch) {
                Some(class) => {
                    class.devices.push(device.name.clone());
                    class.stack_bytes = class.stack_bytes.min(stack_bytes);
                    class.weights_bytes = class.weights_bytes.min(weights_bytes);
                }
                None => classes.push(Self {
                    kind: device.kind,
                    arch: device.arch.clone(),
                    devices: vec![device.name.clone()],
                    stack_bytes,
                    weights_bytes,
                    compiler: Compiler::new(program.to_owned(), Target { lanes: 1, ..Target::of(device) }),
                }),
            }
        }
        classes
    }

    /// The variant that these devices run, if there is one.
    pub fn choose<'v>(&self, variants: &'v [Variant]) -> Option<&'v Variant> {
        choose(variants, self.kind, &self.arch)
    }

    /// Their names, for messages.
    pub fn names(&self) -> String {
        match &self.devices[..] {
            [only] => format!("the device {only}"),
            several => format!("the devices {}", several.join(", ")),
        }
    }

    /// What they need, for messages.
    pub fn needs(&self) -> String {
        match self.kind.traits().code {
            CodeFamily::Wasm => format!("{} needs its .wasm variant", self.names()),
            CodeFamily::Nvidia => {
                let (names, arch) = (self.names(), &self.arch);
                let need = if self.devices.len() == 1 { "needs" } else { "need" };
                format!("{names} {need} a .cubin for {arch}, a .fatbin, or a .ptx for {arch} or older")
            }
        }
    }
}

/// An NVIDIA architecture: `sm_90a` is generation 9, step 0, for that chip alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Sm {
    major: u32,
    minor: u32,
}

/// The architecture, and whether code for it runs on that chip alone (`sm_90a`).
fn sm(arch: &str) -> Option<(Sm, bool)> {
    let rest = arch.strip_prefix("sm_")?;
    let digits = rest.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let number: u32 = digits.parse().ok().filter(|n| (10..1000).contains(n))?;
    Some((Sm { major: number / 10, minor: number % 10 }, digits.len() < rest.len()))
}

/// The variant of a module that a device of this kind and architecture runs, if there is one.
pub fn choose<'v>(variants: &'v [Variant], kind: Kind, arch: &str) -> Option<&'v Variant> {
    match kind.traits().code {
        CodeFamily::Wasm => variants.iter().find(|v| &*v.format == "wasm"),
        CodeFamily::Nvidia => variants
            .iter()
            .filter_map(|v| Some((rank(v, arch)?, v)))
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, v)| v),
    }
}

/// How good a variant is for a GPU; none if it does not run there.
fn rank(variant: &Variant, arch: &str) -> Option<(u32, Sm)> {
    const NONE: Sm = Sm { major: 0, minor: 0 };
    let device = sm(arch).map(|(sm, _)| sm);
    let made_for = sm(&variant.arch);
    match (&*variant.format, made_for) {
        ("cubin", _) if *variant.arch == *arch && device.is_some() => Some((6, NONE)),
        ("cubin", Some((sm, _))) if Some(sm) == device => Some((5, NONE)),
        ("cubin", Some((sm, false))) => {
            let runs = device.is_some_and(|device| sm.major == device.major && sm < device);
            runs.then_some((4, sm))
        }
        ("fatbin", _) => Some((3, NONE)),
        ("ptx", Some((sm, true))) => (Some(sm) == device).then_some((2, sm)),
        ("ptx", Some((sm, false))) => device.is_some_and(|device| sm <= device).then_some((2, sm)),
        ("ptx", None) if variant.arch.is_empty() => Some((2, NONE)),
        ("cubin", None) if variant.arch.is_empty() => Some((1, NONE)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::records::Hash;

    fn variant(name: &str) -> Variant {
        let (format, arch) = name.split_once(' ').unwrap_or((name, ""));
        Variant { format: format.into(), arch: arch.into(), sha256: Hash([0; 32]), bytes: 1 }
    }

    fn chosen(variants: &[&str], kind: Kind, arch: &str) -> Option<String> {
        let variants: Vec<_> = variants.iter().map(|name| variant(name)).collect();
        choose(&variants, kind, arch).map(|v| format!("{} {}", v.format, v.arch).trim_end().to_owned())
    }

    #[test]
    fn a_gpu_takes_what_is_closest_to_it() {
        let all = [
            "wasm",
            "ptx",
            "ptx sm_70",
            "ptx sm_90",
            "ptx sm_90a",
            "ptx sm_100",
            "fatbin",
            "cubin sm_80",
            "cubin sm_86",
            "cubin sm_90",
            "cubin sm_90a",
            "hsaco gfx942",
            "cubin",
        ];
        let without = |gone: &[&str]| -> Option<String> {
            let left: Vec<_> = all.into_iter().filter(|name| !gone.contains(name)).collect();
            chosen(&left, Kind::Cuda, "sm_90")
        };
        let mut gone = Vec::new();
        for expect in
            ["cubin sm_90", "cubin sm_90a", "fatbin", "ptx sm_90a", "ptx sm_90", "ptx sm_70", "ptx", "cubin"]
        {
            let got = without(&gone);
            match expect {
                // Equally good.
                "ptx sm_90a" | "ptx sm_90" => assert!(got.unwrap().starts_with("ptx sm_90")),
                _ => assert_eq!(got.as_deref(), Some(expect)),
            }
            gone.push(expect);
        }
        assert_eq!(without(&gone), None, "nothing newer, older generations or other vendors");
        assert_eq!(chosen(&all, Kind::Cuda, "sm_89").unwrap(), "cubin sm_86");
        assert_eq!(chosen(&all, Kind::Cuda, "sm_120").unwrap(), "fatbin");
        assert_eq!(chosen(&["ptx sm_90a", "ptx sm_100"], Kind::Cuda, "sm_103").unwrap(), "ptx sm_100");
        assert_eq!(chosen(&["ptx sm_90a", "cubin sm_90"], Kind::Cuda, "sm_103"), None);
        assert_eq!(chosen(&all, Kind::Cpu, "").unwrap(), "wasm");
        assert_eq!(chosen(&["ptx"], Kind::Cpu, ""), None);
    }

    #[test]
    fn a_greeting_must_be_plain_words_of_this_build() {
        let hello = Hello { arch: "sm_90".into(), ..Hello::new("cuda", "f-1") };
        let target = CodeTarget::greeted(&hello).unwrap();
        assert_eq!(
            (target.kind, target.arch.as_str(), target.fingerprint.as_str()),
            (Kind::Cuda, "sm_90", "f-1")
        );
        for bad in [
            Hello { version: 0, ..hello.clone() },
            Hello { fingerprint: "../x".into(), ..hello.clone() },
            Hello { fingerprint: String::new(), ..hello.clone() },
            Hello { arch: "a/b".into(), ..hello.clone() },
            Hello { device: "toaster".into(), ..hello },
        ] {
            assert!(CodeTarget::greeted(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn one_target_is_known_for_each_kind_and_architecture() {
        let target = |arch: &str, fingerprint: &str| CodeTarget {
            kind: Kind::Cuda,
            arch: arch.into(),
            fingerprint: fingerprint.into(),
        };
        let mut known = Vec::new();
        assert!(target("sm_90", "a").learn(&mut known) && target("sm_80", "a").learn(&mut known));
        assert!(!target("sm_90", "a").learn(&mut known) && target("sm_90", "b").learn(&mut known));
        assert_eq!(known, [target("sm_90", "b"), target("sm_80", "a")]);
    }
}
