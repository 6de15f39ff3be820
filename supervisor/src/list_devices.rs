//! `pappus-supervisor --list-devices`: what could be named in `--device` here.

use std::io::Write;
use std::path::Path;

use bytesize::ByteSize;
use pappus_protocol::Kind;
use pappus_protocol::from_worker::{FoundDevice, Survey};
use serde_json::{Value, json};

use crate::config::SandboxSettings;
use crate::config::device::{BUILT_IN, name_of};
use crate::processes::confinement::Confinement;
use crate::processes::launcher::Launcher;
use crate::processes::survey::{self, SurveyError};

/// Looks and prints; a machine without a GPU has the CPU.
pub fn run(program: &Path, as_json: bool, out: &mut dyn Write) -> std::io::Result<()> {
    // Whether workers have control groups is a matter of running calls.
    let (confinement, _) = Confinement::look(SandboxSettings::default());
    let launcher = Launcher::new(program, confinement)?;
    let surveys: Vec<_> = survey::gpu_kinds().map(|kind| (kind, survey::look(&launcher, kind, ""))).collect();
    launcher.confinement().close();
    if as_json {
        return writeln!(out, "{}", in_json(&surveys));
    }
    writeln!(out, "{}  {BUILT_IN}", Kind::BUILT_IN)?;
    surveys.iter().try_for_each(|(kind, survey)| match survey {
        Ok(survey) => {
            survey.devices.iter().try_for_each(|device| writeln!(out, "{}", line(*kind, device)))?;
            let mps = if survey.shared { ", MPS is running" } else { "" };
            writeln!(out, "driver of {}: {}{mps}", kind.traits().devices, survey.driver)
        }
        Err(why) => writeln!(out, "no {}: {why}", kind.traits().devices),
    })
}

fn line(kind: Kind, device: &FoundDevice) -> String {
    let size = |bytes| ByteSize::b(bytes).display().iec();
    let (free, all) = (size(device.free_bytes), size(device.memory_bytes));
    let node = device.numa_node.map_or(String::new(), |node| format!(", NUMA node {node}"));
    let (name, uuid, arch) = (&device.name, &device.uuid, &device.arch);
    format!("{}  {name}, {arch}, {free} of {all} free{node}, {uuid}", name_of(kind, device))
}

fn in_json(surveys: &[(Kind, Result<Survey, SurveyError>)]) -> Value {
    let gpu = |kind: Kind, device: &FoundDevice| {
        json!({
            "name": name_of(kind, device),
            "kind": kind,
            "description": device.name,
            "uuid": device.uuid,
            "arch": device.arch,
            "memory_bytes": device.memory_bytes,
            "free_bytes": device.free_bytes,
            "numa_node": device.numa_node,
        })
    };
    let mut devices = vec![json!({"name": Kind::BUILT_IN, "kind": Kind::BUILT_IN})];
    let (mut drivers, mut missing) = (serde_json::Map::new(), serde_json::Map::new());
    let mut mps = false;
    for (kind, survey) in surveys {
        match survey {
            Ok(found) => {
                devices.extend(found.devices.iter().map(|device| gpu(*kind, device)));
                drivers.insert(kind.to_string(), found.driver.clone().into());
                mps |= found.shared;
            }
            Err(why) => drop(missing.insert(kind.to_string(), why.to_string().into())),
        }
    }
    json!({"devices": devices, "drivers": drivers, "missing": missing, "mps": mps})
}
