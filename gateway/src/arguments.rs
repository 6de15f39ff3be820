//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Parser;

use crate::jwt::JwtRules;

/// The command line.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "pappus-gateway",
    version = pappus_version::VERSION,
    about = "Serves registered functions over HTTP and gRPC, by the Open Inference Protocol.",
    long_about = "Serves registered functions over HTTP and gRPC, by the Open Inference Protocol v2\n\
        (KServe, Triton): for curl, tritonclient and whatever else speaks it.\n\n\
        It is a client of the supervisor, needs no rights and no GPU, and acts for the tenant\n\
        whose token comes with a request: `Authorization: Bearer TOKEN`. The supervisor checks\n\
        every token, and takes tokens only from users that its configuration lists as `gateways`.",
    after_help = "Examples:\n  \
        pappus-gateway --socket /run/pappus/pappus.sock\n  \
        pappus-gateway --socket /tmp/pappus.sock --own-tenant     # on a laptop: no tokens\n  \
        curl -s localhost:8000/v2/models/vec_add\n  \
        curl -s localhost:8000/v2/models/vec_add/infer -d \\\n      \
            '{\"inputs\": [{\"name\": \"A\", \"datatype\": \"FP32\", \"data\": [1, 2, 3]},\n                    \
            {\"name\": \"B\", \"datatype\": \"FP32\", \"data\": [10, 20, 30]}]}'\n\n\
        A function of your own is the model NAME, one that another tenant granted OWNER.NAME.\n\n\
        Signals: SIGTERM and SIGINT let accepted requests finish, for 30 s at most; a second one exits at once.\n\
        SIGHUP reads certificates, keys and tokens again.\n\
        Environment: PAPPUS_SOCKET; PAPPUS_LOG=error|warn|info|debug|trace [default: info], which\n\
        `curl -d debug ADDRESS/log` changes at the address of --metrics; PAPPUS_LOG_FORMAT=text|json [default: text];\n\
        OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_BSP_*.\n\
        Exit codes: 0 ended by a signal, 1 failed, 2 usage.\n\
        docs/gateway.md has the routes, the errors and the limits."
)]
pub struct Arguments {
    /// The supervisor's Unix socket for clients.
    #[arg(long, value_name = "PATH", env = "PAPPUS_SOCKET", required_unless_present_any = ["man", "completions"])]
    pub socket: Option<PathBuf>,
    /// Print a completion script for a shell, and exit.
    #[arg(long, value_name = "SHELL", hide = true)]
    pub completions: Option<clap_complete::Shell>,
    /// Print the manual page, and exit.
    #[arg(long, hide = true)]
    pub man: bool,
    /// Address to serve HTTP on.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8000")]
    pub http: SocketAddr,
    /// Address to serve gRPC on.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8001")]
    pub grpc: SocketAddr,
    /// Take requests without a token, for the tenant that this program's own user is. Whoever reaches the address is that tenant.
    #[arg(long)]
    pub own_tenant: bool,
    /// Certificate to serve TLS with, and those between it and a root (PEM); SIGHUP reads the files again.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Roots of certificates that clients must have (PEM): whoever has none is not served.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
    /// Take tensors in shared memory of this machine (POSIX objects, as of shm_open): whoever has a token may name any object that
    /// this program's user can open.
    #[arg(long)]
    pub shared_memory: bool,
    /// Public keys of an identity provider (a JWK set): tokens that it signed (JWT) are taken, too; SIGHUP reads the files again.
    #[arg(long, value_name = "FILE", requires_all = ["jwt_issuer", "jwt_audience", "jwt_tokens"])]
    pub jwt_keys: Option<PathBuf>,
    /// Who must have issued such a token (`iss`).
    #[arg(long, value_name = "TEXT", requires = "jwt_keys")]
    pub jwt_issuer: Option<String>,
    /// For whom such a token must be (`aud`).
    #[arg(long, value_name = "TEXT", requires = "jwt_keys")]
    pub jwt_audience: Option<String>,
    /// The claim of such a token that is the tenant's name.
    #[arg(long, value_name = "NAME", default_value = "tenant")]
    pub jwt_claim: String,
    /// Folder with each such tenant's own token, in NAME.token.
    #[arg(long, value_name = "DIR", requires = "jwt_keys")]
    pub jwt_tokens: Option<PathBuf>,
    /// Address for Prometheus metrics and the log's level, e.g. 127.0.0.1:8002 (off unless given).
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Send traces to this OpenTelemetry collector (OTLP over gRPC), e.g. http://localhost:4317 (off unless given).
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp: Option<String>,
    /// Connections to the supervisor, shared by all tenants.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// The largest body of a request, before and after decompression.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub max_body: ByteSize,
    /// Memory for bodies of all requests together.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub memory: ByteSize,
}

impl Arguments {
    /// What signed tokens must be, where they are taken.
    pub fn jwt(&self) -> Option<JwtRules> {
        Some(JwtRules {
            keys: self.jwt_keys.clone()?,
            issuer: self.jwt_issuer.clone()?,
            audience: self.jwt_audience.clone()?,
            claim: self.jwt_claim.clone(),
            tokens: self.jwt_tokens.clone()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let given = Arguments::parse_from(["g", "--socket", "/s", "--max-body", "1KiB"]);
        assert_eq!((given.max_body.as_u64(), given.http.port(), given.own_tenant), (1024, 8000, false));
        assert!(Arguments::try_parse_from(["g", "--socket", "/s", "--connections", "0"]).is_err());
    }
}
