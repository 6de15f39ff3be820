//! Which GPUs there are. A worker process looks: no GPU library is ever loaded into this process.

use std::path::Path;
use std::time::{Duration, Instant};

use pappus_protocol::from_worker::Survey;
use pappus_protocol::pipe::{Got, Inbox};
use pappus_protocol::{FromWorker, Kind};

use super::confinement;
use super::process::{self, Role, Target};
use crate::config::request::Selector;
use crate::config::{ConfigError, DeviceConfig, DeviceRequest, device};
use crate::limits::SURVEY_S;

/// Asks a fresh process which GPUs it sees: all of them, or the slice with the UUID `only`. An error says
/// what is missing.
pub fn gpus(program: &Path, only: &str) -> Result<Survey, String> {
    look(program, Kind::Cuda, only)
}

/// As [`gpus`], of another kind of devices.
pub fn look(program: &Path, kind: Kind, only: &str) -> Result<Survey, String> {
    let what = kind.traits().devices;
    let target = Target { kind, uuid: only.to_owned(), lanes: 1, numa_node: None, memory_bytes: 0 };
    let mut worker = process::start(program, Role::Survey, &target, None)
        .map_err(|e| format!("the process that looks for {what} cannot be started: {e}"))?;
    match answer(&mut worker.inbox) {
        Ok(answer) => {
            let mut survey = answer?;
            let reached = worker.process.reached(survey.layers);
            confinement::get().check(&reached)?;
            survey.layers = reached.layers();
            Ok(survey)
        }
        Err(why) => {
            let ended = process::describe_exit(worker.process.end());
            Err(format!("the process that looks for {what} {ended}: {why}"))
        }
    }
}

/// The outer error means that it misbehaved or ended.
fn answer(inbox: &mut Inbox) -> Result<Result<Survey, String>, String> {
    let until = Instant::now() + Duration::from_secs(SURVEY_S);
    loop {
        while let Some(frame) = inbox.frame().map_err(|e| e.to_string())? {
            match FromWorker::decode(frame).map_err(|e| e.to_string())? {
                FromWorker::Hello(_) => {}
                FromWorker::Survey(survey) => return Ok(Ok(survey)),
                FromWorker::Refused { fault, .. } => return Ok(Err(fault.message.to_owned())),
                other => return Err(format!("it sent {other:?}")),
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("it took longer than {SURVEY_S} s"));
        }
        match inbox.wait(Duration::ZERO, Some(left), None) {
            Ok(Got::Closed) => return Err("it gave no answer".to_owned()),
            Ok(_) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// The devices to run on: as asked for, or whatever there is. Blocks while processes look.
pub fn devices(program: &Path, requests: &[DeviceRequest]) -> Result<Vec<DeviceConfig>, ConfigError> {
    match requests {
        [] => whatever_there_is(program),
        requests => device::resolve(requests, &survey_for(program, requests)?),
    }
}

/// What the requests need to know: nothing about GPUs where none is asked for.
fn survey_for(program: &Path, requests: &[DeviceRequest]) -> Result<Survey, ConfigError> {
    let mut survey = Survey::default();
    let missing = |selector: &Selector, why: String| ConfigError::Device {
        name: selector.to_string(),
        why: match why.contains("--device cpu") {
            true => why,
            false => format!("{why}; or run with --device cpu"),
        },
    };
    let whole = |selector: &Selector| !matches!(selector, Selector::Cpu | Selector::MigUuid(_));
    if let Some(first) = requests.iter().map(|r| &r.selector).find(|selector| whole(selector)) {
        survey = gpus(program, "").map_err(|why| missing(first, why))?;
    }
    for request in requests {
        // The driver shows a slice only to processes that name it.
        if let Selector::MigUuid(uuid) = &request.selector {
            let seen = gpus(program, uuid).map_err(|why| missing(&request.selector, why))?;
            survey.driver = seen.driver;
            survey.shared |= seen.shared;
            survey.devices.retain(|device| device.uuid != *uuid);
            survey.devices.extend(seen.devices.into_iter().take(1).map(|mut device| {
                device.uuid = uuid.clone();
                device
            }));
        }
    }
    Ok(survey)
}

fn whatever_there_is(program: &Path) -> Result<Vec<DeviceConfig>, ConfigError> {
    let survey = gpus(program, "").unwrap_or_else(|why| {
        tracing::info!("no GPU: {why}");
        Survey::default()
    });
    let (devices, left_out) = device::default_devices(&survey)?;
    for why in left_out {
        tracing::warn!("a GPU is left out: {why}");
    }
    Ok(devices)
}
