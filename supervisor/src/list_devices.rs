//! `pappus-supervisor --list-devices`: what could be named in `--device` here.

use std::io::Write;
use std::path::Path;

use bytesize::ByteSize;
use pappus_protocol::from_worker::{FoundDevice, Survey};
use serde_json::{Value, json};

use crate::config::SandboxSettings;
use crate::config::device::name_of;
use crate::processes::confinement::Confinement;
use crate::processes::launcher::Launcher;
use crate::processes::survey::{self, SurveyError};

/// Looks and prints; a machine without a GPU has the CPU.
pub fn run(program: &Path, as_json: bool, out: &mut dyn Write) -> std::io::Result<()> {
    // Whether workers have control groups is a matter of running calls.
    let (confinement, _) = Confinement::look(SandboxSettings::default());
    let launcher = Launcher::new(program, confinement)?;
    let survey = survey::gpus(&launcher, "");
    launcher.confinement().close();
    if as_json {
        return writeln!(out, "{}", in_json(&survey));
    }
    writeln!(out, "cpu  the built-in device for wasm")?;
    match &survey {
        Ok(survey) => {
            survey.devices.iter().try_for_each(|device| writeln!(out, "{}", line(device)))?;
            let mps = if survey.shared { ", MPS is running" } else { "" };
            writeln!(out, "driver {}{mps}", survey.driver)
        }
        Err(why) => writeln!(out, "no GPU: {why}"),
    }
}

fn line(device: &FoundDevice) -> String {
    let size = |bytes| ByteSize::b(bytes).display().iec();
    let (free, all) = (size(device.free_bytes), size(device.memory_bytes));
    let node = device.numa_node.map_or(String::new(), |node| format!(", NUMA node {node}"));
    let (name, uuid, arch) = (&device.name, &device.uuid, &device.arch);
    format!("{}  {name}, {arch}, {free} of {all} free{node}, {uuid}", name_of(device))
}

fn in_json(survey: &Result<Survey, SurveyError>) -> Value {
    let gpu = |device: &FoundDevice| {
        json!({
            "name": name_of(device),
            "kind": "cuda",
            "description": device.name,
            "uuid": device.uuid,
            "arch": device.arch,
            "memory_bytes": device.memory_bytes,
            "free_bytes": device.free_bytes,
            "numa_node": device.numa_node,
        })
    };
    let mut devices = vec![json!({"name": "cpu", "kind": "cpu"})];
    match survey {
        Ok(found) => {
            devices.extend(found.devices.iter().map(gpu));
            json!({"devices": devices, "driver": found.driver, "mps": found.shared})
        }
        Err(why) => json!({"devices": devices, "no_gpu": why.to_string()}),
    }
}
