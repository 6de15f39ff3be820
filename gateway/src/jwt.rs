//! Tokens that an identity provider signed (JWT), in the place of a tenant's own: a claim names the tenant, for whom the gateway then
//! shows the token that it has of that tenant.
//!
//! ```text
//! header.payload.signature ──► a key of the set, whose kind says the algorithm ──► signature ──► issuer, audience, times ──► tenant
//! ```
//!
//! What a token says of itself decides nothing before its signature is verified, but for which key of the set is tried. No algorithm
//! without a public key is known: `none` and shared secrets are refused.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

use crate::failure::{Failure, Kind, Result};
use crate::limits::{MAX_JWT_BYTES, MAX_KEY_SET_BYTES, MAX_KEYS, MAX_TOKEN_BYTES, MAX_TOKENS};

/// How far clocks may differ, in seconds.
const LEEWAY_S: u64 = 30;

/// What a signed token must be.
#[derive(Debug, Clone)]
pub struct JwtRules {
    /// The file of public keys (a JWK set).
    pub keys: PathBuf,
    /// Who must have issued it (`iss`).
    pub issuer: String,
    /// For whom it must be (`aud`).
    pub audience: String,
    /// The claim that is the tenant's name.
    pub claim: String,
    /// The folder of tenants' own tokens, each in NAME.token.
    pub tokens: PathBuf,
}

/// Why signed tokens cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// A file that cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, std::io::Error),
    /// A file that is no set of keys.
    #[error("{}: {}", .0.display(), .1)]
    Set(PathBuf, serde_json::Error),
    /// A set without a key that can be used.
    #[error("{}: no public key in it of RSA, P-256 or Ed25519", .0.display())]
    NoKeys(PathBuf),
    /// More than there may be.
    #[error("{}: more than {MAX_KEY_SET_BYTES} bytes, or {MAX_KEYS} keys", .0.display())]
    Large(PathBuf),
    /// A folder without tokens.
    #[error("{}: no file NAME.token in it: `pappus token` makes them", .0.display())]
    NoTokens(PathBuf),
}

/// What signed tokens are judged by.
#[derive(Debug)]
pub struct Jwt {
    rules: JwtRules,
    keys: Vec<Key>,
    tokens: HashMap<String, Bytes>,
}

/// A public key.
#[derive(Debug)]
struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Public {
    /// The one algorithm that is taken with a key of this kind.
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    /// True if the signature is of this key.
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Rsa { n, e } => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Self::P256(point) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Self::Ed25519(point) => {
                UnparsedPublicKey::new(&signature::ED25519, point).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    r#use: Option<String>,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

impl Jwk {
    /// The key; none of a kind that is not taken, or for encryption.
    fn key(self) -> Option<Key> {
        if self.r#use.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).ok().filter(|bytes| !bytes.is_empty());
        let public = match (&*self.kty, &*self.crv) {
            ("RSA", _) => Public::Rsa { n: bytes(&self.n)?, e: bytes(&self.e)? },
            ("EC", "P-256") => Public::P256([vec![4], bytes(&self.x)?, bytes(&self.y)?].concat()),
            ("OKP", "Ed25519") => Public::Ed25519(bytes(&self.x)?),
            _ => return None,
        };
        Some(Key { id: self.kid, public })
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that must be understood; none is.
    #[serde(default)]
    crit: Option<serde::de::IgnoredAny>,
}

/// True if a token looks like one that was signed: three parts, of which the first is an object in base64.
pub fn looks_signed(token: &[u8]) -> bool {
    token.starts_with(b"ey") && token.iter().filter(|byte| **byte == b'.').count() == 2
}

fn read(path: &Path) -> std::result::Result<Vec<u8>, JwtError> {
    let file = |error| JwtError::File(path.to_owned(), error);
    match std::fs::metadata(path).map_err(file)?.len() > MAX_KEY_SET_BYTES {
        true => Err(JwtError::Large(path.to_owned())),
        false => std::fs::read(path).map_err(file),
    }
}

impl Jwt {
    /// As the files say.
    pub fn load(rules: JwtRules) -> std::result::Result<Self, JwtError> {
        let wrong = |error| JwtError::Set(rules.keys.clone(), error);
        let set: KeySet = serde_json::from_slice(&read(&rules.keys)?).map_err(wrong)?;
        if set.keys.len() > MAX_KEYS {
            return Err(JwtError::Large(rules.keys));
        }
        let keys: Vec<Key> = set.keys.into_iter().filter_map(Jwk::key).collect();
        if keys.is_empty() {
            return Err(JwtError::NoKeys(rules.keys));
        }
        let file = |error| JwtError::File(rules.tokens.clone(), error);
        let mut tokens = HashMap::new();
        for entry in std::fs::read_dir(&rules.tokens).map_err(file)?.take(MAX_TOKENS) {
            let path = entry.map_err(file)?.path();
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".token"));
            let Some(name) = name.map(str::to_owned) else { continue };
            let token = read(&path)?.trim_ascii().to_vec();
            if !token.is_empty() && token.len() <= MAX_TOKEN_BYTES {
                tokens.insert(name, token.into());
            }
        }
        match tokens.is_empty() {
            true => Err(JwtError::NoTokens(rules.tokens)),
            false => Ok(Self { rules, keys, tokens }),
        }
    }

    /// What it was loaded by.
    pub fn rules(&self) -> &JwtRules {
        &self.rules
    }

    /// The tenant's own token, for whoever has this signed one.
    pub fn token(&self, signed: &[u8]) -> Result<Bytes> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let refused =
            |why: &str| Failure::new(Kind::Unauthenticated, format!("the signed token is not taken: {why}"));
        let tenant = self.tenant(signed, now).map_err(refused)?;
        self.tokens.get(&tenant).cloned().ok_or_else(|| refused("its tenant is none here"))
    }

    /// The tenant that a token names, at this moment in seconds since 1970.
    fn tenant(&self, signed: &[u8], now: u64) -> std::result::Result<String, &'static str> {
        if signed.len() > MAX_JWT_BYTES {
            return Err("it is longer than any");
        }
        let text = std::str::from_utf8(signed).map_err(|_| "it is no text")?;
        let (message, signature) = text.rsplit_once('.').ok_or("it has no signature")?;
        let (header, payload) = message.split_once('.').ok_or("it has no payload")?;
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "a part of it is not base64");
        let header: Header =
            serde_json::from_slice(&decoded(header)?).map_err(|_| "its header is none of a JWT")?;
        if header.crit.is_some() {
            return Err("it has extensions that must be understood");
        }
        let signature = decoded(signature)?;
        let tried = self.keys.iter().filter(|key| {
            let is_named = header.kid.is_none() || key.id.is_none() || key.id == header.kid;
            is_named && key.public.algorithm() == header.alg
        });
        if !tried.into_iter().any(|key| key.public.verifies(message.as_bytes(), &signature)) {
            return Err("no key of the set verifies it");
        }
        let claims: Value =
            serde_json::from_slice(&decoded(payload)?).map_err(|_| "its payload is no JSON")?;
        if claims["iss"].as_str() != Some(&self.rules.issuer) {
            return Err("another issuer");
        }
        let is_for_us = |value: &Value| value.as_str() == Some(&self.rules.audience);
        let for_us = match &claims["aud"] {
            Value::Array(all) => all.iter().any(is_for_us),
            one => is_for_us(one),
        };
        if !for_us {
            return Err("it is for another audience");
        }
        // Numbers with fractions are allowed, and end with their second.
        let seconds = |name: &str| claims[name].as_f64().map(|seconds| seconds as u64);
        match seconds("exp") {
            None => return Err("it says no moment at which it ends"),
            Some(end) if end.saturating_add(LEEWAY_S) <= now => return Err("it is expired"),
            Some(_) => {}
        }
        if !claims["nbf"].is_null() && seconds("nbf").is_none_or(|begin| begin > now.saturating_add(LEEWAY_S))
        {
            return Err("it is not valid yet");
        }
        claims[&self.rules.claim].as_str().map(str::to_owned).ok_or("it names no tenant")
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: u64 = 2_000_000_000;
    /// Made once by openssl: a token, and the public key of whoever signed it (testdata/README.md).
    const RSA_TOKEN: &str = include_str!("../testdata/acme.jwt").trim_ascii();
    const RSA_KEYS: &str = include_str!("../testdata/keys.json");

    fn encoded(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn jwt(keys: &Value) -> std::result::Result<Jwt, JwtError> {
        let folder = tempfile::tempdir().unwrap();
        let rules = JwtRules {
            keys: folder.path().join("keys.json"),
            issuer: "https://id.example".into(),
            audience: "pappus".into(),
            claim: "tenant".into(),
            tokens: folder.path().join("tokens"),
        };
        std::fs::write(&rules.keys, json!({ "keys": keys }).to_string()).unwrap();
        std::fs::create_dir(&rules.tokens).unwrap();
        std::fs::write(rules.tokens.join("acme.token"), "acme's own\n").unwrap();
        Jwt::load(rules)
    }

    fn claims() -> Value {
        json!({ "iss": "https://id.example", "aud": "pappus", "exp": NOW + 60, "tenant": "acme" })
    }

    fn signed(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
        let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let signature = encoded(sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    fn ed25519() -> (Ed25519KeyPair, Value) {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let x = encoded(pair.public_key());
        (pair, json!({ "kty": "OKP", "crv": "Ed25519", "kid": "e", "x": x }))
    }

    #[test]
    fn each_kind_of_key_verifies_its_own_tokens() {
        let random = SystemRandom::new();
        let (ed, ed_key) = ed25519();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        let point = ec.public_key().as_ref();
        let ec_key =
            json!({ "kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..]) });
        let rsa_key = serde_json::from_str::<Value>(RSA_KEYS).unwrap()["keys"][0].clone();
        let jwt = jwt(&json!([rsa_key, ec_key, ed_key, { "kty": "oct", "k": "c2VjcmV0" }])).unwrap();
        let by_ed =
            signed(&json!({ "alg": "EdDSA", "kid": "e" }), &claims(), |m| ed.sign(m).as_ref().to_vec());
        let by_ec =
            signed(&json!({ "alg": "ES256" }), &claims(), |m| ec.sign(&random, m).unwrap().as_ref().to_vec());
        for token in [&*by_ed, &by_ec, RSA_TOKEN] {
            assert!(looks_signed(token.as_bytes()));
            assert_eq!(jwt.tenant(token.as_bytes(), NOW).as_deref(), Ok("acme"));
        }
        assert_eq!(&jwt.token(RSA_TOKEN.as_bytes()).unwrap()[..], b"acme's own");
    }

    #[test]
    fn what_is_not_signed_or_not_for_us_is_refused() {
        let ((ed, key), (other, _)) = (ed25519(), ed25519());
        let jwt = jwt(&json!([key])).unwrap();
        let header = json!({ "alg": "EdDSA" });
        let by = |claims: &Value| signed(&header, claims, |m| ed.sign(m).as_ref().to_vec());
        assert_eq!(jwt.tenant(by(&claims()).as_bytes(), NOW).as_deref(), Ok("acme"), "the control");
        let with = |name: &str, value: Value| {
            let mut claims = claims();
            claims[name] = value;
            by(&claims)
        };
        let good = by(&claims());
        let (head, signature) = good.rsplit_once('.').unwrap();
        let none = format!("{}.{}.", encoded(r#"{"alg":"none"}"#), encoded(claims().to_string()));
        let changed = format!(
            "{}.{}.{signature}",
            head.split_once('.').unwrap().0,
            encoded(with("tenant", json!("bob")))
        );
        let secret = signed(&json!({ "alg": "HS256" }), &claims(), |_| vec![0; 32]);
        let critical = json!({ "alg": "EdDSA", "crit": ["b64"] });
        for (token, why) in [
            (none, "no key"),
            (secret, "no key"),
            (changed, "no key"),
            (signed(&header, &claims(), |m| other.sign(m).as_ref().to_vec()), "no key"),
            (
                signed(&json!({ "alg": "EdDSA", "kid": "x" }), &claims(), |m| ed.sign(m).as_ref().to_vec()),
                "no key",
            ),
            (signed(&json!({ "alg": "RS256" }), &claims(), |m| ed.sign(m).as_ref().to_vec()), "no key"),
            (signed(&critical, &claims(), |m| ed.sign(m).as_ref().to_vec()), "extensions"),
            (with("iss", json!("https://evil.example")), "issuer"),
            (with("aud", json!(["others"])), "audience"),
            (with("aud", Value::Null), "audience"),
            (with("exp", json!(NOW - LEEWAY_S)), "expired"),
            (with("exp", Value::Null), "no moment"),
            (with("exp", json!("soon")), "no moment"),
            (with("nbf", json!(NOW + 3600)), "not valid yet"),
            (with("nbf", json!("x")), "not valid yet"),
            (with("tenant", json!(7)), "no tenant"),
            ("ey.ey".to_owned(), ""),
            ("..".to_owned(), ""),
            ("x".repeat(MAX_JWT_BYTES + 1), "longer"),
        ] {
            let told = jwt.tenant(token.as_bytes(), NOW).unwrap_err();
            assert!(told.contains(why), "{token}: {told}");
        }
        // Signed and in order, of a tenant that has no token here.
        let stranger = with("tenant", json!("stranger"));
        assert_eq!(jwt.tenant(stranger.as_bytes(), NOW).as_deref(), Ok("stranger"));
        assert!(!jwt.tokens.contains_key("stranger"));
    }

    #[test]
    fn a_set_without_keys_is_an_error() {
        let mut encrypts = serde_json::from_str::<Value>(RSA_KEYS).unwrap()["keys"][0].clone();
        encrypts["use"] = json!("enc");
        let secret = json!([{ "kty": "oct", "k": "c2VjcmV0" }, encrypts]);
        assert!(matches!(jwt(&secret), Err(JwtError::NoKeys(_))));
        assert!(matches!(jwt(&json!(7)), Err(JwtError::Set(..))));
        assert!(!looks_signed(b"pappus-0.1.2") && !looks_signed(b"ey.x"));
    }
}
