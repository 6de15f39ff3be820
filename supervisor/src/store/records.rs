//! What a record holds. Records are small: ten thousand of them stay in memory. On disk each is one JSON object.

use std::collections::BTreeMap;

use pappus_protocol::from_worker::KernelInfo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use crate::sha256::Hash;

/// Which kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `functions/`
    Function,
    /// `modules/`
    Module,
    /// `grants/`
    Grant,
    /// `aliases/`
    Alias,
    /// `declined/`
    Declined,
}

impl Kind {
    /// Where its records lie in a tenant's folder.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Function => "functions",
            Self::Module => "modules",
            Self::Grant => "grants",
            Self::Alias => "aliases",
            Self::Declined => "declined",
        }
    }
}

/// A record that lies in a file of its name.
pub trait Record: Serialize + DeserializeOwned {
    /// Its kind.
    const KIND: Kind;

    /// The name.
    fn name(&self) -> &str;
}

macro_rules! records {
    ($($record:ident: $kind:ident),*) => {
        $(impl Record for $record {
            const KIND: Kind = Kind::$kind;

            fn name(&self) -> &str {
                &self.name
            }
        })*
    };
}

records!(
    ModuleRecord: Module,
    FunctionRecord: Function,
    GrantRecord: Grant,
    AliasRecord: Alias,
    DeclinedRecord: Declined
);

/// The compiled form of a module for one kind of device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// `wasm`, `ptx`, `cubin`, `fatbin` or `hsaco`.
    pub format: Box<str>,
    /// Such as `sm_90`; empty for the format's default.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub arch: Box<str>,
    /// Its bytes.
    pub sha256: Hash,
    /// How many.
    pub bytes: u64,
}

impl Variant {
    /// Format and architecture, for messages.
    pub fn label(&self) -> String {
        match &*self.arch {
            "" => self.format.to_string(),
            arch => format!("{} {arch}", self.format),
        }
    }
}

/// A module registered by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleRecord {
    /// Its name.
    pub name: String,
    /// Its variants, at least one.
    pub variants: Vec<Variant>,
}

/// A module as a function uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionModule {
    /// As the configuration calls it.
    pub name: Box<str>,
    /// Its variants, at least one.
    pub variants: Box<[Variant]>,
}

/// The content of a weights buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// The buffer.
    pub name: Box<str>,
    /// Its bytes.
    pub sha256: Hash,
    /// How many.
    pub bytes: u64,
}

/// A registered version of a function: the current one under the function's name, a kept one under NAME@NUMBER.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionRecord {
    /// Its name.
    pub name: String,
    /// The JSON configuration.
    pub config: Hash,
    /// In the blueprint's order.
    pub modules: Box<[FunctionModule]>,
    /// In the blueprint's order.
    pub weights: Box<[Weight]>,
    /// Names of its inputs.
    pub inputs: Box<[Box<str>]>,
    /// Its outputs.
    pub outputs: Box<[Output]>,
    /// What its inputs hold, in their order; empty where none is typed, where there is too much of it, and in records of
    /// older builds.
    #[serde(default, skip_serializing_if = "<[Declared]>::is_empty")]
    pub input_types: Box<[Declared]>,
    /// Bytes of its state; 0 where it has none, and in records of older builds.
    #[serde(default, skip_serializing_if = "is_no_bytes")]
    pub state_bytes: u64,
    /// The composition that the function is; none for a function without steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub composition: Option<Box<Composition>>,
    /// Its version number among those of its name; 1 in records of older builds.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub number: u32,
    /// The largest number that a version of this name had, in the record of the current version; 0 where that is its own.
    #[serde(default, skip_serializing_if = "is_none")]
    pub largest: u32,
}

fn first() -> u32 {
    1
}

fn is_first(number: &u32) -> bool {
    *number == 1
}

fn is_no_bytes(bytes: &u64) -> bool {
    *bytes == 0
}

fn is_linked(consecutive: &bool) -> bool {
    !consecutive
}

fn is_none(number: &u32) -> bool {
    *number == 0
}

/// What a function was made of that is a composition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Composition {
    /// The JSON of the composition.
    pub text: Hash,
    /// Names of the functions that its steps run, each once.
    pub functions: Box<[Box<str>]>,
    /// True if it is not linked, and runs as consecutive calls: the configuration of the record is what callers see of it.
    #[serde(default, skip_serializing_if = "is_linked")]
    pub consecutive: bool,
}

/// What a function declares of an input.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Element type; empty where there is none.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub dtype: Box<str>,
    /// Its dimensions, outermost first, if they are declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Box<[Dimension]>>,
}

/// A dimension of an input or an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dimension {
    /// Always so many elements.
    Fixed(u64),
    /// As many as the call's array has, by name.
    Free(Box<str>),
    /// Computed, and how, for people.
    Computed(Box<str>),
}

impl Dimension {
    /// Bytes of its text.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Fixed(_) => 0,
            Self::Free(text) | Self::Computed(text) => text.len(),
        }
    }
}

/// Roughly what a shape occupies in memory.
fn shape_bytes(shape: &Option<Box<[Dimension]>>) -> usize {
    shape.iter().flatten().map(|dim| size_of::<Dimension>() + dim.text_bytes()).sum()
}

/// An output of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The buffer.
    pub name: Box<str>,
    /// Element type, if the blueprint gives one.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub dtype: Box<str>,
    /// Its dimensions, outermost first, if they are declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Box<[Dimension]>>,
}

/// Roughly what variants occupy in memory.
fn heap_bytes(variants: &[Variant]) -> usize {
    variants.iter().map(|v| size_of::<Variant>() + v.format.len() + v.arch.len()).sum()
}

impl ModuleRecord {
    /// Roughly what it occupies in memory.
    pub fn approx_bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + heap_bytes(&self.variants)
    }
}

impl FunctionRecord {
    /// Roughly what it occupies in memory.
    pub fn approx_bytes(&self) -> usize {
        let modules =
            self.modules.iter().map(|m| size_of::<FunctionModule>() + m.name.len() + heap_bytes(&m.variants));
        let weights = self.weights.iter().map(|w| size_of::<Weight>() + w.name.len());
        let inputs = self.inputs.iter().map(|name| size_of_val(name) + name.len());
        let outputs = self
            .outputs
            .iter()
            .map(|o| size_of::<Output>() + o.name.len() + o.dtype.len() + shape_bytes(&o.shape));
        let types =
            self.input_types.iter().map(|t| size_of::<Declared>() + t.dtype.len() + shape_bytes(&t.shape));
        let functions = self.composition.iter().flat_map(|composition| {
            let names = composition.functions.iter().map(|name| size_of_val(name) + name.len());
            std::iter::once(size_of::<Composition>()).chain(names)
        });
        let parts = modules.chain(weights).chain(inputs).chain(outputs).chain(types).chain(functions);
        size_of::<Self>() + self.name.len() + parts.sum::<usize>()
    }

    /// True if both records have the same parts. Version numbers are left out, and so are descriptions of inputs and outputs:
    /// they follow from the configuration, and older builds wrote less.
    pub fn is_made_as(&self, other: &Self) -> bool {
        self.name == other.name
            && self.config == other.config
            && self.weights == other.weights
            && self.modules == other.modules
            && self.composition == other.composition
    }

    /// Every variant of its modules.
    pub fn variants(&self) -> impl Iterator<Item = &Variant> + '_ {
        self.modules.iter().flat_map(|m| m.variants.iter())
    }

    /// Every blob it needs.
    pub fn blobs(&self) -> impl Iterator<Item = Hash> + '_ {
        let modules = self.variants().map(|v| v.sha256);
        self.texts().chain(modules).chain(self.weights.iter().map(|w| w.sha256))
    }

    /// The blobs that are JSON: its configuration, and the composition that it was linked from.
    pub fn texts(&self) -> impl Iterator<Item = Hash> + '_ {
        std::iter::once(self.config).chain(self.composition.iter().map(|composition| composition.text))
    }

    /// True if it is a composition that runs as consecutive calls.
    pub fn is_consecutive(&self) -> bool {
        self.composition.as_ref().is_some_and(|composition| composition.consecutive)
    }

    /// True if it is a composition with a step that runs this function.
    pub fn runs(&self, function: &str) -> bool {
        self.composition
            .iter()
            .any(|composition| composition.functions.iter().any(|name| **name == *function))
    }
}

/// Who may call a function besides its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantRecord {
    /// Its name.
    pub name: String,
    /// Names of tenants, sorted.
    pub callers: Vec<Box<str>>,
}

/// The names of versions, by which a function can be called besides its own.
pub type Aliases = BTreeMap<Box<str>, u32>;

/// Aliases of a function's versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AliasRecord {
    /// The function.
    pub name: String,
    /// By alias, the number of a version.
    pub aliases: Aliases,
}

/// An owner whose functions are not listed for a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclinedRecord {
    /// The owner's name.
    pub name: String,
}

/// Machine code and what is in it. Records of older builds say less: they do not read, and the code is made anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeRecord {
    /// Kernels it offers.
    pub kernels: Vec<KernelInfo>,
    /// True if they cannot leave a window of addresses.
    pub fenced: bool,
    /// Bytes of variables that they have in their window.
    pub window_variables: u64,
    /// Bytes of the code.
    pub code_bytes: u64,
    /// Their hash.
    pub code_sha256: Hash,
}

#[cfg(test)]
mod tests {
    use pappus_protocol::from_worker::{ParamClass, ParamInfo};
    use serde::de::DeserializeOwned;

    use super::*;

    /// State directories hold these bytes: another form would make them unreadable.
    fn reads_and_writes<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
        record: T,
        on_disk: &str,
    ) {
        assert_eq!(serde_json::from_str::<T>(on_disk).unwrap(), record);
        assert_eq!(serde_json::to_string(&record).unwrap(), on_disk);
    }

    fn variant(format: &str, arch: &str, digit: u8) -> Variant {
        Variant { format: format.into(), arch: arch.into(), sha256: Hash([digit * 0x11; 32]), bytes: 7 }
    }

    #[test]
    fn records_keep_their_form_on_disk() {
        let [ones, twos, threes] = ["1", "2", "3"].map(|digit| digit.repeat(64));
        let wasm = format!(r#"{{"format":"wasm","sha256":"{ones}","bytes":7}}"#);
        let cubin = format!(r#"{{"format":"cubin","arch":"sm_90","sha256":"{twos}","bytes":7}}"#);
        let module = ModuleRecord {
            name: "m".into(),
            variants: vec![variant("wasm", "", 1), variant("cubin", "sm_90", 2)],
        };
        reads_and_writes(module, &format!(r#"{{"name":"m","variants":[{wasm},{cubin}]}}"#));
        let function = FunctionRecord {
            name: "f".into(),
            config: Hash([0x33; 32]),
            modules: Box::new([FunctionModule {
                name: "m".into(),
                variants: Box::new([variant("wasm", "", 1)]),
            }]),
            weights: Box::new([Weight { name: "W".into(), sha256: Hash([0x22; 32]), bytes: 8 }]),
            inputs: Box::new(["A".into(), "B".into()]),
            outputs: Box::new([
                Output { name: "C".into(), dtype: "f32".into(), shape: None },
                Output { name: "D".into(), dtype: "".into(), shape: None },
            ]),
            input_types: Box::default(),
            state_bytes: 0,
            composition: None,
            number: 1,
            largest: 0,
        };
        let on_disk =
            format!(r#"{{"name":"f","config":"{threes}","modules":[{{"name":"m","variants":[{wasm}]}}],"#)
                + &format!(r#""weights":[{{"name":"W","sha256":"{twos}","bytes":8}}],"inputs":["A","B"],"#)
                + r#""outputs":[{"name":"C","dtype":"f32"},{"name":"D"}]}"#;
        reads_and_writes(function.clone(), &on_disk);
        let free = || Dimension::Free("n".into());
        let mut typed = function.clone();
        typed.outputs[1].shape =
            Some(Box::new([free(), Dimension::Fixed(3), Dimension::Computed("2 × n".into())]));
        typed.input_types = Box::new([
            Declared { dtype: "f32".into(), shape: Some(Box::new([free()])) },
            Declared::default(),
        ]);
        let shape = r#"{"name":"D","shape":[{"free":"n"},{"fixed":3},{"computed":"2 × n"}]}"#;
        let types = r#"],"input_types":[{"dtype":"f32","shape":[{"free":"n"}]},{}]}"#;
        let on_disk = on_disk.replace(r#"{"name":"D"}"#, shape).strip_suffix("]}").unwrap().to_owned();
        assert!(typed.is_made_as(&function) && typed != function);
        reads_and_writes(typed.clone(), &(on_disk.clone() + types));
        let mut linked = typed;
        linked.composition = Some(Box::new(Composition {
            text: Hash([0x22; 32]),
            functions: Box::new(["a".into(), "b".into()]),
            consecutive: false,
        }));
        assert!(!linked.is_made_as(&function) && linked.runs("b") && !function.runs("b"));
        let composition = format!(r#","composition":{{"text":"{twos}","functions":["a","b"]}}}}"#);
        reads_and_writes(linked, &((on_disk + types).strip_suffix('}').unwrap().to_owned() + &composition));
        let third = FunctionRecord { number: 3, largest: 4, ..function.clone() };
        assert!(third.is_made_as(&function));
        let text = serde_json::to_string(&function).unwrap();
        reads_and_writes(
            third,
            &(text.strip_suffix('}').unwrap().to_owned() + r#","number":3,"largest":4}"#),
        );
        let aliases =
            AliasRecord { name: "f".into(), aliases: [("live".into(), 3), ("old".into(), 1)].into() };
        reads_and_writes(aliases, r#"{"name":"f","aliases":{"live":3,"old":1}}"#);
        let grants = GrantRecord { name: "f".into(), callers: vec!["1000".into(), "acme".into()] };
        reads_and_writes(grants, r#"{"name":"f","callers":["1000","acme"]}"#);
        reads_and_writes(DeclinedRecord { name: "acme".into() }, r#"{"name":"acme"}"#);
    }

    #[test]
    fn what_is_known_of_machine_code_keeps_its_form_on_disk() {
        let params = vec![ParamInfo { name: "n".into(), offset: 0, bytes: 8, class: ParamClass::Integer }];
        let kernel = KernelInfo {
            name: "k".into(),
            params: Some(params),
            local_bytes: 1,
            stack_bytes: 2,
            shared_bytes: 3,
            max_threads: 4,
        };
        let unknown = KernelInfo { name: "u".into(), ..KernelInfo::default() };
        let record = CodeRecord {
            kernels: vec![kernel, unknown],
            fenced: true,
            window_variables: 5,
            code_bytes: 7,
            code_sha256: Hash([0x11; 32]),
        };
        let code = format!(
            r#","fenced":true,"window_variables":5,"code_bytes":7,"code_sha256":"{}"}}"#,
            "1".repeat(64)
        );
        reads_and_writes(record, &(KERNELS.to_owned() + &code));
        let nameless = (KERNELS.to_owned() + &code).replace(r#""name":"n","#, "");
        let record: CodeRecord = serde_json::from_str(&nameless).unwrap();
        assert_eq!(&*record.kernels[0].params.as_ref().unwrap()[0].name, "", "older records have no names");
    }

    const KERNELS: &str = concat!(
        r#"{"kernels":[{"name":"k","params":[{"name":"n","offset":0,"bytes":8,"class":"Integer"}],"#,
        r#""local_bytes":1,"stack_bytes":2,"shared_bytes":3,"max_threads":4},"#,
        r#"{"name":"u","params":null,"local_bytes":0,"stack_bytes":0,"shared_bytes":0,"max_threads":0}]"#
    );
}
