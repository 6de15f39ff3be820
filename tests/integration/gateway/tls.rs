//! TLS, and certificates that clients must have.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::Gateway;
use crate::fixture::{PATIENCE, Supervisor, signal, until};

/// Who signs certificates.
type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, as text.
fn certified(by: &Authority) -> [String; 2] {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    [params.signed_by(&key, by).unwrap().pem(), key.serialize_pem()]
}

/// Files of a gateway's certificate, in the supervisor's directory.
fn files(supervisor: &Supervisor, by: &Authority) -> [PathBuf; 2] {
    let [certificate, key] = certified(by);
    [supervisor.write("gateway.pem", certificate), supervisor.write("gateway.key", key)]
}

/// The first line of an answer; an error if there is no connection.
fn ask(gateway: &Gateway, trusted: &Authority, own: Option<&[String; 2]>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some([certificate, key]) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            config
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                .unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(&gateway.http)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    // A connection that ends without a farewell is one that ended.
    if let Err(error) = stream.read_to_string(&mut text)
        && text.is_empty()
    {
        return Err(error);
    }
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn clients_see_the_certificate_and_are_encrypted() {
    let (ours, others) = (authority(), authority());
    let supervisor = Supervisor::start();
    let [certificate, key] = files(&supervisor, &ours).map(|path| path.to_str().unwrap().to_owned());
    let gateway = Gateway::alone(supervisor, &["--tls-cert", &certificate, "--tls-key", &key]);
    assert_eq!(ask(&gateway, &ours, None).unwrap(), "HTTP/1.1 200 OK");
    assert!(ask(&gateway, &others, None).is_err());
    // Who does not encrypt is not answered.
    let mut plain = TcpStream::connect(&gateway.http).unwrap();
    plain.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: g\r\n\r\n").unwrap();
    let mut told = Vec::new();
    let _ = plain.read_to_end(&mut told);
    assert!(!told.starts_with(b"HTTP"), "{told:?}");
    // Another certificate, while the gateway serves; a broken file changes nothing.
    gateway.supervisor.write("gateway.pem", "nonsense");
    signal(gateway.child.id(), Signal::HUP);
    files(&gateway.supervisor, &others);
    assert_eq!(ask(&gateway, &ours, None).unwrap(), "HTTP/1.1 200 OK");
    until("it is read again", || {
        signal(gateway.child.id(), Signal::HUP);
        ask(&gateway, &others, None).is_ok()
    });
}

#[test]
fn whoever_must_have_a_certificate_is_not_served_without() {
    let (ours, others) = (authority(), authority());
    let supervisor = Supervisor::start();
    let [certificate, key] = files(&supervisor, &ours).map(|path| path.to_str().unwrap().to_owned());
    let roots = supervisor.write("clients.pem", others.pem());
    let flags = ["--tls-cert", &*certificate, "--tls-key", &key, "--client-ca", roots.to_str().unwrap()];
    let gateway = Gateway::alone(supervisor, &flags);
    assert!(ask(&gateway, &ours, None).is_err());
    assert!(ask(&gateway, &ours, Some(&certified(&ours))).is_err(), "of another authority");
    assert_eq!(ask(&gateway, &ours, Some(&certified(&others))).unwrap(), "HTTP/1.1 200 OK");
}
