//! What the path of a request names. No body, no token: only text.

use percent::decoded;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `v2/health/live`
    Live,
    /// `v2/health/ready`
    Ready,
    /// `v2`
    Server,
    /// `v2/repository/index`
    Index,
    /// `v2/repository/models/M/load`
    Load(String),
    /// `v2/repository/models/M/unload`
    Unload(String),
    /// `v2/models/stats`
    AllStatistics,
    /// `v2/models/M[/versions/V]` and what is behind it.
    Model(Model, OfModel),
    /// `v2/systemsharedmemory/…`
    SystemMemory(Memory),
    /// `v2/cudasharedmemory/…`
    CudaMemory(Memory),
}

/// A model as a path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Its version; empty where the path names none.
    pub version: String,
}

/// What is asked of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfModel {
    /// Its inputs and outputs.
    Metadata,
    /// The same as Triton's configuration.
    Config,
    /// Whether it can be called.
    Ready,
    /// What was inferred.
    Statistics,
    /// An inference.
    Infer,
}

/// What is asked about shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Memory {
    /// The region of this name, or all regions with an empty name.
    Status(String),
    /// One more.
    Register(String),
    /// The region of this name less, or all regions with an empty name.
    Unregister(String),
}

impl Route {
    /// What a path names; none where the gateway serves no such path.
    pub fn of(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        Some(match parts[..] {
            ["v2"] => Self::Server,
            ["v2", "health", "live"] => Self::Live,
            ["v2", "health", "ready"] => Self::Ready,
            ["v2", "repository", "index"] => Self::Index,
            ["v2", "repository", "models", name, "load"] => Self::Load(decoded(name)?),
            ["v2", "repository", "models", name, "unload"] => Self::Unload(decoded(name)?),
            ["v2", "models", "stats"] => Self::AllStatistics,
            ["v2", "models", name, "versions", version, ref rest @ ..] => Self::model(name, version, rest)?,
            ["v2", "models", name, ref rest @ ..] => Self::model(name, "", rest)?,
            ["v2", "systemsharedmemory", ref rest @ ..] => Self::SystemMemory(memory(rest)?),
            ["v2", "cudasharedmemory", ref rest @ ..] => Self::CudaMemory(memory(rest)?),
            _ => return None,
        })
    }

    fn model(name: &str, version: &str, rest: &[&str]) -> Option<Self> {
        let what = match rest {
            [] => OfModel::Metadata,
            ["config"] => OfModel::Config,
            ["ready"] => OfModel::Ready,
            ["stats"] => OfModel::Statistics,
            ["infer"] => OfModel::Infer,
            _ => return None,
        };
        Some(Self::Model(Model { name: decoded(name)?, version: decoded(version)? }, what))
    }

    /// The one method that the route is for.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Index | Self::Load(_) | Self::Unload(_) | Self::Model(_, OfModel::Infer) => "POST",
            Self::SystemMemory(memory) | Self::CudaMemory(memory) if !matches!(memory, Memory::Status(_)) => {
                "POST"
            }
            _ => "GET",
        }
    }
}

fn memory(rest: &[&str]) -> Option<Memory> {
    Some(match rest {
        ["status"] => Memory::Status(String::new()),
        ["region", name, "status"] => Memory::Status(decoded(name)?),
        ["region", name, "register"] => Memory::Register(decoded(name)?),
        ["unregister"] => Memory::Unregister(String::new()),
        ["region", name, "unregister"] => Memory::Unregister(decoded(name)?),
        _ => return None,
    })
}

mod percent {
    //! Percent-encoding of a path's parts.

    /// The text that was encoded; none where it is not text, or not encoded as it should be.
    pub(super) fn decoded(part: &str) -> Option<String> {
        let mut bytes = Vec::with_capacity(part.len());
        let mut rest = part.bytes();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'%' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                    (high * 16 + low) as u8
                }
                byte => byte,
            });
        }
        String::from_utf8(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str, version: &str, what: OfModel) -> Option<Route> {
        Some(Route::Model(Model { name: name.into(), version: version.into() }, what))
    }

    #[test]
    fn paths_are_the_protocols() {
        assert_eq!(Route::of("/v2"), Some(Route::Server));
        assert_eq!(Route::of("/v2/"), Some(Route::Server));
        assert_eq!(Route::of("/v2/health/live"), Some(Route::Live));
        assert_eq!(Route::of("/v2/models/f/infer"), model("f", "", OfModel::Infer));
        assert_eq!(Route::of("/v2/models/a.f/versions/7/ready"), model("a.f", "7", OfModel::Ready));
        assert_eq!(Route::of("/v2/models/a%2Ff"), model("a/f", "", OfModel::Metadata));
        assert_eq!(Route::of("/v2/models/stats"), Some(Route::AllStatistics));
        assert_eq!(
            Route::of("/v2/cudasharedmemory/unregister"),
            Some(Route::CudaMemory(Memory::Unregister(String::new())))
        );
        assert_eq!(
            Route::of("/v2/systemsharedmemory/region/a%20b/register"),
            Some(Route::SystemMemory(Memory::Register("a b".into())))
        );
        for none in [
            "/",
            "/v1",
            "/v2/models",
            "/v2/models/f/what",
            "/v2/models/%zz",
            "/v2/models/%ff",
            "/v2/models/%f",
        ] {
            assert_eq!(Route::of(none), None, "{none}");
        }
    }
}
