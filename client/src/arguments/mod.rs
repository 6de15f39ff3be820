//! The command line: commands, options and their values; what commands do is in `command`.
//!
//! In reading order:
//! - here: commands and their options.
//! - `apply`, `bench`, `run`: those of `pappus apply`, `pappus bench` and `pappus run`.
//! - `kernel`: those of `pappus kernel`.
//! - `package`: those of `pappus package`.
//! - `top`: those of `pappus top`.
//! - `help`: examples and exit codes behind the options.
//! - `values`: types for options with a form of their own, such as `NAME=FILE`.
//! - `conflicts`: options that contradict each other.

mod apply;
mod bench;
mod conflicts;
mod help;
mod kernel;
mod package;
mod run;
#[cfg(test)]
mod tests;
mod top;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};

pub(crate) use self::apply::ApplyArguments;
pub(crate) use self::bench::{ArrivalKind, BenchArguments};
use self::help::{
    CHECK_EXAMPLES, DEVICE_SETTINGS, EXAMPLES, EXIT_CODES, INVOKE_EXAMPLES, PLAN_EXAMPLES, READY, SETTINGS,
};
pub(crate) use self::kernel::{KernelBuildArguments, KernelCommand, KernelNewArguments};
pub(crate) use self::package::{PackageCommand, PackageTuneArguments};
pub(crate) use self::run::RunArguments;
pub(crate) use self::top::TopArguments;
use self::values::assignment;
pub(crate) use self::values::{Assignment, Destination, SizeOrSpec};
use crate::input::Spec;

/// How long a supervisor may take to answer what it does at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same where a probe asks, which an orchestrator would end after a few seconds without an exit code.
const PATIENCE_OF_A_PROBE: Duration = Duration::from_secs(2);
/// A call with a deadline is answered at the deadline, and a little later on a machine that is busy.
const BEHIND_A_DEADLINE: Duration = Duration::from_secs(2);

/// GPUs of a plan, and tenants of one.
const MAX_GPUS: u64 = 1024;
const MAX_TENANTS: u64 = 1_000_000;

/// Runs functions made of nothing but GPU kernels, through a Pappus supervisor.
#[derive(Debug, Parser)]
#[command(name = "pappus", version = pappus_version::VERSION, after_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
#[command(propagate_version = true, max_term_width = 110)]
pub(crate) struct Arguments {
    /// The supervisor's socket [default: /run/pappus/pappus.sock] [env: PAPPUS_SOCKET]; drain, settings, device, tenants
    /// and reload need its admin socket (SOCKET.admin)
    // What the environment sets is read elsewhere: usage lines would show it as if it were required.
    #[arg(long, global = true, value_name = "SOCKET", display_order = 100)]
    pub(crate) socket: Option<PathBuf>,
    /// A file with the token of the tenant to act for, where this user is a gateway [env: PAPPUS_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE", display_order = 101)]
    pub(crate) token_file: Option<PathBuf>,
    /// Wait so long for a supervisor that is not there yet or does not answer [default: 10s, and nobody who listens is an
    /// error at once]
    #[arg(long, global = true, value_name = "TIME", display_order = 102, value_parser = values::some_time)]
    pub(crate) patience: Option<Duration>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Command {
    /// How long a supervisor may take to answer one request of this command, where `--patience` says nothing.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::Invoke(InvokeArguments { deadline: Some(deadline), .. }) => {
                deadline.saturating_add(BEHIND_A_DEADLINE).min(PATIENCE)
            }
            Self::Status(StatusArguments { ready: true, .. }) => PATIENCE_OF_A_PROBE,
            _ => PATIENCE,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct TenantsArguments {
    /// Show all quotas of this one
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compiled kernels under a name, shared by functions
    #[command(subcommand)]
    Module(ModuleCommand),
    /// Blueprints with their modules and weights
    #[command(subcommand)]
    Function(FunctionCommand),
    /// Make the registered functions equal to those of a folder: add, replace, remove
    #[command(after_help = apply::EXAMPLES)]
    Apply(ApplyArguments),
    /// Call a function
    #[command(after_help = format!("{INVOKE_EXAMPLES}\n\n{EXIT_CODES}"))]
    Invoke(InvokeArguments),
    /// Load functions with calls: how long they take, how many fail, and the highest rate that holds
    #[command(after_help = bench::EXAMPLES)]
    Bench(BenchArguments),
    /// Call a function of a file, without a supervisor that stays
    #[command(after_help = run::EXAMPLES)]
    Run(RunArguments),
    /// Show what the supervisor and its devices are doing, or whether it is ready
    #[command(after_help = READY)]
    Status(StatusArguments),
    /// Watch devices, workers, tenants and functions, sorted and searched by keys (admin socket for all of them)
    #[command(after_help = top::EXAMPLES)]
    Top(TopArguments),
    /// Show your usage and your quotas
    Quota(Json),
    /// Show all tenants with their usage and quotas (admin socket)
    Tenants(TenantsArguments),
    /// Print a new token for a tenant, and its hash for the supervisor's configuration
    #[command(
        after_help = "Example:\n  pappus token --output acme.token   # a file that only you can read; shows the hash\n  \
pappus token                       # the token; its hash stands on stderr\n\n\
The hash goes into the supervisor's configuration, the token to the gateway:\n  [tenants.acme]\n  token-sha256 = \"…\""
    )]
    Token {
        /// Write the token to a new file, which only you can read
        #[arg(short = 'o', long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace the file if it exists
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Read the supervisor's configuration file again: tenants, settings, settings of devices (admin socket)
    Reload(Json),
    /// Let running calls finish, accept no more, and end the supervisor (admin socket)
    Drain,
    /// Show settings, after changing those given as KEY=VALUE (admin socket)
    #[command(after_help = SETTINGS)]
    Settings {
        /// What to change
        #[arg(value_name = "KEY=VALUE")]
        change: Vec<Assignment<String>>,
        #[command(flatten)]
        json: Json,
    },
    /// Devices, and their settings, which change while they serve (admin socket)
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Compute how many GPUs tenants need, and what takes their memory; asks no supervisor
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanArguments),
    /// Write kernels in C and build them for every device, without a supervisor
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Packages of models: find out which of their kernels are fastest on a device
    #[command(subcommand)]
    Package(PackageCommand),
    /// Start a supervisor, run three workloads, check their results, and draw pictures
    Demo {
        /// The device to run on, as for `pappus-supervisor --device`
        #[arg(long, default_value = "cpu:workers=2,memory=256MiB")]
        device: String,
        /// Where to put the pictures
        #[arg(long, value_name = "DIR", default_value = "./demo-out")]
        out: PathBuf,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  mkdir -p ~/.local/share/bash-completion/completions\n  \
pappus completions bash > ~/.local/share/bash-completion/completions/pappus")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Show the version, as --version does
    Version,
    /// Write the manual pages into a folder, one for each command
    Man {
        /// Where to put them
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List the devices
    #[command(visible_alias = "ls")]
    List(Json),
    /// Show what a device is, does, and has taken of its memory
    Show(Named),
    /// Show a device's settings, after changing those given as KEY=VALUE; no call fails for it
    #[command(after_help = DEVICE_SETTINGS)]
    Set {
        /// Which one, such as cpu or cuda:0
        device: String,
        /// What to change
        #[arg(value_name = "KEY=VALUE")]
        change: Vec<Assignment<String>>,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModuleCommand {
    /// Register a module; each FILE is a variant: .wasm, .ptx, .cubin, .fatbin, .hsaco, or .ARCH.FORMAT
    #[command(
        after_help = "Example:\n  pappus module add mlops mlops.wasm mlops.sm_90.cubin mlops.gfx942.hsaco"
    )]
    Add {
        /// What to call it
        name: String,
        /// Its variants
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        json: Json,
    },
    /// List registered modules
    #[command(visible_alias = "ls")]
    List(Json),
    /// Show a module's variants and kernels; of a FILE, which needs no supervisor, what is in it
    #[command(
        after_help = "Examples:\n  pappus module show mlops\n  pappus module show ./mlops.gfx942.hsaco\n\nA name with a \
                      slash, or of a file that is there and called .wasm, .ptx, .cubin, .fatbin or .hsaco, is a FILE."
    )]
    Show(Named),
    /// Remove a module; functions that use it keep it
    #[command(visible_alias = "rm")]
    Remove {
        /// Which one
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum FunctionCommand {
    /// Register a function: a configuration with the modules and weights it names, or a package of all of it
    #[command(after_help = "A package is a .pappus file, or a folder with function.json in it.\n\
Module files are looked for beside the ones that CONFIG.json names: STEM.wasm, STEM.ptx, \
STEM.sm_90.ptx, …\nWhere there is none, a registered module called STEM is used.\n\n\
Examples:\n  pappus function add mnist mnist.json --weight W0=conv.npy\n  pappus function add resnet18 resnet18.pappus")]
    Add {
        /// What to call it
        name: String,
        /// Its configuration, or a package
        #[arg(value_name = "CONFIG.json|PACKAGE")]
        config: PathBuf,
        /// The file of a weights buffer, if not the one that the configuration names
        #[arg(long = "weight", value_name = "W=FILE", value_parser = assignment::<PathBuf>("NAME=FILE", "--weight W="))]
        weights: Vec<Assignment<PathBuf>>,
        /// Become the next version of a function of this name: calls in flight finish with the old one, which is kept as NAME@N;
        /// grants and aliases stay
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        json: Json,
    },
    /// List registered functions, and those that others granted
    #[command(visible_alias = "ls")]
    List {
        /// Only functions that others granted you
        #[arg(long)]
        granted: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Show a function
    Show(Named),
    /// Make a kept version the current one again, without an upload: calls in flight finish with what they began with
    #[command(
        after_help = "Compositions that run the function are linked again, as when it is replaced.\n\nExamples:\n  \
                      pappus function add resnet resnet.pappus --replace   # makes resnet@4 the current version\n  \
                      pappus function use resnet@3                         # takes that back"
    )]
    Use {
        /// Which version: NAME@N or NAME:ALIAS
        #[arg(value_name = "NAME@N|NAME:ALIAS")]
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Name a version of a function, which is called NAME:ALIAS then and kept
    #[command(
        after_help = "An alias that is there moves: calls find the other version from then on.\n\nExamples:\n  \
                      pappus function alias resnet:live 3\n  pappus invoke resnet:live -i x=x.npy -o y=y.npy\n  \
                      pappus function alias resnet:live --remove"
    )]
    Alias {
        /// The function and the alias
        #[arg(value_name = "NAME:ALIAS", value_parser = values::alias)]
        alias: (String, String),
        /// The number of the version
        #[arg(value_name = "N", required_unless_present = "remove", value_parser = clap::value_parser!(u32).range(1..))]
        number: Option<u32>,
        /// Let the alias name nothing any more
        #[arg(long, conflicts_with = "number")]
        remove: bool,
    },
    /// Remove a function with all its versions; by NAME@N, a kept version
    #[command(visible_alias = "rm")]
    Remove {
        /// Which one
        #[arg(value_name = "NAME[@N]")]
        name: String,
    },
    /// Let another tenant call a function; it names it OWNER/NAME, and sees nothing of it but inputs, outputs and versions
    #[command(after_help = "Whether there is such a tenant is not checked.")]
    Grant {
        /// Which one
        name: String,
        /// The tenant: a name of the supervisor's configuration, or a uid
        tenant: String,
    },
    /// Let another tenant call a function no longer
    Revoke {
        /// Which one
        name: String,
        /// The tenant
        tenant: String,
    },
    /// Show who may call a function
    Grants(Named),
    /// Leave what a tenant grants to you, now or later, out of your list; calls by its full name go on
    Decline {
        /// The tenant: a name of the supervisor's configuration, or a uid
        owner: String,
        /// List it again
        #[arg(long)]
        undo: bool,
    },
    /// Check a configuration without a supervisor: its buffers, memory and launches
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArguments),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The configuration, a package, or a folder of which every .json file is checked
    #[arg(value_name = "CONFIG.json|PACKAGE|DIR")]
    pub(crate) config: PathBuf,
    /// An input's size, its type and shape, or files or numbers to take its size and words from
    #[arg(
        short = 'i',
        long = "input",
        value_name = "A=SIZE|TYPE[N,..]|[TYPE:]FILE",
        value_parser = assignment::<SizeOrSpec>("NAME=FILE, NAME=SIZE or NAME=TYPE[N,...]", "--input A=")
    )]
    pub(crate) inputs: Vec<Assignment<SizeOrSpec>>,
    /// The file of a weights buffer, if not the one that the configuration names
    #[arg(long = "weight", value_name = "W=FILE", value_parser = assignment::<PathBuf>("NAME=FILE", "--weight W="))]
    pub(crate) weights: Vec<Assignment<PathBuf>>,
    /// Where the functions of a composition are, each a NAME.json or NAME.pappus; beside it by default
    #[arg(long, value_name = "DIR")]
    pub(crate) functions: Option<PathBuf>,
    /// Refuse a configuration with parts that nothing uses
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct InvokeArguments {
    /// The function; NAME@N or NAME:ALIAS for a version of it, OWNER/NAME for one that another tenant granted
    pub(crate) name: String,
    /// An input: its files, `-`, or numbers
    #[arg(
        short = 'i',
        long = "input",
        value_name = "A=[TYPE:]FILE[,FILE...]",
        value_parser = assignment::<Spec>("NAME=FILE", "--input A=")
    )]
    pub(crate) inputs: Vec<Assignment<Spec>>,
    /// Where to write an output: a file, or `-` for stdout
    #[arg(short = 'o', long = "output", value_name = "B=FILE", value_parser = assignment::<Destination>("NAME=FILE", "--output B="))]
    pub(crate) outputs: Vec<Assignment<Destination>>,
    /// Run it on the CPU device with checks: an access outside of all buffers is named with its line, kernels may print
    #[arg(long)]
    pub(crate) checked: bool,
    /// Where to write any buffer as the call leaves it, as with --output; the call is checked
    #[arg(long = "dump", value_name = "BUFFER=FILE", value_parser = assignment::<Destination>("NAME=FILE", "--dump B="))]
    pub(crate) dumps: Vec<Assignment<Destination>>,
    /// End each call after this time, such as 500ms; a supervisor that has not answered 2s later counts as silent
    #[arg(long, value_parser = values::some_time)]
    pub(crate) deadline: Option<Duration>,
    /// Name the request in the supervisor's log: at most 128 bytes of visible ASCII
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// Call it that many times and show how the latencies are distributed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) repeat: u64,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Only tell by the exit code whether calls can be made
    #[arg(long, conflicts_with = "json")]
    pub(crate) ready: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// The kind of GPU, such as H200
    #[arg(long, value_name = "KIND", required_unless_present = "gpu_memory")]
    pub(crate) gpu: Option<String>,
    /// The memory of a GPU of another kind, such as 24GiB
    #[arg(long, value_name = "SIZE", conflicts_with = "gpu")]
    pub(crate) gpu_memory: Option<ByteSize>,
    /// How many GPUs [default: the fewest that are enough]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_GPUS))]
    pub(crate) gpus: Option<u64>,
    /// Tenants that call functions; for each, every other owner whose functions it calls counts as one more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_TENANTS))]
    pub(crate) tenants: u64,
    /// Of these, tenants that call at the same time [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_TENANTS))]
    pub(crate) busy: Option<u64>,
    /// Calls that such a tenant has in flight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MAX_TENANTS))]
    pub(crate) in_flight: u64,
    /// Device memory that a call needs: `pappus function check` shows it
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) call: ByteSize,
    /// Weights of each tenant's functions
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) weights: ByteSize,
    /// Weights of functions that all tenants call
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) shared_weights: ByteSize,
    /// Stacks that kernels of one worker make the driver take: STACKS in `pappus status`
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) stack: ByteSize,
    /// What a process takes for itself: CONTEXTS in `pappus status` [default: 540MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) context: Option<ByteSize>,
    /// The device's setting `memory` [default: nine tenths of the GPU's]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,
    /// The device's setting `workers` [default: what a quarter of the memory holds contexts for; 62 at most beside one
    /// standby, since the driver makes 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) workers: Option<u64>,
    /// The device's setting `lanes`
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=32))]
    pub(crate) lanes: u64,
    /// The device's setting `standbys`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=64))]
    pub(crate) standbys: u64,
    /// The device's setting `weights` [default: a quarter of `memory`]
    #[arg(long, value_name = "SIZE")]
    pub(crate) weights_cache: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Which one
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Json {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
