//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// The command line.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "pappus-supervisor",
    version = pappus_version::VERSION,
    about = "Runs functions made of nothing but GPU kernels, for untrusted tenants.",
    long_about = "Runs functions made of nothing but GPU kernels, for untrusted tenants.\n\n\
        One supervisor per machine: clients talk to its Unix socket, it feeds isolated worker\n\
        processes. Registered functions survive restarts in the state directory.",
    after_help = "Examples:\n  \
        pappus-supervisor --socket /run/pappus/pappus.sock --state-dir /var/lib/pappus \\\n      \
            --device cpu:workers=2,memory=256MiB\n  \
        pappus-supervisor --socket /run/pappus/pappus.sock --state-dir /var/lib/pappus \\\n      \
            --device cuda:0:workers=4,lanes=8,memory=100GiB --device cpu\n  \
        pappus-supervisor --config /etc/pappus.toml\n  \
        pappus-supervisor --config /etc/pappus.toml --check\n  \
        pappus-supervisor --list-devices\n\n\
        Devices: cpu (further ones: cpu:1 to cpu:15), cuda:N (an NVIDIA GPU by its position on the bus), cuda:GPU-UUID,\n\
        cuda:MIG-UUID, cuda:all, hip:N (an AMD GPU), hip:GPU-UUID, hip:all.\n\
        Settings of a device: workers, memory, weights, standbys, turns, quantum, min-residency, tenant-switch,\n\
        isolation, shared-limit; of GPUs also lanes, states, stack, scrub. docs/operations/devices.md has their defaults.\n\n\
        Tenants: the configuration file names them, their tokens and quotas (docs/operations/tenants.md).\n\n\
        Signals: SIGTERM and SIGINT finish what was accepted, then exit; a second one exits at once.\n\
        SIGHUP reads the configuration file again: tenants, settings, settings of devices.\n\
        Environment: PAPPUS_LOG=error|warn|info|debug|trace [default: info]; `pappus settings log=debug` changes it.\n\
        PAPPUS_LOG_FORMAT=text|json [default: text].\n\
        Exit codes: 0 drained, 1 failed, 2 usage."
)]
pub struct Flags {
    /// Unix socket to listen on.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Socket for operators (drain, settings, reload, every tenant's status), mode 0600 [default: the socket's path + ".admin"].
    #[arg(long, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
    /// Directory for registered functions.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// A device and its settings, may be repeated, e.g. cpu:workers=2,memory=256MiB or
    /// cuda:0:workers=4,lanes=8 [default: every GPU there is, else cpu].
    #[arg(long, value_name = "DEVICE[:KEY=VALUE,...]")]
    pub device: Vec<String>,
    /// Print a completion script for a shell, and exit.
    #[arg(long, value_name = "SHELL", hide = true)]
    pub completions: Option<clap_complete::Shell>,
    /// Print the manual page, and exit.
    #[arg(long, hide = true)]
    pub man: bool,
    /// Say whether flags and file are right and exit, starting nothing: with everything that is wrong with the file's form; else with
    /// all values; else with what is missing.
    #[arg(long)]
    pub check: bool,
    /// Print the devices that Pappus finds here, and exit.
    #[arg(long)]
    pub list_devices: bool,
    /// With --list-devices: as one JSON object.
    #[arg(long, requires = "list_devices")]
    pub json: bool,
    /// Address for Prometheus metrics, e.g. 127.0.0.1:9464 (off unless given).
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<String>,
    /// TOML file with the same names as these flags, and the tenants.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Layers of the sandbox without which workers must not run, e.g. landlock,pidns; or all.
    #[arg(long, value_name = "LAYERS")]
    pub sandbox_require: Option<String>,
    /// The user that workers become where the supervisor is root [default: 65533].
    #[arg(long, value_name = "UID")]
    pub worker_uid: Option<u32>,
    /// Host memory of a worker beside its device's, where there are control groups [default: 16GiB].
    #[arg(long, value_name = "SIZE")]
    pub worker_memory: Option<String>,
    /// Most invocations that may wait on one device.
    #[arg(long, value_name = "N")]
    pub queue_calls: Option<u64>,
    /// Most inline bytes that may wait on one device.
    #[arg(long, value_name = "SIZE")]
    pub queue_bytes: Option<String>,
    /// Deadline of invocations that name none.
    #[arg(long, value_name = "DURATION")]
    pub default_deadline: Option<String>,
    /// Longest deadline an invocation may ask for.
    #[arg(long, value_name = "DURATION")]
    pub max_deadline: Option<String>,
    /// How long idle workers spin before they block, in microseconds.
    #[arg(long, value_name = "N")]
    pub poll_us: Option<u32>,
    /// How long a cancelled call may run on before its worker is replaced.
    #[arg(long, value_name = "DURATION")]
    pub cancel_grace: Option<String>,
    /// How long a call may keep others from a device that takes turns, e.g. 2s; 0: for ever.
    #[arg(long, value_name = "DURATION")]
    pub overrun_limit: Option<String>,
    /// Failures in a row after which a function is refused to its caller for a while; 0: never.
    #[arg(long, value_name = "N")]
    pub quarantine_after: Option<u32>,
    /// Worker processes a minute that may end under one caller before its calls wait; 0: any number.
    #[arg(long, value_name = "N")]
    pub fault_budget: Option<u32>,
    /// Whose calls the metrics count one by one: devices (nobody's), tenants (the default), or functions (of both).
    #[arg(long, value_name = "WHOSE")]
    pub metrics_of: Option<String>,
    /// Older versions of a function that are kept when it is replaced, so that one can be used again.
    #[arg(long, value_name = "N")]
    pub kept_versions: Option<u32>,
    /// How long a session may be without a call before it ends, such as 10m.
    #[arg(long, value_name = "TIME")]
    pub session_idle: Option<String>,
    /// How long a drain waits for open sessions, whose calls go on meanwhile, such as 30s.
    #[arg(long, value_name = "TIME")]
    pub session_grace: Option<String>,
}
