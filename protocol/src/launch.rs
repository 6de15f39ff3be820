//! How the supervisor starts a worker process: the numbers of its descriptors, its arguments, its exit code.

use crate::{Kind, Layer, Layers};

/// The descriptor from which a worker reads commands.
pub const COMMANDS_FD: i32 = 3;
/// The descriptor to which a worker writes answers.
pub const ANSWERS_FD: i32 = 4;
/// The socket over which descriptors travel.
pub const CONTROL_FD: i32 = 5;
/// The staging arena of a serving worker. Other roles have none.
pub const STAGING_FD: i32 = 6;
/// The [turn page](crate::turn_page) of a serving worker. Other roles have none.
pub const TURNS_FD: i32 = 7;

/// The exit code of a worker that cannot use the pid namespace that the host offers; it is started again without.
pub const EXIT_PIDNS_UNUSABLE: u8 = 71;
/// The exit code of a worker that panicked; the supervisor replaces it.
pub const EXIT_PANICKED: u8 = 70;

/// What a worker process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs calls.
    Serve,
    /// Turns modules into machine code.
    Compile,
    /// Says which devices there are.
    Survey,
    /// Says what devices measure of themselves, as often as it is asked.
    Meter,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 4] = [Role::Serve, Role::Compile, Role::Survey, Role::Meter];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Compile => "compile",
            Self::Survey => "survey",
            Self::Meter => "meter",
        }
    }

    /// How many descriptors a process of this role is started with, from [`COMMANDS_FD`] on.
    pub fn descriptors(self) -> usize {
        match self {
            Self::Serve => (TURNS_FD - COMMANDS_FD + 1) as usize,
            Self::Compile | Self::Survey | Self::Meter => (CONTROL_FD - COMMANDS_FD + 1) as usize,
        }
    }
}

/// The command line of a worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// What the process is for.
    pub role: Role,
    /// The device's kind.
    pub kind: Kind,
    /// Concurrent calls of a serving worker.
    pub lanes: u32,
    /// The host's memory node to stay near.
    pub numa_node: Option<u32>,
    /// The user that the process becomes.
    pub uid: Option<u32>,
    /// True if the supervisor adopts a successor that the process leaves behind.
    pub adopted: bool,
    /// True if machine code is made, or read, in the form that a device needs whose calls end in the middle of a kernel when their
    /// time is over, and whose kernels cannot leave what their call was given. The same for all processes of a kind.
    pub interruptible: bool,
    /// Where the process serves calls of strangers beside each other, how many microseconds of the device a call gets there. Such a
    /// process loads only kernels that cannot leave a window, where these are code of their own.
    pub shared_limit_us: Option<u32>,
    /// Layers of the sandbox that are not tried.
    pub without: Layers,
}

impl Arguments {
    /// What to say where arguments do not read.
    pub const USAGE: &str = "usage: pappus-worker serve|compile|survey|meter --device=KIND --lanes=N [--numa-node=N] \
        [--uid=N] [--adopted] [--interruptible] [--shared-limit-us=N] \
        [--without=LAYER]... (started by pappus-supervisor)";

    /// A process of this role with one lane, no user of its own and nothing left off.
    pub fn new(role: Role, kind: Kind) -> Self {
        let (numa_node, uid, without) = (None, None, Layers::default());
        let (adopted, interruptible, shared_limit_us) = (false, false, None);
        Self { role, kind, lanes: 1, numa_node, uid, adopted, interruptible, shared_limit_us, without }
    }

    /// As given to the process.
    pub fn encode(&self) -> Vec<String> {
        let mut encoded = vec![
            self.role.name().to_owned(),
            format!("--device={}", self.kind.name()),
            format!("--lanes={}", self.lanes),
        ];
        encoded.extend(self.numa_node.map(|node| format!("--numa-node={node}")));
        encoded.extend(self.uid.map(|uid| format!("--uid={uid}")));
        encoded.extend(self.adopted.then(|| "--adopted".to_owned()));
        encoded.extend(self.interruptible.then(|| "--interruptible".to_owned()));
        encoded.extend(self.shared_limit_us.map(|limit| format!("--shared-limit-us={limit}")));
        encoded.extend(self.without.iter().map(|layer| format!("--without={}", layer.name())));
        encoded
    }

    /// From what the process was given; an error names the argument that does not read.
    pub fn parse(arguments: &[String]) -> Result<Self, BadArgument> {
        let bad = |argument: &str| BadArgument(argument.to_owned());
        let mut arguments = arguments.iter().map(String::as_str);
        let role = arguments.next().unwrap_or_default();
        let role = Role::ALL.into_iter().find(|known| known.name() == role).ok_or_else(|| bad(role))?;
        let mut kind = None;
        let mut parsed = Self::new(role, Kind::Cpu);
        while let Some(argument) = arguments.next() {
            let switch = match argument {
                "--adopted" => Some(&mut parsed.adopted),
                "--interruptible" => Some(&mut parsed.interruptible),
                _ => None,
            };
            if let Some(switch) = switch {
                *switch = true;
                continue;
            }
            // `--flag=value` and `--flag value` are the same.
            let (flag, value) = match argument.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (argument, arguments.next()),
            };
            let value = value.ok_or_else(|| bad(argument))?;
            let wrong = || bad(&format!("{flag}={value}"));
            let number = || value.parse::<u32>().map_err(|_| wrong());
            match flag {
                "--device" => kind = Some(value.parse::<Kind>().map_err(|_| wrong())?),
                "--lanes" => parsed.lanes = number()?,
                "--shared-limit-us" => parsed.shared_limit_us = Some(number()?),
                "--numa-node" => parsed.numa_node = Some(number()?),
                "--uid" => parsed.uid = Some(number()?),
                "--without" => parsed.without.add(value.parse::<Layer>().map_err(|_| wrong())?),
                _ => return Err(bad(argument)),
            }
        }
        Ok(Self { kind: kind.ok_or_else(|| bad("no --device"))?, ..parsed })
    }
}

/// An argument of a worker process that does not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("argument {0:?}; {usage}", usage = Arguments::USAGE)]
pub struct BadArgument(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_read_as_they_were_written() {
        for role in Role::ALL {
            let plain = Arguments::new(role, Kind::Cuda);
            let full = Arguments {
                lanes: 8,
                numa_node: Some(1),
                uid: Some(65_532),
                adopted: true,
                interruptible: true,
                shared_limit_us: Some(10_000),
                without: [Layer::PidNs].into_iter().collect(),
                ..plain.clone()
            };
            for arguments in [plain, full] {
                assert_eq!(Arguments::parse(&arguments.encode()), Ok(arguments));
            }
        }
    }

    #[test]
    fn an_argument_that_does_not_read_is_named() {
        let parse = |text: &str| {
            let arguments: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            Arguments::parse(&arguments).map_err(|bad| bad.0)
        };
        for (text, bad) in [
            ("", ""),
            ("dance --device=cpu", "dance"),
            ("serve", "no --device"),
            ("serve --device toaster", "--device=toaster"),
            ("serve --device=cpu --lanes=many", "--lanes=many"),
            ("serve --device=cpu --without=luck", "--without=luck"),
            ("serve --device=cpu --uid", "--uid"),
            ("serve --device=cpu extra 1", "extra"),
        ] {
            assert_eq!(parse(text), Err(bad.to_owned()), "{text}");
        }
    }

    #[test]
    fn each_role_has_its_descriptors_in_a_row() {
        assert_eq!(Role::ALL.map(Role::descriptors), [5, 3, 3, 3]);
        assert_eq!([COMMANDS_FD, ANSWERS_FD, CONTROL_FD, STAGING_FD, TURNS_FD], [3, 4, 5, 6, 7]);
    }
}
