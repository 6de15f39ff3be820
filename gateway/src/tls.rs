//! TLS: the certificate that clients see, and, where that is asked for, certificates that clients must have. Files are read again on
//! SIGHUP: connections that come later use what is in them; where they are wrong, what was read before.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::limits::HANDSHAKE_TIME;

/// Where certificates and keys are.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The gateway's certificate, and those between it and a root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Roots of certificates that clients must have; none where clients need none.
    pub client_roots: Option<PathBuf>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that is not what it should be.
    #[error("{}: {}", .0.display(), .1)]
    Pem(PathBuf, pem::Error),
    /// A file without a certificate.
    #[error("{}: no certificate in it", .0.display())]
    Empty(PathBuf),
    /// Roots by which no client could be told.
    #[error("{}: {}", .0.display(), .1)]
    Roots(PathBuf, rustls::server::VerifierBuilderError),
    /// A certificate that is none, or whose key is another.
    #[error("{}: {}", .0.display(), .1)]
    Certificate(PathBuf, rustls::Error),
}

/// What connections are accepted with.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    protocol: &'static [u8],
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// As the files say, for connections that speak this protocol.
    pub fn load(files: TlsFiles, protocol: &'static [u8]) -> Result<Self, TlsError> {
        let config = RwLock::new(Arc::new(read(&files, protocol)?));
        Ok(Self { files, protocol, config })
    }

    /// Reads the files again.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = Arc::new(read(&self.files, self.protocol)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Agrees with a client on keys; an error if it takes too long, or has not the certificate that it must have.
    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        let accepted = tokio::time::timeout(HANDSHAKE_TIME, TlsAcceptor::from(config).accept(stream));
        accepted.await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |error| TlsError::Pem(path.to_owned(), error);
    let all: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
    match all.is_empty() {
        true => Err(TlsError::Empty(path.to_owned())),
        false => Ok(all),
    }
}

fn read(files: &TlsFiles, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
    let certificate = |error| TlsError::Certificate(files.certificate.clone(), error);
    let chain = certificates(&files.certificate)?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| TlsError::Pem(files.key.clone(), error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(certificate)?;
    let builder = match &files.client_roots {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|error| TlsError::Certificate(path.clone(), error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| TlsError::Roots(path.clone(), error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(certificate)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}
