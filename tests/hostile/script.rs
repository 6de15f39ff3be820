//! What a liar's script says, done over a worker's own channels.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use pappus_protocol::from_worker::{
    CodeInfo, Done, FaultCode, FoundDevice, Hello, KernelInfo, Reading, Readings, Survey,
};
use pappus_protocol::pipe::{Got, Inbox, Outbox};
use pappus_protocol::{Fault, FromWorker, FunctionId, ToWorker, control};
use pappus_shmem::{SharedWords, fds, memfd};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

/// Where a worker finds its channels.
const COMMANDS: i32 = 3;
const ANSWERS: i32 = 4;
const CONTROL: i32 = 5;
const TURNS: i32 = 7;
/// The word of the turn page that it changes; the numbers that belong to it follow.
const YIELD: usize = 16;

/// Plays a script to its end.
pub(crate) fn play(text: &str) -> Result<()> {
    let mut liar = Liar::new()?;
    text.lines().try_for_each(|line| liar.act(line.trim()))
}

struct Liar {
    inbox: Inbox,
    outbox: Outbox,
    control: OwnedFd,
    /// A compiling one has none.
    turns: Option<SharedWords>,
    /// What the last awaited message was about.
    it: u64,
    mute: bool,
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what.into())
}

impl Liar {
    fn new() -> Result<Self> {
        // `pidfd_getfd` duplicates a descriptor by number and fails where the number is not open: no `unsafe` is needed.
        let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let channel = |number| rustix::process::pidfd_getfd(&own, number, PidfdGetfdFlags::empty());
        let (inbox, outbox) = (Inbox::new(channel(COMMANDS)?), Outbox::new(channel(ANSWERS)?));
        let turns = channel(TURNS).ok().and_then(|fd| memfd::judge_arena(fd, u64::MAX).ok());
        let turns = turns.map(|page| SharedWords::open(&page)).transpose()?;
        Ok(Self { inbox, outbox, control: channel(CONTROL)?, turns, it: 0, mute: false })
    }

    fn act(&mut self, line: &str) -> Result<()> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split(' ').filter(|word| !word.is_empty());
        let mut next = || words.next();
        match command {
            "" => Ok(()),
            "await" => self.until(rest),
            "mute" => {
                self.mute = true;
                Ok(())
            }
            "bytes" => self.write(&hex(rest)?),
            "zeros" => self.write(&vec![0; self.number(rest)? as usize]),
            "descriptors" => {
                let (id, count) = (self.number(next().unwrap_or("0"))?, self.number(next().unwrap_or("1"))?);
                self.descriptors(id, count)
            }
            "code" => {
                let (id, bytes) = (self.number(next().unwrap_or("1"))?, self.number(next().unwrap_or("1"))?);
                let code = memfd::sealed("pappus-code", &vec![0; bytes as usize]).map_err(other)?;
                control::send(self.control.as_fd(), id, &[code.as_fd()]).map_err(other)
            }
            "unsealed" => {
                let code = rustix::fs::memfd_create("pappus-code", rustix::fs::MemfdFlags::ALLOW_SEALING)?;
                control::send(self.control.as_fd(), self.number(rest)?, &[code.as_fd()]).map_err(other)
            }
            "times" => {
                let (count, inner) = rest.split_once(' ').ok_or_else(|| bad(line))?;
                (0..self.number(count)?).try_for_each(|_| self.act(inner))
            }
            "forever" => loop {
                self.act(rest)?;
            },
            // The silence ends with the process that waits.
            "silence" => loop {
                rustix::event::poll(&mut [], None)?;
            },
            "scribble" => {
                let (at, value) = (self.number(next().unwrap_or("0"))?, self.number(next().unwrap_or("0"))?);
                self.scribble(at as usize, value)
            }
            "exit" => std::process::exit(self.number(rest)? as i32),
            "shell" => Err(Command::new("/bin/sh").args(["-c", rest]).exec()),
            _ => self.say(command, rest),
        }
    }

    /// An answer in its proper form.
    fn say(&mut self, command: &str, rest: &str) -> Result<()> {
        let words: Vec<&str> = rest.split(' ').filter(|word| !word.is_empty()).collect();
        let word = |nth: usize| words.get(nth).copied().unwrap_or("0");
        let tail = |nth: usize| unescaped(&words.get(nth..).unwrap_or_default().join(" "));
        let (first, second) = (self.number(word(0)), self.number(word(1)));
        let fault;
        let message = match command {
            "hello" => FromWorker::Hello(match words[..] {
                [version, device, fingerprint, bytes] => Hello {
                    version: self.number(version)? as u16,
                    context_bytes: self.number(bytes)?,
                    ..Hello::new(device, fingerprint)
                },
                _ => Hello::new("cpu", "liar"),
            }),
            "done" => {
                let ns = second?.into();
                let timings = Done { copy_in_ns: ns, execute_ns: ns, copy_out_ns: ns, clear_ns: ns };
                FromWorker::Done { call: first?, timings }
            }
            "failed" => {
                let code = match word(1) {
                    "load" => FaultCode::Load,
                    "internal" => FaultCode::Internal,
                    _ => FaultCode::KernelTrap,
                };
                let kernel = Some(self.number(word(2))? as u32);
                fault = Fault { kernel, ..Fault::new(code, tail(3)) };
                FromWorker::Failed { call: first?, fault: fault.as_ref() }
            }
            "look" => FromWorker::Yield,
            "yielding" => {
                self.scribble(YIELD, first? << 2)?;
                FromWorker::Yield
            }
            "yielded" => {
                self.scribble(YIELD + 1, second?)?;
                self.scribble(YIELD + 2, self.number(word(2))?)?;
                self.scribble(YIELD, first? << 2 | 2)?;
                FromWorker::Yield
            }
            "leased" => FromWorker::Leased { bytes: first? },
            "exported" => FromWorker::Exported { function: FunctionId::new(first?), bytes: second? },
            "loaded" => FromWorker::Loaded { function: FunctionId::new(first?), bytes: second? },
            "unloaded" => FromWorker::Unloaded { function: FunctionId::new(first?) },
            "broken" => {
                fault = Fault::new(FaultCode::Device, tail(0));
                FromWorker::Broken { fault: fault.as_ref() }
            }
            "compiled" => {
                let named = |name: &&str| KernelInfo { name: unescaped(name), ..KernelInfo::default() };
                let kernels = words.iter().skip(1).map(named).collect();
                FromWorker::Compiled { job: first?, module: CodeInfo { kernels, ..CodeInfo::default() } }
            }
            "refused" => {
                fault = Fault::new(FaultCode::BadModule, tail(1));
                FromWorker::Refused { job: first?, fault: fault.as_ref() }
            }
            "survey" => FromWorker::Survey(match words[..] {
                [uuid] => {
                    let (uuid, arch, bytes) = (uuid.to_owned(), "sm_90".to_owned(), 64 << 30);
                    let device = FoundDevice { uuid, arch, memory_bytes: bytes, ..FoundDevice::default() };
                    let devices = vec![FoundDevice { free_bytes: bytes, ..device }];
                    Survey { devices, ..Survey::default() }
                }
                _ => Survey::default(),
            }),
            "readings" => {
                let value = |word: &str| (word != "-").then(|| self.number(word)).transpose();
                let small = |word: &str| Ok::<_, Error>(value(word)?.map(|number| number as u32));
                let reading = |words: &[&str]| {
                    let [energy, power, busy, memory_busy] = words else { return Err(bad(rest)) };
                    Ok(Reading {
                        energy_mj: value(energy)?,
                        power_mw: small(power)?,
                        busy_percent: small(busy)?,
                        memory_busy_percent: small(memory_busy)?,
                    })
                };
                let devices = words.chunks(4).map(reading).collect::<Result<_>>()?;
                FromWorker::Readings(Readings { devices, ..Readings::default() })
            }
            _ => return Err(bad(format!("`{command}` is no command"))),
        };
        self.outbox.push_from_worker(&message);
        self.outbox.flush_blocking()
    }

    /// A word of the turn page.
    fn scribble(&self, at: usize, value: u64) -> Result<()> {
        let words = self.turns.as_ref().ok_or_else(|| bad("no turn page"))?.words();
        let word = words.get(at).ok_or_else(|| bad("no such word"))?;
        word.store(value, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// Takes in messages until one of this kind.
    fn until(&mut self, kind: &str) -> Result<()> {
        loop {
            while let Some(frame) = self.inbox.frame().map_err(other)? {
                let id = frame.id;
                let message = ToWorker::decode(frame).map_err(other)?;
                let name = format!("{message:?}").to_lowercase();
                let asked = matches!(message, ToWorker::Configure(_) | ToWorker::GiveBack { .. });
                if asked && !self.mute {
                    self.outbox.push_from_worker(&FromWorker::Leased { bytes: 0 });
                    self.outbox.flush_blocking()?;
                }
                if name.starts_with(kind) {
                    self.it = id;
                    return Ok(());
                }
            }
            if self.inbox.wait(Duration::ZERO, None, None)? == Got::Closed {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Packets with a descriptor each, until the socket takes no more.
    fn descriptors(&self, id: u64, count: u64) -> Result<()> {
        let packet = [id.to_le_bytes(), 1u64.to_le_bytes()].concat();
        for _ in 0..count {
            let null = std::fs::File::open("/dev/null")?;
            let flags = rustix::fs::fcntl_getfl(&self.control)? | rustix::fs::OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(&self.control, flags)?;
            match fds::send(self.control.as_fd(), &packet, &[null.as_fd()]) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS) => return Ok(()),
                sent => drop(sent?),
            }
        }
        Ok(())
    }

    fn write(&self, mut bytes: &[u8]) -> Result<()> {
        let answers: BorrowedFd<'_> = self.outbox.as_fd();
        while !bytes.is_empty() {
            match rustix::io::write(answers, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::AGAIN) => {
                    let mut full = [rustix::event::PollFd::new(&answers, rustix::event::PollFlags::OUT)];
                    rustix::event::poll(&mut full, None)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A number, `it`, or one beside it; `max` is the largest.
    fn number(&self, word: &str) -> Result<u64> {
        let step = |steps: &str| steps.parse::<u64>().map_err(|_| bad(word));
        match word.strip_prefix("it") {
            Some("") => Ok(self.it),
            Some(rest) if rest.starts_with('+') => Ok(self.it.wrapping_add(step(&rest[1..])?)),
            Some(rest) if rest.starts_with('-') => Ok(self.it.wrapping_sub(step(&rest[1..])?)),
            _ if word == "max" => Ok(u64::MAX),
            _ => step(word),
        }
    }
}

/// Bytes written as hexadecimal digits, spaces between them.
fn hex(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    digits.chunks(2).map(|pair| byte(pair).ok_or_else(|| bad(text))).collect()
}

/// `\n` and `\e` as what they stand for.
fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\e", "\u{1b}")
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::other(error)
}
