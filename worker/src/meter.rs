//! The metering role: says what devices measure of themselves, each time that it is asked. Nothing of a tenant reaches it.

use std::time::Duration;

use pappus_protocol::from_worker::Readings;
use pappus_protocol::pipe::Got;
use pappus_protocol::{Fault, FromWorker, ToWorker};

use crate::{Channels, Error};

/// Answers until the supervisor closes its pipe; `read` asks the devices with these UUIDs.
pub fn run(
    mut channels: Channels,
    mut read: impl FnMut(&[String]) -> Result<Readings, Fault>,
) -> Result<(), Error> {
    loop {
        while let Some(frame) = channels.inbox.frame()? {
            let ToWorker::Read { devices } = ToWorker::decode(frame)? else {
                return Err(Error::Unexpected("a metering worker only reads"));
            };
            match read(&devices) {
                Ok(readings) => channels.send(&FromWorker::Readings(readings))?,
                Err(fault) => channels.send(&FromWorker::Refused { job: 0, fault: fault.as_ref() })?,
            }
        }
        if channels.inbox.wait(Duration::ZERO, None, None)? == Got::Closed {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use pappus_protocol::from_worker::Reading;
    use pappus_protocol::pipe::{Inbox, Outbox, pipe};
    use pappus_protocol::{FaultCode, control};

    use super::*;

    /// What is answered to messages, in words, and how the process ends once the pipe is closed behind them.
    fn answers(messages: &[ToWorker<'_>]) -> (Vec<String>, Result<(), Error>) {
        let ((commands, to), (from, answers)) = (pipe().unwrap(), pipe().unwrap());
        let mut outbox = Outbox::new(to);
        messages.iter().for_each(|message| outbox.push_to_worker(message));
        outbox.flush_blocking().unwrap();
        drop(outbox);
        let read = |devices: &[String]| match devices {
            [] => Err(Fault::new(FaultCode::Device, "nothing to ask")),
            devices => {
                let power_mw = Some(devices.len() as u32);
                let devices = vec![Reading { power_mw, ..Reading::default() }; devices.len()];
                Ok(Readings { devices, ..Readings::default() })
            }
        };
        let ended = run(Channels::new(commands, answers, control::pair().unwrap().1), read);
        let (mut inbox, mut got) = (Inbox::new(from), Vec::new());
        while inbox.fill().unwrap() == Got::Bytes {}
        while let Some(frame) = inbox.frame().unwrap() {
            got.push(match FromWorker::decode(frame).unwrap() {
                FromWorker::Readings(readings) => format!("{:?}", readings.devices[0].power_mw),
                FromWorker::Refused { fault, .. } => fault.message.to_owned(),
                other => format!("{other:?}"),
            });
        }
        (got, ended)
    }

    #[test]
    fn each_question_has_its_answer_until_the_pipe_is_closed() {
        let ask =
            |devices: &[&str]| ToWorker::Read { devices: devices.iter().map(ToString::to_string).collect() };
        let (got, ended) = answers(&[ask(&["GPU-1", "GPU-2"]), ask(&[]), ask(&["GPU-1"])]);
        assert_eq!(got, ["Some(2)", "nothing to ask", "Some(1)"]);
        assert!(ended.is_ok());
        let (got, ended) = answers(&[ask(&["GPU-1"]), ToWorker::Order, ask(&["GPU-1"])]);
        assert_eq!(got, ["Some(1)"]);
        assert!(matches!(ended, Err(Error::Unexpected(_))));
    }
}
