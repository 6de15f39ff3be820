//! The metering role: says what devices measure of themselves, each time that it is asked. Nothing of a tenant reaches it.

use std::time::Duration;

use pappus_protocol::from_worker::{Reading, Readings};
use pappus_protocol::pipe::Got;
use pappus_protocol::{Fault, FromWorker, ToWorker};

use crate::{Channels, Error};

/// Answers until the supervisor closes its pipe; `read` asks the devices with these UUIDs.
pub fn run(
    mut channels: Channels,
    read: impl Fn(&[String]) -> Result<Vec<Reading>, Fault>,
) -> Result<(), Error> {
    let layers = channels.layers;
    loop {
        while let Some(frame) = channels.inbox.frame()? {
            let ToWorker::Read { devices } = ToWorker::decode(frame)? else {
                return Err(Error::Unexpected("a metering worker only reads"));
            };
            match read(&devices) {
                Ok(devices) => channels.send(&FromWorker::Readings(Readings { devices, layers }))?,
                Err(fault) => channels.send(&FromWorker::Refused { job: 0, fault: fault.as_ref() })?,
            }
        }
        if channels.inbox.wait(Duration::ZERO, None, None)? == Got::Closed {
            return Ok(());
        }
    }
}
