//! The binary itself: both roles over real descriptors, and what it says when they are missing.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::Worker;
use harness::program::{self, Options, Program, Started};
use pappus_protocol::from_worker::Hello;
use pappus_protocol::pipe::{Got, Inbox, Outbox};
use pappus_protocol::{FaultCode, FromWorker, ToWorker, control};
use pappus_shmem::memfd;

struct Process {
    program: Program,
    to: Outbox,
    from: Inbox,
    control: OwnedFd,
}

fn start(role: &str) -> Process {
    let staging = memfd::arena("staging", 4096).unwrap();
    let Started { program, to, from, control } = program::start(role, &Options::CPU, &staging, &staging);
    Process { program, to: Outbox::new(to), from: Inbox::new(from), control }
}

impl Process {
    fn answer<R>(&mut self, read: impl FnOnce(FromWorker<'_>) -> R) -> R {
        loop {
            if let Some(frame) = self.from.frame().unwrap() {
                return read(FromWorker::decode(frame).unwrap());
            }
            assert_ne!(self.from.wait(Duration::ZERO, None, None).unwrap(), Got::Closed);
        }
    }

    fn hello(&mut self) -> Hello {
        self.answer(|message| match message {
            FromWorker::Hello(hello) => hello,
            other => panic!("{other:?}"),
        })
    }

    fn send(&mut self, message: &ToWorker<'_>) {
        self.to.push_to_worker(message);
        self.to.flush_blocking().unwrap();
    }

    /// Closes the commands and returns the exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.to);
        self.program.child.wait().unwrap().code()
    }
}

#[test]
fn both_roles_greet_alike_and_end_with_their_pipe() {
    let (mut serving, mut compiling) = (start("serve"), start("compile"));
    let hello = serving.hello();
    assert_eq!(hello, compiling.hello());
    assert_eq!(hello.device, "cpu");
    assert_eq!((serving.end(), compiling.end()), (Some(0), Some(0)));
}

#[test]
fn modules_are_compiled_or_refused_with_the_reason() {
    let mut process = start("compile");
    process.hello();
    let good = memfd::sealed("module", include_bytes!("../../kernels/built/mlops.wasm")).unwrap();
    let bad = memfd::sealed("module", b"\0asm\x01\0\0\0").unwrap();
    for job in [1, 3] {
        // The same descriptor twice: its offset is shared and must not matter.
        control::send(process.control.as_fd(), job, &[good.as_fd()]).unwrap();
        process.send(&ToWorker::Compile { job });
        process.answer(|message| match message {
            FromWorker::Compiled { job: 1 | 3, module } => {
                assert!(module.kernels.iter().any(|kernel| kernel.name == "matmul_para"));
            }
            other => panic!("{other:?}"),
        });
        let code = control::recv(&process.control, job, 1).unwrap().remove(0);
        memfd::judge_sealed(code, 1 << 30).unwrap();
        control::send(process.control.as_fd(), job + 1, &[bad.as_fd()]).unwrap();
        process.send(&ToWorker::Compile { job: job + 1 });
        process.answer(|message| match message {
            FromWorker::Refused { job: 2 | 4, fault } => assert_eq!(fault.code, FaultCode::BadModule),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(process.end(), Some(0));
}

#[test]
fn a_process_serves_as_a_thread_does() {
    let module = wat::parse_str(include_str!("probes.wat")).unwrap();
    let (code, found) = program::compile(&Options::CPU, &module).unwrap();
    assert!(found.kernels.iter().any(|kernel| kernel.name == "trap"));
    let mut worker = Worker::process(&Options::CPU);
    worker.install(
        1,
        include_str!("../../kernels/configs/hello.json").replace("hello_world", "trap").as_str(),
        &code,
        &[],
    );
    assert_eq!(worker.call_alone(1, &[], &[]).unwrap_err().code, FaultCode::KernelTrap);
    worker.end().unwrap();
    Worker::process(&Options::CPU).kill();
}

#[test]
fn messages_of_the_other_role_end_it_with_an_error() {
    for (role, message) in [("serve", ToWorker::Compile { job: 1 }), ("compile", ToWorker::Soon)] {
        let mut process = start(role);
        process.hello();
        process.send(&message);
        assert_eq!(process.program.child.wait().unwrap().code(), Some(1), "{role}");
    }
}

#[test]
fn a_worker_without_its_channels_says_so() {
    for (arguments, code, words) in [
        (&[][..], 2, "usage"),
        (&["serve", "--device"], 2, "usage"),
        (&["serve", "--device", "abacus"], 2, "abacus"),
        (&["serve", "--device", "cpu"], 1, "descriptor 3"),
    ] {
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&- 4>&- 5<&- 6<&- 7<&-"#, "sh"])
            .arg(program::path())
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
