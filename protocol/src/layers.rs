//! The layers of a worker's sandbox, as both sides name them.

use serde::{Deserialize, Serialize};

/// A layer that depends on what the host permits, or that people want to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// System calls are allow-listed.
    Seccomp,
    /// Files, sockets and signals are allow-listed by path and origin.
    Landlock,
    /// Runs as a user of its own.
    Uid,
    /// A user namespace of its own.
    UserNs,
    /// A pid namespace of its own.
    PidNs,
    /// A network namespace of its own, without any network.
    NetNs,
    /// A mount namespace of its own, in which only what the device needs can be seen.
    MountNs,
    /// An IPC namespace of its own.
    IpcNs,
    /// A host name of its own.
    UtsNs,
    /// A cgroup namespace of its own.
    CgroupNs,
    /// Limits on memory, processes and processor time.
    Cgroup,
}

impl Layer {
    /// All of them.
    pub const ALL: [Layer; 11] = [
        Layer::Seccomp,
        Layer::Landlock,
        Layer::Uid,
        Layer::UserNs,
        Layer::PidNs,
        Layer::NetNs,
        Layer::MountNs,
        Layer::IpcNs,
        Layer::UtsNs,
        Layer::CgroupNs,
        Layer::Cgroup,
    ];

    /// Its name in `status` and in settings.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Seccomp => "seccomp",
            Layer::Landlock => "landlock",
            Layer::Uid => "uid",
            Layer::UserNs => "userns",
            Layer::PidNs => "pidns",
            Layer::NetNs => "netns",
            Layer::MountNs => "mountns",
            Layer::IpcNs => "ipcns",
            Layer::UtsNs => "utsns",
            Layer::CgroupNs => "cgroupns",
            Layer::Cgroup => "cgroup",
        }
    }
}

/// A name that is no layer's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no layer `{0}`, only: {all}", all = Layer::ALL.map(Layer::name).join(", "))]
pub struct UnknownLayer(String);

impl std::str::FromStr for Layer {
    type Err = UnknownLayer;

    fn from_str(name: &str) -> Result<Self, UnknownLayer> {
        Self::ALL.into_iter().find(|layer| layer.name() == name).ok_or_else(|| UnknownLayer(name.to_owned()))
    }
}

/// A set of layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers(u16);

impl Layers {
    /// Adds one.
    pub fn add(&mut self, layer: Layer) {
        self.0 |= 1 << layer as u16;
    }

    /// Takes one out.
    pub fn remove(&mut self, layer: Layer) {
        self.0 &= !(1 << layer as u16);
    }

    /// True if the set has `layer`.
    pub fn has(self, layer: Layer) -> bool {
        self.0 & 1 << layer as u16 != 0
    }

    /// The set's members, in the order of [`Layer::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Layer> {
        Layer::ALL.into_iter().filter(move |layer| self.has(*layer))
    }

    /// True if the set has no layer.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Layer> for Layers {
    fn from_iter<I: IntoIterator<Item = Layer>>(layers: I) -> Self {
        let mut all = Self::default();
        layers.into_iter().for_each(|layer| all.add(layer));
        all
    }
}

impl std::fmt::Display for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.iter().map(Layer::name).collect::<Vec<_>>().join(","))
    }
}

impl std::str::FromStr for Layers {
    type Err = UnknownLayer;

    /// Reads what [`std::fmt::Display`] writes.
    fn from_str(names: &str) -> Result<Self, UnknownLayer> {
        names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let all: Layers = Layer::ALL.into_iter().collect();
        assert_eq!(all.to_string().parse(), Ok(all));
        let two: Layers = "landlock, seccomp".parse().unwrap();
        assert_eq!(two.to_string(), "seccomp,landlock");
        assert!("seccomp,lock".parse::<Layers>().unwrap_err().to_string().contains("`lock`"));
    }
}
