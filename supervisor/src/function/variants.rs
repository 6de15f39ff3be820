//! Which compiled form of a module a device runs.
//!
//! ```text
//! cpu    wasm
//! cuda   cubin of the same architecture, else of the same generation and older,
//!        else fatbin, else the newest ptx that is not newer, else a cubin that does not say
//! hip    hsaco for exactly this processor and its settings, else for the processor, else for its family,
//!        else one that does not say (it may be a bundle)
//! ```

use pappus_blueprint::hsaco;
use pappus_protocol::Kind;
use pappus_protocol::kind::CodeFamily;

use crate::store::records::Variant;

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
        CodeFamily::Amd => variants
            .iter()
            .filter(|v| &*v.format == "hsaco")
            .filter_map(|v| Some((suits(&v.arch, arch)?, v)))
            .max_by_key(|(how_well, _)| *how_well)
            .map(|(_, v)| v),
    }
}

/// How well machine code for `made_for` suits an AMD GPU; none if it does not run there.
fn suits(made_for: &str, device: &str) -> Option<u32> {
    if made_for.is_empty() {
        return Some(0);
    }
    let suits = hsaco::Target::of_text(made_for)?.suits(&hsaco::Target::of_text(device)?)?;
    Some(suits + 1)
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
    use crate::store::records::Hash;

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
    fn an_amd_gpu_takes_code_for_its_processor_and_settings_before_code_for_more() {
        let mi210 = "gfx90a:sramecc+:xnack-";
        let all =
            ["wasm", "hsaco", "hsaco gfx90a", "hsaco gfx90a:xnack-", "hsaco gfx90a:xnack+", "hsaco gfx942"];
        for (left, best) in [(6, "hsaco gfx90a:xnack-"), (3, "hsaco gfx90a"), (2, "hsaco")]
            .map(|(left, best)| (&all[..left], best))
        {
            assert_eq!(chosen(left, Kind::Hip, mi210).unwrap(), best);
        }
        assert_eq!(
            chosen(&all[4..], Kind::Hip, mi210),
            None,
            "neither another setting nor another processor"
        );
        assert_eq!(chosen(&all[2..], Kind::Hip, "gfx942:sramecc+:xnack-").unwrap(), "hsaco gfx942");
        assert_eq!(chosen(&["wasm", "ptx", "cubin sm_90"], Kind::Hip, mi210), None);
        assert_eq!(chosen(&["hsaco gfx90a"], Kind::Cuda, "sm_90"), None);
    }
}
