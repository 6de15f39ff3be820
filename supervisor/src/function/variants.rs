//! Which compiled form of a module a device runs: the one that suits it best, as each format says. A process that strangers share
//! runs what can be kept in a window of addresses, so PTX also where machine code lies beside it.

use pappus_blueprint::code::CodeFormat;
use pappus_protocol::Kind;

use crate::store::records::Variant;

/// The variant of a module that a device of this kind and architecture runs, if there is one.
pub fn choose<'v>(variants: &'v [Variant], kind: Kind, arch: &str) -> Option<&'v Variant> {
    best(variants, kind, arch, |_| true)
}

/// The variant that a shared process of such a device runs, if there is one.
pub fn choose_shared<'v>(variants: &'v [Variant], kind: Kind, arch: &str) -> Option<&'v Variant> {
    best(variants, kind, arch, |format| format.can_be_fenced())
}

fn best<'v>(
    variants: &'v [Variant],
    kind: Kind,
    arch: &str,
    may: fn(&dyn CodeFormat) -> bool,
) -> Option<&'v Variant> {
    let formats = || kind.traits().formats.iter().filter(|format| may(**format));
    let format = |name: &str| formats().find(|format| format.name() == name);
    let fit = |variant: &Variant| format(&variant.format)?.suits(&variant.arch, arch);
    let fits = variants.iter().filter_map(|variant| Some((fit(variant)?, variant)));
    fits.max_by_key(|(fit, _)| *fit).map(|(_, variant)| variant)
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
        let all_of_them: Vec<_> = all.iter().map(|name| variant(name)).collect();
        let shared =
            |many: &[Variant]| choose_shared(many, Kind::Cuda, "sm_90").map(|one| one.format.clone());
        assert_eq!(shared(&all_of_them).as_deref(), Some("ptx"), "also where there is machine code");
        assert_eq!(shared(&[variant("cubin sm_90")]), None, "machine code cannot be fenced");
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
