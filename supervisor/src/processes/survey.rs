//! Which GPUs there are. A worker process looks: no GPU library is ever loaded into this process. With what it finds, a
//! request becomes a [device](crate::config::DeviceConfig).

use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use pappus_protocol::from_worker::Survey;
use pappus_protocol::pipe::{Got, Inbox};
use pappus_protocol::{FromWorker, Kind, Layers, ProtocolError};

use super::confinement::LayerMissing;
use super::launcher::{Launcher, Role, Started};
use super::process;
use super::target::DeviceTarget;
use crate::config::device::Surveys;
use crate::config::request::Selector;
use crate::config::{ConfigError, DeviceConfig, DeviceRequest, device};
use crate::limits::SURVEY_S;

/// Why a process that was to look found nothing.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// No process could look.
    #[error("the process that looks for {what} cannot be started: {source}")]
    Start {
        /// What it looks for.
        what: &'static str,
        /// What is in the way.
        source: std::io::Error,
    },
    /// The process gave no answer.
    #[error("the process that looks for {what} {ended}: {why}")]
    Failed {
        /// What it looks for.
        what: &'static str,
        /// How it ended, in words.
        ended: String,
        /// What it did wrong.
        why: NoSurvey,
    },
    /// The process looked and says what is missing.
    #[error("{0}")]
    Missing(String),
    /// The process is not confined as it must be.
    #[error(transparent)]
    Confinement(#[from] LayerMissing),
}

/// What a process did wrong that was to look.
#[derive(Debug, thiserror::Error)]
pub enum NoSurvey {
    /// It broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// It cannot be heard.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It said something else.
    #[error("it sent {0}")]
    Unexpected(String),
    /// It took too long.
    #[error("it took longer than {SURVEY_S} s")]
    Late,
    /// It ended.
    #[error("it gave no answer")]
    Closed,
}

/// Kinds of devices that a process must look for.
pub fn gpu_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.traits().has_driver)
}

/// Fails where processes for these kinds of devices would lack a layer that the configuration requires: one of each is
/// started to see.
pub fn try_sandbox(launcher: &Launcher, kinds: &[Kind]) -> Result<(), SurveyError> {
    if !launcher.confinement().requires_something() {
        return Ok(());
    }
    kinds.iter().try_for_each(|kind| look(launcher, *kind, "").map(drop))
}

/// Asks a fresh process which devices of a kind it sees: all of them, or the slice with the UUID `only`.
pub fn look(launcher: &Launcher, kind: Kind, only: &str) -> Result<Survey, SurveyError> {
    let what = kind.traits().devices;
    let target = DeviceTarget { uuid: only.to_owned(), ..DeviceTarget::any(kind) };
    let started = launcher.start(Role::Survey, &target, None);
    let mut worker = started.map_err(|source| SurveyError::Start { what, source })?;
    let survey = answer(&mut worker.inbox, |message| match message {
        FromWorker::Survey(survey) => Ok((survey.layers, survey)),
        other => Err(NoSurvey::Unexpected(format!("{other:?}"))),
    });
    let (layers, survey) = judge(launcher, &mut worker, what, survey)?;
    Ok(Survey { layers, ..survey })
}

/// What a process answered, and the layers of its sandbox: all that are required, or the answer does not count.
pub(super) fn judge<T>(
    launcher: &Launcher,
    worker: &mut Started,
    what: &'static str,
    answer: Result<Result<(Layers, T), SurveyError>, NoSurvey>,
) -> Result<(Layers, T), SurveyError> {
    match answer {
        Ok(answer) => {
            let (layers, answer) = answer?;
            let reached = worker.process.reached(layers);
            launcher.confinement().check(&reached)?;
            Ok((reached.layers(), answer))
        }
        Err(why) => {
            let ended = process::describe_exit(worker.process.end());
            Err(SurveyError::Failed { what, ended, why })
        }
    }
}

/// What `take` makes of a process's answer, or what the process says is missing.
pub(super) fn answer<T>(
    inbox: &mut Inbox,
    take: impl Fn(FromWorker<'_>) -> Result<T, NoSurvey>,
) -> Result<Result<T, SurveyError>, NoSurvey> {
    let until = Instant::now() + Duration::from_secs(SURVEY_S);
    loop {
        while let Some(frame) = inbox.frame()? {
            match FromWorker::decode(frame)? {
                FromWorker::Hello(_) => {}
                FromWorker::Refused { fault, .. } => {
                    return Ok(Err(SurveyError::Missing(fault.message.to_owned())));
                }
                other => return take(other).map(Ok),
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NoSurvey::Late);
        }
        if inbox.wait(Duration::ZERO, Some(left), None)? == Got::Closed {
            return Err(NoSurvey::Closed);
        }
    }
}

/// The devices to run on: those asked for, or else all that there are. Blocks while processes look.
pub fn devices(launcher: &Launcher, requests: &[DeviceRequest]) -> Result<Vec<DeviceConfig>, ConfigError> {
    match requests {
        [] => all_devices(launcher),
        requests => device::resolve(requests, &surveys_for(launcher, requests)?),
    }
}

/// What the requests need to know: nothing about GPUs where none is asked for.
fn surveys_for(launcher: &Launcher, requests: &[DeviceRequest]) -> Result<Surveys, ConfigError> {
    let mut surveys = Surveys::new();
    let missing = |selector: &Selector, why: SurveyError| {
        let (name, why) = (selector.to_string(), why.to_string());
        let advised = why.contains("--device cpu");
        let why = if advised { why } else { format!("{why}; or run with --device cpu") };
        ConfigError::Device { name, why }
    };
    let whole = |selector: &Selector| !matches!(selector, Selector::BuiltIn(..) | Selector::SliceUuid(..));
    for selector in requests.iter().map(|request| &request.selector).filter(|selector| whole(selector)) {
        if let Entry::Vacant(unknown) = surveys.entry(selector.kind()) {
            unknown.insert(look(launcher, selector.kind(), "").map_err(|why| missing(selector, why))?);
        }
    }
    for request in requests {
        // The driver shows a slice only to processes that name it.
        if let Selector::SliceUuid(kind, uuid) = &request.selector {
            let seen = look(launcher, *kind, uuid).map_err(|why| missing(&request.selector, why))?;
            let survey = surveys.entry(*kind).or_default();
            survey.driver = seen.driver;
            survey.shared |= seen.shared;
            survey.devices.retain(|device| device.uuid != *uuid);
            survey.devices.extend(seen.devices.into_iter().take(1).map(|mut device| {
                device.uuid = uuid.clone();
                device
            }));
        }
    }
    Ok(surveys)
}

fn all_devices(launcher: &Launcher) -> Result<Vec<DeviceConfig>, ConfigError> {
    let mut surveys = Surveys::new();
    for kind in gpu_kinds() {
        match look(launcher, kind, "") {
            Ok(survey) => drop(surveys.insert(kind, survey)),
            Err(why) => tracing::info!("no {}: {why}", kind.traits().devices),
        }
    }
    let (devices, left_out) = device::default_devices(&surveys)?;
    for why in left_out {
        tracing::warn!("a GPU is left out: {why}");
    }
    Ok(devices)
}
