//! Everything that can be written on the command line, and nothing about what it does.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};

use crate::input::{Source, Spec, SpecError};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  status --ready: the supervisor answers and is not ready to take calls
  2  the command line is wrong
  3  refused: bad input, nothing ran
  4  failed while running: kernel fault, deadline, worker lost, cancelled, internal error
  5  the supervisor cannot be reached";

const EXAMPLES: &str = "\
Examples:
  pappus demo                                   see it work, without a GPU and without a supervisor
  pappus function check matmul.json --input A=128KiB
  export PAPPUS_SOCKET=/run/pappus/pappus.sock
  pappus function add matmul matmul.json
  pappus invoke matmul --input cfg=u64:4 --input A=a.npy --output B=b.npy
  pappus --socket /run/pappus/pappus.sock.admin drain
";

const INVOKE_EXAMPLES: &str = "\
Examples:
  pappus invoke matmul --input cfg=cfg.bin --input A=a.npy --output B=b.npy
  pappus invoke resize --input A=head.bin,tail.bin --output B=b.bin --deadline 500ms
  pappus invoke matmul --input cfg=cfg.bin --input A=a.bin --repeat 1000 --json
  pappus invoke vec_add --input A=f32:1,2,3 --input B=f32:4,5,6 --output C=-
  produce | pappus invoke resize --input 'A=u8[224,224,3]:-' --output B=- | consume

Behind NAME= stands one of
  FILE[,FILE...]       files, concatenated: of a .npy file its array, of any other all bytes
  -                    stdin to its end; pipes that have a name, too. What starts as a .npy file is one
  TYPE:N[,N...]        numbers: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool
  TYPE[SHAPE]:FILE     a file that must hold this, such as i64[128,128]:a.npy
  text:ANYTHING        these bytes

An output is written raw, or as .npy where FILE ends in .npy and the blueprint gives its type. With - it goes to
stdout, and what was to be said to stderr.";

const CHECK_EXAMPLES: &str = "\
Examples:
  pappus function check inference.json
  pappus function check inference.json --input cfg=cfg.bin --input A=196KiB
  pappus function check matmul.json --input cfg=u64:4 --input 'A=i64[16385]:a.npy'
  pappus function check kernels/configs

With FILE, the words that sizes are computed from are read; with SIZE only the number of bytes is known. What else may
stand there: pappus invoke --help. Module files that lie beside the configuration are opened: they must hold the
kernels, which must take what the blueprint passes, as far as the file tells.";

const READY: &str = "\
With --ready, nothing is shown; the exit code says whether calls can be made:
  0  ready: not draining, and a worker or a standby is up
  1  not ready, with the reason on stderr
  5  no supervisor answers

Example:
  pappus status --ready";

/// Runs functions made of nothing but GPU kernels, through a Pappus supervisor.
#[derive(Debug, Parser)]
#[command(name = "pappus", version, after_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
#[command(propagate_version = true, max_term_width = 110)]
pub(crate) struct Arguments {
    /// The supervisor's socket; drain, settings, tenants and reload need its admin socket (SOCKET.admin)
    #[arg(long, global = true, env = "PAPPUS_SOCKET", value_name = "SOCKET", display_order = 100)]
    pub(crate) socket: Option<PathBuf>,
    /// A file with the token of the tenant to act for, where this user is a gateway
    #[arg(long, global = true, env = "PAPPUS_TOKEN_FILE", value_name = "FILE", display_order = 101)]
    pub(crate) token_file: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compiled kernels under a name, shared by functions
    #[command(subcommand)]
    Module(ModuleCommand),
    /// Blueprints with their modules and weights
    #[command(subcommand)]
    Function(FunctionCommand),
    /// Call a function
    #[command(after_help = format!("{INVOKE_EXAMPLES}\n\n{EXIT_CODES}"))]
    Invoke(InvokeArguments),
    /// Show what the supervisor and its devices are doing, or whether it is ready
    #[command(after_help = READY)]
    Status(StatusArguments),
    /// Show what you have and what you may have
    Quota(Json),
    /// Show all tenants with what they have and may have (admin socket)
    Tenants(Json),
    /// Print a new token for a tenant, and its hash for the supervisor's configuration
    #[command(
        after_help = "Example:\n  pappus token --output acme.token   # a file that only you can read; shows the hash\n  \
pappus token                       # the token; its hash stands on stderr\n\n\
The hash goes into the supervisor's configuration, the token to the gateway:\n  [tenants.acme]\n  token-sha256 = \"…\""
    )]
    Token {
        /// Write the token to a new file, which only you can read
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace the file if it exists
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Read the tenants of the supervisor's configuration file again (admin socket)
    Reload,
    /// Let running calls finish, accept no more, and end the supervisor (admin socket)
    Drain,
    /// Show settings, after changing those given as KEY=VALUE (admin socket)
    Settings {
        /// What to change
        #[arg(value_name = "KEY=VALUE")]
        change: Vec<Assignment<String>>,
        #[command(flatten)]
        json: Json,
    },
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
    List(Json),
    /// Show a module's variants and kernels
    Show(Named),
    /// Remove a module; functions that use it keep it
    Remove {
        /// Which one
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum FunctionCommand {
    /// Register a function with the modules and weights its configuration names
    #[command(
        after_help = "Module files are looked for beside the ones that CONFIG.json names: STEM.wasm, STEM.ptx, \
STEM.sm_90.ptx, …\nWhere there is none, a registered module called STEM is used.\n\n\
Example:\n  pappus function add mnist mnist.json --weight W0=conv.npy"
    )]
    Add {
        /// What to call it
        name: String,
        /// Its configuration
        #[arg(value_name = "CONFIG.json")]
        config: PathBuf,
        /// The file of a weights buffer, if not the one that the configuration names
        #[arg(long = "weight", value_name = "W=FILE", value_parser = assignment::<PathBuf>("NAME=FILE", "--weight W="))]
        weights: Vec<Assignment<PathBuf>>,
        /// Take the place of a function of this name: calls in flight finish with the old one, its grants stay
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        json: Json,
    },
    /// List registered functions, and those that others granted
    List(Json),
    /// Show a function
    Show(Named),
    /// Remove a function
    Remove {
        /// Which one
        name: String,
    },
    /// Let another tenant call a function; it names it OWNER/NAME, and sees nothing of it but inputs and outputs
    Grant {
        /// Which one
        name: String,
        /// Whom: a name of the supervisor's configuration, or a uid
        tenant: String,
    },
    /// Let another tenant call a function no longer
    Revoke {
        /// Which one
        name: String,
        /// Whom
        tenant: String,
    },
    /// Show who may call a function
    Grants(Named),
    /// Check a configuration without a supervisor: its buffers, memory and launches
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArguments),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The configuration, or a folder of which every .json file is checked
    #[arg(value_name = "CONFIG.json|DIR")]
    pub(crate) config: PathBuf,
    /// An input's size, or files or numbers to take its size and words from
    #[arg(
        long = "input",
        value_name = "A=SIZE|[TYPE:]FILE",
        value_parser = assignment::<SizeOrSpec>("NAME=FILE or NAME=SIZE", "--input A=")
    )]
    pub(crate) inputs: Vec<Assignment<SizeOrSpec>>,
    /// The file of a weights buffer, if not the one that the configuration names
    #[arg(long = "weight", value_name = "W=FILE", value_parser = assignment::<PathBuf>("NAME=FILE", "--weight W="))]
    pub(crate) weights: Vec<Assignment<PathBuf>>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct InvokeArguments {
    /// The function; OWNER/NAME for one that another tenant granted
    pub(crate) name: String,
    /// An input: its files, `-`, or numbers
    #[arg(
        long = "input",
        value_name = "A=[TYPE:]FILE[,FILE...]",
        value_parser = assignment::<Spec>("NAME=FILE", "--input A=")
    )]
    pub(crate) inputs: Vec<Assignment<Spec>>,
    /// Where to write an output: a file, or `-` for stdout
    #[arg(long = "output", value_name = "B=FILE", value_parser = assignment::<Destination>("NAME=FILE", "--output B="))]
    pub(crate) outputs: Vec<Assignment<Destination>>,
    /// End each call after this time, such as 500ms
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) deadline: Option<Duration>,
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

/// `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment<T> {
    pub(crate) name: String,
    pub(crate) value: T,
}

impl<T: FromStr<Err: std::fmt::Display>> Assignment<T> {
    fn read(text: &str, expected: impl FnOnce() -> String) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(Self {
                name: name.to_owned(),
                value: value.parse().map_err(|error: T::Err| error.to_string())?,
            }),
            _ => Err(expected()),
        }
    }
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Assignment<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text, || "expected KEY=VALUE".into())
    }
}

/// Reads an option's assignment; what is none is answered with its form and an example made of it.
fn assignment<T: FromStr<Err: std::fmt::Display>>(
    form: &'static str,
    option: &'static str,
) -> impl Fn(&str) -> Result<Assignment<T>, String> + Clone {
    move |text| {
        Assignment::read(text, || {
            let file = if text.is_empty() || text.contains('=') { "a.bin" } else { text };
            format!("expected {form}, e.g. {option}{file}")
        })
    }
}

/// The first name that is assigned to a second time.
fn repeated<T>(assignments: &[Assignment<T>]) -> Option<&str> {
    let names = assignments.iter().enumerate();
    let mut again = names.filter(|(at, one)| assignments[..*at].iter().any(|other| other.name == one.name));
    again.next().map(|(_, one)| one.name.as_str())
}

/// What the parser of single arguments cannot see.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Conflict {
    /// An input that is given twice.
    #[error("input {0:?} is named twice: separate its files by commas")]
    Input(String),
    /// An output that is given twice.
    #[error("output {0:?} is named twice")]
    Output(String),
    /// Stdin can be read once.
    #[error("stdin (-) is named twice: it can be read once")]
    Stdin,
    /// Two outputs in one stream could not be told apart.
    #[error("stdout (-) is named twice: write one of the outputs to a file")]
    Stdout,
}

/// Every input may be named once, and so may stdin.
fn check_inputs<'a, T>(
    inputs: &'a [Assignment<T>],
    spec: impl Fn(&'a T) -> Option<&'a Spec>,
) -> Result<(), Conflict> {
    if let Some(name) = repeated(inputs) {
        return Err(Conflict::Input(name.to_owned()));
    }
    let specs = inputs.iter().filter_map(|input| spec(&input.value));
    match specs.flat_map(|spec| &spec.sources).filter(|source| **source == Source::Stdin).count() {
        0 | 1 => Ok(()),
        _ => Err(Conflict::Stdin),
    }
}

impl CheckArguments {
    /// Names that come twice.
    pub(crate) fn check(&self) -> Result<(), Conflict> {
        check_inputs(&self.inputs, |input| match input {
            SizeOrSpec::Size(_) => None,
            SizeOrSpec::Spec(spec) => Some(spec),
        })
    }
}

impl InvokeArguments {
    /// Names that come twice.
    pub(crate) fn check(&self) -> Result<(), Conflict> {
        check_inputs(&self.inputs, Some)?;
        if let Some(name) = repeated(&self.outputs) {
            return Err(Conflict::Output(name.to_owned()));
        }
        let stdout = self.outputs.iter().filter(|output| output.value == Destination::Stdout);
        if stdout.count() > 1 { Err(Conflict::Stdout) } else { Ok(()) }
    }
}

/// An input of `function check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SizeOrSpec {
    /// Only its number of bytes.
    Size(u64),
    /// Its contents.
    Spec(Spec),
}

impl FromStr for SizeOrSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.parse::<ByteSize>() {
            Ok(size) => Ok(Self::Size(size.as_u64())),
            Err(_) => Ok(Self::Spec(text.parse()?)),
        }
    }
}

/// Where an output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// `-`.
    Stdout,
    /// A file, or a pipe that has a name.
    File(PathBuf),
}

impl FromStr for Destination {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_socket_may_stand_before_and_after_the_command() {
        for line in
            ["pappus --socket s status", "pappus status --socket s", "pappus function --socket s list"]
        {
            assert_eq!(parse(line).unwrap().socket, Some("s".into()), "{line}");
        }
    }

    #[test]
    fn inputs_outputs_and_times_are_read() {
        let line =
            "pappus invoke f --input A=a,b=c --input cfg=x --output B=o.npy --deadline 500ms --repeat 3";
        let Command::Invoke(invoke) = parse(line).unwrap().command else { panic!("no invoke") };
        assert_eq!(invoke.inputs[0].name, "A");
        let file = |name: &str| Source::File(name.into());
        assert_eq!(invoke.inputs[0].value.sources, ["a", "b=c"].map(file));
        assert_eq!(invoke.inputs[1].value.sources, [file("x")]);
        let written = Destination::File("o.npy".into());
        assert_eq!((&*invoke.outputs[0].name, &invoke.outputs[0].value), ("B", &written));
        assert_eq!((invoke.deadline, invoke.repeat), (Some(Duration::from_millis(500)), 3));
    }

    #[test]
    fn names_that_come_twice_are_usage_errors() {
        let check = |line: &str| match parse(line).unwrap().command {
            Command::Invoke(invoke) => invoke.check(),
            Command::Function(FunctionCommand::Check(check)) => check.check(),
            other => panic!("{other:?}"),
        };
        let inputs = "input \"A\" is named twice: separate its files by commas";
        for (line, why) in [
            ("pappus invoke f --input A=x --input B=x --output A=a --output B=x", Ok(())),
            ("pappus invoke f --output C=a --output C=b", Err("output \"C\" is named twice")),
            ("pappus invoke f --input A=x --input A=y", Err(inputs)),
            ("pappus function check f.json --input A=x --input B=8 --input A=8", Err(inputs)),
            ("pappus invoke f --input A=-,-", Err("stdin (-) is named twice: it can be read once")),
            (
                "pappus function check f.json --input A=- --input B=-",
                Err("stdin (-) is named twice: it can be read once"),
            ),
            (
                "pappus invoke f --output A=- --output B=-",
                Err("stdout (-) is named twice: write one of the outputs to a file"),
            ),
        ] {
            assert_eq!(check(line).map_err(|why| why.to_string()), why.map_err(str::to_owned), "{line}");
        }
    }

    #[test]
    fn a_malformed_assignment_is_refused_with_an_example() {
        for (line, words) in [
            ("pappus invoke f --input a.bin", "expected NAME=FILE, e.g. --input A=a.bin"),
            ("pappus invoke f --output =b", "expected NAME=FILE, e.g. --output B=a.bin"),
            ("pappus function check f --input 8KiB", "NAME=FILE or NAME=SIZE, e.g. --input A=8KiB"),
            ("pappus function add f g --weight w.npy", "expected NAME=FILE, e.g. --weight W=w.npy"),
            ("pappus settings workers", "expected KEY=VALUE"),
        ] {
            let why = parse(line).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            "pappus",
            "pappus invoke f --input A",
            "pappus invoke f --input =a",
            "pappus invoke f --input A=a,,b",
            "pappus invoke f --input A=u8:256",
            "pappus token --force",
            "pappus status --ready --json",
            "pappus invoke f --deadline soon",
            "pappus invoke f --repeat 0",
            "pappus module add m",
            "pappus settings workers",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), i32::from(crate::failure::USAGE), "{line}");
        }
    }
}
