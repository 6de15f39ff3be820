//! Whether all is well with a supervisor, by its status: what is not, and what to do about it. `pappus status` ends with that, and
//! `pappus top` shows it all the time.

use std::io::Write;

use anstyle::{AnsiColor, Style};
use pappus_client::v1;
use serde_json::{Value, json};

use crate::failure::Result;
use crate::table::{plain, shortened};

/// The most that is told by line; the rest is counted.
const TOLD: usize = 8;
/// The most characters of a name in a line that says more than the name.
const NAME: usize = 16;
/// A queue with more than so many tenths of what it may have is nearly full.
const NEARLY_FULL_TENTHS: u64 = 9;
/// Where less than this part of a device's memory is free, calls wait for it.
const SCARCE_PART: u64 = 50;

/// Something that is not as it should be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// What is wrong.
    pub(super) what: String,
    /// What to do about it.
    pub(super) cure: String,
}

/// Everything that is not well, the worst first, as lines show it.
pub(super) fn troubles(status: &v1::Status) -> Vec<Trouble> {
    troubles_with(status, NAME)
}

/// The same, with at most so many characters of each name. What others chose is without what a terminal obeys.
fn troubles_with(status: &v1::Status, most: usize) -> Vec<Trouble> {
    let name = |name: &str| shortened(&plain(name), most);
    let mut found = Vec::new();
    let mut add = |what: String, cure: &str| found.push(Trouble { what, cure: cure.to_owned() });
    if status.draining {
        add(
            "the supervisor is draining and takes no more calls".into(),
            "start another one when it has ended",
        );
    }
    for device in status.devices.iter().filter(|device| device.lost) {
        let cure = "no worker of it gets ready; its log and `nvidia-smi` say more";
        add(format!("device {} is lost", name(&device.name)), cure);
    }
    let is_lost = status.devices.iter().any(|device| device.lost);
    if !status.ready && !status.draining && !is_lost {
        let cure = "they start now; if that lasts, its log says why";
        add("no worker and no standby is up, so no call is answered".into(), cure);
    }
    for device in &status.devices {
        let (queued, most) = (device.queued, device.queue_calls_at_most);
        if most > 0 && queued.saturating_mul(10) >= most.saturating_mul(NEARLY_FULL_TENTHS) {
            let cure = "add devices, or raise `queue-calls`";
            add(
                format!("the queue of {} is nearly full ({queued} of {most} calls)", name(&device.name)),
                cure,
            );
        }
        let scarce = device.memory.filter(|memory| memory.free_bytes < memory.total_bytes / SCARCE_PART);
        if scarce.is_some() && queued > 0 {
            let what =
                format!("calls wait, and of the memory of {} next to nothing is free", name(&device.name));
            add(what, "a larger `memory`, or fewer tenants");
        }
    }
    for one in status.devices.iter().flat_map(|device| &device.quarantined) {
        let whose = if one.owner.is_empty() { String::new() } else { format!("{}/", name(&one.owner)) };
        let what = format!("{whose}{} is in quarantine", name(&one.function));
        add(what, "it failed each time; have its owner mend and replace it");
    }
    for (device, budget) in
        status.devices.iter().flat_map(|device| device.budgets.iter().map(move |one| (device, one)))
    {
        if budget.waits_ms > 0 {
            let what = format!(
                "calls of {} wait, since they ended workers of {}",
                name(&budget.caller),
                name(&device.name)
            );
            add(what, "tell that tenant");
        }
    }
    found
}

/// What is well, where all is.
pub(super) fn praise(status: &v1::Status) -> String {
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut words = format!("all is well: ready, {}", count(status.devices.len(), "device"));
    // Only the operator is told.
    if status.connections > 0 {
        let workers =
            status.devices.iter().flat_map(|device| &device.workers).filter(|worker| worker.pid != 0);
        words += &format!(", {}", count(workers.count(), "worker"));
    }
    words
}

/// The last lines of a status: that all is well, or a line for each thing that is not.
pub(super) fn print(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let troubles = troubles(status);
    let colour = |colour: AnsiColor| Style::new().bold().fg_color(Some(colour.into()));
    if troubles.is_empty() {
        let green = colour(AnsiColor::Green);
        return Ok(writeln!(out, "{green}{}{green:#}", praise(status))?);
    }
    let red = colour(AnsiColor::Red);
    for Trouble { what, cure } in troubles.iter().take(TOLD) {
        writeln!(out, "{red}not well:{red:#} {what}: {cure}")?;
    }
    match troubles.len().saturating_sub(TOLD) {
        0 => Ok(()),
        more => {
            Ok(writeln!(out, "{red}not well:{red:#} {more} more: `pappus status --json` has all of them")?)
        }
    }
}

/// Adds the same to an object, with whole names.
pub(super) fn add_to(value: &mut Value, status: &v1::Status) {
    let troubles = troubles_with(status, usize::MAX);
    value["well"] = troubles.is_empty().into();
    value["troubles"] = troubles.iter().map(|one| json!({"what": one.what, "cure": one.cure})).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_well_is_told_with_its_cure() {
        let status = |ready, device: v1::DeviceStatus| v1::Status {
            ready,
            devices: vec![device],
            ..Default::default()
        };
        let device =
            || v1::DeviceStatus { name: "cpu".into(), queue_calls_at_most: 10, ..Default::default() };
        let told = |status: &v1::Status| {
            let mut out = anstream::StripStream::new(Vec::new());
            print(status, &mut out).unwrap();
            String::from_utf8(out.into_inner()).unwrap()
        };
        assert_eq!(told(&status(true, device())), "all is well: ready, 1 device\n");
        let memory = v1::DeviceMemory { total_bytes: 100, free_bytes: 1, ..Default::default() };
        let quarantined =
            v1::Quarantine { function: "f\x1b".into(), owner: "acme".into(), ..Default::default() };
        let waits = v1::FaultBudget { caller: "acme".into(), waits_ms: 1, ..Default::default() };
        let cases = [
            (status(false, device()), "no worker and no standby"),
            (status(true, v1::DeviceStatus { lost: true, ..device() }), "cpu is lost"),
            (status(true, v1::DeviceStatus { queued: 9, ..device() }), "9 of 10 calls"),
            (
                status(true, v1::DeviceStatus { queued: 1, memory: Some(memory), ..device() }),
                "next to nothing is free",
            ),
            (
                status(true, v1::DeviceStatus { quarantined: vec![quarantined], ..device() }),
                "acme/f\\u{1b} is in quarantine",
            ),
            (status(true, v1::DeviceStatus { budgets: vec![waits], ..device() }), "calls of acme wait"),
            (v1::Status { draining: true, ..Default::default() }, "draining"),
        ];
        for (status, words) in cases {
            let told = told(&status);
            assert!(
                told.starts_with("not well: ") && told.contains(words) && told.lines().count() == 1,
                "{told}"
            );
        }
        // The control of the queue.
        assert!(troubles(&status(true, v1::DeviceStatus { queued: 8, ..device() })).is_empty());
    }

    #[test]
    fn many_troubles_are_counted() {
        let name = "cuda:MIG-01234567-89ab-cdef-0123-456789abcdef";
        let device = v1::DeviceStatus { name: name.into(), lost: true, ..Default::default() };
        let status = v1::Status { devices: vec![device; TOLD + 3], ..Default::default() };
        let mut out = anstream::StripStream::new(Vec::new());
        print(&status, &mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert!(text.ends_with("not well: 3 more: `pappus status --json` has all of them\n"), "{text}");
        let mut value = json!({});
        add_to(&mut value, &status);
        assert_eq!((&value["well"], value["troubles"].as_array().unwrap().len()), (&json!(false), TOLD + 3));
        // Lines have no room for the whole name.
        assert!(
            !text.contains(name) && value["troubles"][0]["what"] == format!("device {name} is lost"),
            "{value}"
        );
    }
}
