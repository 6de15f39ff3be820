//! Which GPU this is: lines `name=value` of the file `lookalike` in the first folder of `LD_LIBRARY_PATH` that has one.

use std::path::PathBuf;
use std::sync::LazyLock;

/// Settings of the file, or the defaults without one.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where the file is.
    pub(crate) folder: Option<PathBuf>,
    /// `gfx90a` or `gfx942`.
    pub(crate) arch: String,
    /// How many GPUs.
    pub(crate) devices: usize,
    /// Memory of each.
    pub(crate) memory_bytes: u64,
    /// Compute units of each.
    pub(crate) units: usize,
    /// The version of HIP that the library claims.
    pub(crate) version: i32,
    /// True if calls' traces are cleared. A GPU that leaves traces is the control of tests for leaks: fills of a part of a
    /// mapping with zeros and copies onto variables of modules do nothing there.
    pub(crate) clears: bool,
}

pub(crate) static SETTINGS: LazyLock<Settings> = LazyLock::new(read);

const NAME: &str = "lookalike";

fn read() -> Settings {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folder = std::env::split_paths(&path).find(|folder| folder.join(NAME).is_file());
    let text = folder
        .as_ref()
        .and_then(|folder| std::fs::read_to_string(folder.join(NAME)).ok())
        .unwrap_or_default();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, otherwise: u64| value(name).and_then(|v| v.parse().ok()).unwrap_or(otherwise);
    Settings {
        folder,
        arch: value("arch").unwrap_or("gfx90a").to_owned(),
        devices: number("devices", 1) as usize,
        memory_bytes: number("memory", 8 << 30),
        units: number("units", 4).clamp(1, 16) as usize,
        version: number("version", 70_152_802) as i32,
        clears: value("clears") != Some("no"),
    }
}

/// The devices that this process sees, by their numbers among all: `ROCR_VISIBLE_DEVICES` chooses among all, by number
/// or UUID, `HIP_VISIBLE_DEVICES` among those. The first that is none ends a list.
pub(crate) fn visible() -> Vec<usize> {
    let mut devices: Vec<usize> = (0..SETTINGS.devices).collect();
    for name in ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"] {
        let Ok(list) = std::env::var(name) else { continue };
        let chosen = list.split(',').map_while(|item| match item.strip_prefix("GPU-") {
            Some(uuid) => devices.iter().copied().find(|device| uuid_of(*device) == uuid),
            None => devices.get(item.trim().parse::<usize>().ok()?).copied(),
        });
        devices = chosen.collect();
    }
    devices
}

/// Sixteen digits.
pub(crate) fn uuid_of(device: usize) -> String {
    format!("1007a11ce{device:07x}")
}

/// An address on a bus that no machine has, so that nothing is found about it.
pub(crate) fn bus_id_of(device: usize) -> String {
    format!("fffe:{device:02x}:00.0")
}
