//! What a source of kernels is compiled for: names as one types them, file names, the compiler's options.

use std::str::FromStr;

use pappus_blueprint::code::{CodeFormat, Hsaco, Ptx, Wasm};

/// A device, or an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// As it is typed.
    pub(crate) name: String,
    pub(crate) code: Code,
    /// The first version of the compiler that knows it.
    pub(crate) compiler: u32,
}

/// What is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// WebAssembly for the CPU device.
    Wasm,
    /// PTX, in the version that the compiler's feature names.
    Ptx(&'static str),
    /// Machine code of AMD's.
    Hsaco,
}

/// What is built where nothing else is asked for: the CPU device, PTX for all GPUs and for Hopper, two AMD processors.
pub(crate) const DEFAULTS: &str = "cpu,sm_70,sm_90,gfx90a,gfx942";

/// The version that the kernels of Pappus are built with; what it makes of them is the same everywhere.
pub(crate) const PREFERRED_COMPILER: u32 = 19;

/// Architectures, each with the oldest PTX for it that its drivers take (R550 takes 8.4), and the first clang for it.
const PTX: [(&str, &str, u32); 11] = [
    ("sm_70", "ptx63", PREFERRED_COMPILER),
    ("sm_72", "ptx63", PREFERRED_COMPILER),
    ("sm_75", "ptx63", PREFERRED_COMPILER),
    ("sm_80", "ptx70", PREFERRED_COMPILER),
    ("sm_86", "ptx71", PREFERRED_COMPILER),
    ("sm_87", "ptx74", PREFERRED_COMPILER),
    ("sm_89", "ptx78", PREFERRED_COMPILER),
    ("sm_90", "ptx78", PREFERRED_COMPILER),
    ("sm_90a", "ptx80", PREFERRED_COMPILER),
    ("sm_100", "ptx86", 20),
    ("sm_120", "ptx87", 20),
];

/// Architectures whose file names do not have them: what is taken where nothing fits better.
const UNNAMED: [&str; 3] = ["cpu", "sm_70", "gfx90a"];

/// The same on every target. Contracting a*b+c into one rounding would make devices disagree, and an overflowing index must
/// not become undefined behaviour where the bounds come from the data.
const COMMON: [&str; 7] =
    ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-ident", "-Wall", "-Wextra"];

impl FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let is_amd =
            |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let known = PTX.iter().find(|(arch, ..)| *arch == name);
        let (code, compiler) = match known {
            Some(&(_, version, compiler)) => (Code::Ptx(version), compiler),
            None if name == "cpu" => (Code::Wasm, PREFERRED_COMPILER),
            None if name.strip_prefix("gfx").is_some_and(is_amd) => (Code::Hsaco, PREFERRED_COMPILER),
            None => {
                let all: Vec<&str> = PTX.iter().map(|(arch, ..)| *arch).collect();
                return Err(format!("known are cpu, {} and AMD's gfx90a, gfx942, …", all.join(", ")));
            }
        };
        Ok(Self { name: name.to_owned(), code, compiler })
    }
}

impl Target {
    /// The name of a module file that is made of `STEM.c`, as `function add` looks for it.
    pub(crate) fn file_name(&self, stem: &str) -> String {
        let format: &dyn CodeFormat = match self.code {
            Code::Wasm => &Wasm,
            Code::Ptx(_) => &Ptx,
            Code::Hsaco => &Hsaco,
        };
        let format = format.name();
        match UNNAMED.contains(&self.name.as_str()) {
            true => format!("{stem}.{format}"),
            false => format!("{stem}.{}.{format}", self.name),
        }
    }

    /// The compiler's options, but for the files. For the CPU device it makes an object, otherwise all there is to make.
    pub(crate) fn options(&self) -> Vec<String> {
        let special = match self.code {
            Code::Wasm => "--target=wasm32-unknown-unknown -x c -std=c2x -ffreestanding -nostdlib -msimd128 \
                           -mbulk-memory -mmutable-globals -mnontrapping-fptoint -c"
                .to_owned(),
            Code::Ptx(version) => format!(
                "-x cuda -std=c++20 --cuda-device-only --cuda-gpu-arch={} -nocudainc -nocudalib \
                 -Xclang -target-feature -Xclang +{version} -fuse-cuid=none -S",
                self.name
            ),
            Code::Hsaco => format!(
                "-x hip -std=c++20 --cuda-device-only --offload-arch={} -nogpuinc -nogpulib -fuse-cuid=none \
                 --no-gpu-bundle-output",
                self.name
            ),
        };
        COMMON.into_iter().chain(special.split_ascii_whitespace()).map(str::to_owned).collect()
    }
}

/// The linker's options for wasm, but for the files. The stack comes first: what runs over its end traps.
pub(crate) const WASM_LINK: [&str; 7] = [
    "--no-entry",
    "--strip-all",
    "--import-memory",
    "--export=__stack_pointer",
    "--stack-first",
    "-z",
    "stack-size=65536",
];

#[cfg(test)]
mod tests {
    use pappus_client::variants;

    use super::*;

    #[test]
    fn files_are_named_as_they_are_looked_for() {
        for (name, file) in [
            ("cpu", "m.wasm"),
            ("sm_70", "m.ptx"),
            ("sm_90", "m.sm_90.ptx"),
            ("sm_90a", "m.sm_90a.ptx"),
            ("gfx90a", "m.hsaco"),
            ("gfx942", "m.gfx942.hsaco"),
        ] {
            let target: Target = name.parse().unwrap();
            assert_eq!(target.file_name("m"), file);
            assert_eq!(variants::stem(file.as_ref()), "m");
        }
        assert!(DEFAULTS.split(',').all(|name| name.parse::<Target>().is_ok()));
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        for name in ["", "wasm", "sm_7", "gfx", "gfx90a:xnack-", "gfx/../x"] {
            let why = name.parse::<Target>().unwrap_err();
            assert!(why.contains("cpu, sm_70, ") && why.contains("gfx942"), "{why}");
        }
    }
}
