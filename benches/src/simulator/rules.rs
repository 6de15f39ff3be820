//! Rules: settings of a device as `--device cuda:0:SETTINGS` takes them, read by the supervisor's own code and completed with
//! its defaults for an H200.

use pappus_protocol::Kind;
use pappus_protocol::from_worker::{FoundDevice, Survey};
use pappus_supervisor::config::DeviceRequest;
use pappus_supervisor::config::device::resolve;
use pappus_supervisor::schedule::Shape;

use crate::Result;

/// Memory of an H200.
const MEMORY_BYTES: u64 = 139 << 30;

/// What the scheduler of a device with these settings is told.
pub fn shape(settings: &str) -> Result<Shape> {
    let request: DeviceRequest = format!("cuda:0:{settings}").parse()?;
    let found = FoundDevice {
        name: "NVIDIA H200".to_owned(),
        uuid: "GPU-0".to_owned(),
        arch: "sm_90".to_owned(),
        memory_bytes: MEMORY_BYTES,
        free_bytes: MEMORY_BYTES,
        ..FoundDevice::default()
    };
    let survey = Survey { devices: vec![found], ..Survey::default() };
    let devices = resolve(&[request], &[(Kind::Cuda, survey)].into())?;
    let device = devices.first().ok_or("the virtual GPU was not found")?;
    Ok(pappus_supervisor::device::shape(device))
}

/// Settings with others on top, which win.
pub fn merged(settings: &str, on_top: &str) -> String {
    let parts = |text: &str| -> Vec<String> {
        text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let key = |part: &str| part.split('=').next().unwrap_or_default().to_owned();
    let wins = parts(on_top);
    let kept = parts(settings).into_iter().filter(|part| wins.iter().all(|win| key(win) != key(part)));
    let mut all: Vec<String> = kept.collect();
    all.extend(wins.iter().cloned());
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_supervisors() {
        let defaults = shape("").unwrap();
        assert_eq!((defaults.workers, defaults.standbys, defaults.quantum_us), (62, 1, Some(5_000)));
        let given = shape(&merged("workers=8,turns=on", "turns=off,lanes=4")).unwrap();
        assert_eq!((given.workers, given.lanes, given.quantum_us), (8, 4, None));
        assert!(shape("turns=sometimes").is_err());
    }
}
