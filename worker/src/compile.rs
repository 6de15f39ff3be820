//! The compiling role: modules in, machine code out. Started for the purpose, so that a module that
//! crashes or occupies the compiler harms no other registration.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pappus_blueprint::code;
use pappus_protocol::from_worker::CodeInfo;
use pappus_protocol::pipe::Got;
use pappus_protocol::{Fault, FaultCode, FromWorker, ToWorker, control};
use pappus_shmem::memfd;

use crate::channels::read_whole;
use crate::device::{Compiler, MAX_MODULE_BYTES};
use crate::{Channels, Error};

/// Answers jobs until the supervisor closes its pipe.
pub fn run(mut channels: Channels, compiler: &impl Compiler) -> Result<(), Error> {
    let greeting = channels.greeting(compiler.hello());
    channels.send(&greeting)?;
    loop {
        while let Some(frame) = channels.inbox.frame()? {
            match ToWorker::decode(frame)? {
                ToWorker::Compile { job } => answer(&mut channels, job, |module| compiler.compile(module))?,
                ToWorker::CompileChecked { job } => {
                    answer(&mut channels, job, |module| compiler.compile_checked(module))?;
                }
                ToWorker::Describe { job } => answer(&mut channels, job, describe)?,
                _ => return Err(Error::Unexpected("a compiling worker only compiles")),
            }
        }
        if channels.inbox.wait(Duration::ZERO, None, None)? == Got::Closed {
            return Ok(());
        }
    }
}

/// What a module for a device that is not here declares, with the module itself in place of machine code.
fn describe(module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
    let declared = code::declared(module).map_err(|why| Fault::new(FaultCode::BadModule, why.0))?;
    Ok((module.to_vec(), declared))
}

fn answer(
    channels: &mut Channels,
    job: u64,
    compile: impl FnOnce(&[u8]) -> Result<(Vec<u8>, CodeInfo), Fault>,
) -> Result<(), Error> {
    let module = control::recv(&channels.control, job, 1)?.into_iter().next();
    let module = module.ok_or(Error::Unexpected("a job without a module"))?;
    let compiled = read(module).and_then(|bytes| compile(&bytes));
    let compiled = compiled.and_then(|(code, module)| {
        let code = memfd::sealed("pappus-code", &code);
        let code = code.map_err(|e| Fault::new(FaultCode::Internal, format!("storing machine code: {e}")))?;
        Ok((code, module))
    });
    match compiled {
        Ok((code, module)) => {
            control::send(channels.control.as_fd(), job, &[code.as_fd()])?;
            channels.send(&FromWorker::Compiled { job, module })?;
        }
        Err(fault) => channels.send(&FromWorker::Refused { job, fault: fault.as_ref() })?,
    }
    Ok(())
}

/// Reads a module, unless it is too long for any device.
fn read(module: OwnedFd) -> Result<Vec<u8>, Fault> {
    read_whole(module, MAX_MODULE_BYTES as u64)
        .map_err(|e| Fault::new(FaultCode::BadModule, format!("reading the module: {e}")))
}
