//! What machine code is made for: the kind of device, its architecture, and a fingerprint of everything else that it
//! depends on.

use pappus_protocol::Kind;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::kind::UnknownKind;

/// What machine code is made for, as a worker says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeTarget {
    /// The kind of device.
    pub kind: Kind,
    /// The architecture, such as `sm_90`; empty for a kind with only one.
    pub arch: String,
    /// Stands for everything else that the code depends on.
    pub fingerprint: String,
}

/// A worker's greeting does not say for what it needs machine code.
#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    /// It speaks another version of the protocol.
    #[error("it is of another build (protocol {0})")]
    OtherBuild(u16),
    /// It names a kind of device that there is not.
    #[error(transparent)]
    Kind(#[from] UnknownKind),
    /// Its fingerprint cannot be part of a file name.
    #[error("its fingerprint is no plain word")]
    Fingerprint,
    /// Nor can its architecture.
    #[error("its architecture is no plain word")]
    Arch,
}

impl CodeTarget {
    /// As a worker's greeting says. It may say anything, and fingerprint and architecture become parts of file names.
    pub fn greeted(hello: &Hello) -> Result<Self, GreetingError> {
        let plain = |text: &str, besides: &[u8]| {
            text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric() || besides.contains(&b))
        };
        if hello.version != pappus_protocol::header::VERSION {
            return Err(GreetingError::OtherBuild(hello.version));
        }
        if hello.fingerprint.is_empty() || !plain(&hello.fingerprint, b"-_") {
            return Err(GreetingError::Fingerprint);
        }
        // AMD's have settings behind them: `gfx90a:sramecc+:xnack-`.
        if !plain(&hello.arch, b"-_:+") {
            return Err(GreetingError::Arch);
        }
        let kind = hello.device.parse()?;
        Ok(Self { kind, arch: hello.arch.clone(), fingerprint: hello.fingerprint.clone() })
    }

    /// Remembers this target in place of what was known for the same devices; true if that is news.
    pub fn learn(&self, known: &mut Vec<CodeTarget>) -> bool {
        match known.iter_mut().find(|other| other.kind == self.kind && other.arch == self.arch) {
            Some(other) if other == self => false,
            Some(other) => {
                other.clone_from(self);
                true
            }
            None => {
                known.push(self.clone());
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_must_be_plain_words_of_this_build() {
        let hello = Hello { arch: "sm_90".into(), ..Hello::new("cuda", "f-1") };
        let target = CodeTarget::greeted(&hello).unwrap();
        assert_eq!(
            (target.kind, target.arch.as_str(), target.fingerprint.as_str()),
            (Kind::Cuda, "sm_90", "f-1")
        );
        let amd = Hello { arch: "gfx90a:sramecc+:xnack-".into(), ..Hello::new("hip", "f-1") };
        assert_eq!(CodeTarget::greeted(&amd).unwrap().arch, amd.arch);
        for bad in [
            Hello { version: 0, ..hello.clone() },
            Hello { fingerprint: "../x".into(), ..hello.clone() },
            Hello { fingerprint: String::new(), ..hello.clone() },
            Hello { arch: "a/b".into(), ..hello.clone() },
            Hello { arch: "..".into(), ..hello.clone() },
            Hello { device: "toaster".into(), ..hello },
        ] {
            assert!(CodeTarget::greeted(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn one_target_is_known_for_each_kind_and_architecture() {
        let target = |arch: &str, fingerprint: &str| CodeTarget {
            kind: Kind::Cuda,
            arch: arch.into(),
            fingerprint: fingerprint.into(),
        };
        let mut known = Vec::new();
        assert!(target("sm_90", "a").learn(&mut known) && target("sm_80", "a").learn(&mut known));
        assert!(!target("sm_90", "a").learn(&mut known) && target("sm_90", "b").learn(&mut known));
        assert_eq!(known, [target("sm_90", "b"), target("sm_80", "a")]);
    }
}
