//! The setup of every part: the device, bare programs on it, and supervisors that have it.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::Result;
use crate::bare::loops::Rate;
use crate::bare::program::{Chosen, Survey, USUAL_CONNECTIONS};
use crate::bare::work::Work;
use crate::bare::{ancestors, turns};
use crate::harness::functions::{Form, Handed};
use crate::harness::supervisor::{Home, Supervisor};

/// The device that stands for a rehearsal: everything but the bare programs, without a GPU.
const REHEARSAL: &str = "cpu";
/// Hardware queues of bare programs: as many as Pappus' workers have.
const CONNECTIONS: u32 = 32;
/// Of the evaluation's `inference`; bare programs do as many unless they are told otherwise.
const REPETITIONS: u32 = 500;
/// Lines of a supervisor's log that an error shows.
const LOG_LINES: usize = 12;

/// The device under test.
#[derive(Debug)]
pub struct Bed {
    device: String,
    /// What bare programs run on; none in a rehearsal.
    chosen: Option<Chosen>,
    /// The compiled form that functions are registered with.
    form: Form,
    described: String,
    /// How long a rate is measured.
    pub measured: Duration,
    logs: TempDir,
    started: AtomicU32,
}

/// A bare program's rate, and what it takes to have it again.
#[derive(Debug, Clone)]
pub struct Best {
    /// What it reached.
    pub rate: Rate,
    connections: u32,
}

impl Best {
    /// The best of several.
    pub fn of(all: &[Self]) -> Result<&Self> {
        let best = all.iter().max_by(|a, b| a.rate.per_second.total_cmp(&b.rate.per_second));
        Ok(best.ok_or("no bare program was measured")?)
    }
}

/// A running supervisor and everything it owns.
#[derive(Debug)]
pub struct Running {
    supervisor: Supervisor,
    home: Home,
    device: String,
}

impl Deref for Running {
    type Target = Supervisor;

    fn deref(&self) -> &Supervisor {
        &self.supervisor
    }
}

impl Bed {
    /// Looks for the device; an error where it is not there.
    pub fn new(device: &str, measured: Duration) -> Result<Self> {
        let (chosen, form, described) = match device {
            REHEARSAL => (None, Form::Wasm, "rehearsal without a GPU".to_owned()),
            _ => {
                let chosen = Chosen::parse(device)?;
                let survey: Survey = chosen
                    .ask("survey", &[], CONNECTIONS)
                    .map_err(|e| format!("{device} cannot be used: {e}"))?;
                let Survey { name, arch, driver } = survey;
                (Some(chosen), Form::Ptx, format!("{name} ({arch}), {driver}"))
            }
        };
        let logs = tempfile::Builder::new().prefix("pappus-bench-logs-").tempdir()?;
        Ok(Self {
            device: device.to_owned(),
            chosen,
            form,
            described,
            measured,
            logs,
            started: AtomicU32::new(0),
        })
    }

    /// The GPU in words.
    pub fn describe(&self) -> String {
        self.described.clone()
    }

    /// True if there is no GPU to measure: a rehearsal.
    pub fn rehearses(&self) -> bool {
        self.form == Form::Wasm
    }

    /// The evaluation's `inference`; in a rehearsal a shorter one, since there it takes a fifth of a second.
    pub fn inference(&self) -> Work {
        Work::Inference(if self.rehearses() { 1 } else { REPETITIONS })
    }

    /// The compiled form that functions are registered with.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Registers functions of the library under their own names.
    pub fn register(&self, client: &mut pappus_client::Client, functions: &[&str]) -> Result<()> {
        for function in functions {
            let handed = Handed::put_as(client, function, self.form(), "")?;
            client.add_function(handed.named(function))?;
        }
        Ok(())
    }

    /// Rates of a bare program that keeps lanes busy: one for each number of threads and of lanes.
    pub fn bare(&self, args: &[&str], threads: &[usize], lanes: &[usize]) -> Result<Vec<Rate>> {
        self.bare_with(args, threads, lanes, CONNECTIONS)
    }

    fn bare_with(
        &self,
        args: &[&str],
        threads: &[usize],
        lanes: &[usize],
        connections: u32,
    ) -> Result<Vec<Rate>> {
        let Some(chosen) = &self.chosen else {
            let rates =
                threads.iter().flat_map(|threads| lanes.iter().map(|lanes| nothing(*threads, *lanes)));
            return Ok(rates.collect());
        };
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut args = self.with_time(args);
        args.extend([format!("--threads={}", list(threads)), format!("--lanes={}", list(lanes))]);
        chosen.ask("closed", &args, connections)
    }

    /// The better of two programs for each number of lanes: with many hardware queues and with the usual few.
    pub fn best_bare(&self, args: &[&str], lanes: &[usize]) -> Result<Vec<Best>> {
        let many = self.bare(args, &[1], lanes)?;
        let few = self.bare_with(args, &[1], lanes, USUAL_CONNECTIONS)?;
        let pairs = many.into_iter().zip(few);
        let better = pairs.map(|(many, few)| match many.per_second >= few.per_second {
            true => Best { rate: many, connections: CONNECTIONS },
            false => Best { rate: few, connections: USUAL_CONNECTIONS },
        });
        Ok(better.collect())
    }

    /// Runs the best of such programs again.
    pub fn again(&self, args: &[&str], best: &Best) -> Result<Rate> {
        let rates = self.bare_with(args, &[1], &[best.rate.lanes], best.connections)?;
        Ok(rates.into_iter().next().ok_or("a bare program measured nothing")?)
    }

    /// Rates of so many processes that pass the device on from one to the next: one for each number of lanes.
    pub fn by_turns(&self, args: &[&str], processes: usize, lanes: &[usize]) -> Result<Vec<f64>> {
        let Some(chosen) = &self.chosen else { return Ok(vec![f64::NAN; lanes.len()]) };
        let lanes = lanes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut args = self.with_time(args);
        args.push(format!("--lanes={lanes}"));
        turns::measure(chosen, processes, &args, CONNECTIONS)
    }

    /// A bare program that makes one call after the other.
    pub fn one_by_one(&self, args: &[&str]) -> Result<Rate> {
        match &self.chosen {
            Some(chosen) => chosen.ask("one-by-one", &self.with_time(args), CONNECTIONS),
            None => Ok(nothing(1, 1)),
        }
    }

    /// Bytes a second from pinned memory to the device.
    pub fn bandwidth(&self) -> Result<f64> {
        match &self.chosen {
            Some(chosen) => chosen.ask("copy", &[], CONNECTIONS),
            None => Ok(f64::NAN),
        }
    }

    /// The ancestors' design with so many workers.
    pub fn ancestors(&self, workers: usize, args: &[&str]) -> Result<Rate> {
        let Some(chosen) = &self.chosen else {
            return Ok(nothing(workers, workers));
        };
        let args = self.with_time(args);
        let start = || chosen.command("ancestor-worker", &args, USUAL_CONNECTIONS);
        ancestors::measure(workers, self.measured, start)
    }

    fn with_time(&self, args: &[&str]) -> Vec<String> {
        let args = args.iter().map(|arg| (*arg).to_owned());
        args.chain([format!("--measured-ms={}", self.measured.as_millis())]).collect()
    }

    /// Starts a supervisor that has the device with these settings, such as `workers=1,lanes=8`, or with the default ones.
    pub fn start(&self, settings: &str) -> Result<Running> {
        self.start_in(Home::new()?, self.with_settings(settings))
    }

    fn start_in(&self, home: Home, device: String) -> Result<Running> {
        let supervisor = home.start_with(&device, &self.next_log())?;
        Ok(Running { supervisor, home, device })
    }

    /// As [`Bed::start`], with a configuration file.
    pub fn start_configured(&self, settings: &str, toml: &str) -> Result<Running> {
        let home = Home::new()?;
        home.configure(toml)?;
        self.start_in(home, self.with_settings(settings))
    }

    /// As [`Bed::start`], with this device and the one of the next number.
    pub fn start_two(&self, settings: &str) -> Result<Running> {
        let second = self.second().ok_or("the device has no number")?;
        self.start_in(Home::new()?, format!("{} {second}:{settings}", self.with_settings(settings)))
    }

    /// The device of the next number: `cuda:1` for `cuda:0`.
    fn second(&self) -> Option<String> {
        let (kind, number) = self.device.split_once(':')?;
        Some(format!("{kind}:{}", number.parse::<u32>().ok()? + 1))
    }

    /// True if there is a device of the next number.
    pub fn has_second(&self) -> bool {
        self.second().is_some_and(|device| Self::new(&device, self.measured).is_ok())
    }

    /// As [`Bed::start`], with workers that clear nothing.
    pub fn start_uncleared(&self, settings: &str) -> Result<Running> {
        let (home, device) = (Home::new()?, self.with_settings(settings));
        let supervisor = home.start_uncleared(&device, &self.next_log())?;
        Ok(Running { supervisor, home, device })
    }

    fn with_settings(&self, settings: &str) -> String {
        match self.rehearses() {
            _ if settings.is_empty() => self.device.clone(),
            false => format!("{}:{settings}", self.device),
            true => format!("cpu:{}", for_the_cpu(settings)),
        }
    }

    /// Ends a supervisor and starts another with the same state and settings.
    pub fn restart(&self, running: Running) -> Result<Running> {
        let Running { supervisor, home, device } = running;
        supervisor.stop()?;
        self.start_in(home, device)
    }

    fn next_log(&self) -> PathBuf {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.log()
    }

    fn log(&self) -> PathBuf {
        self.logs.path().join(format!("supervisor-{}", self.started.load(Ordering::Relaxed)))
    }

    /// The end of the newest supervisor's log, to show below an error.
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        last.iter().fold(String::new(), |text, line| format!("{text}\n    | {line}"))
    }
}

/// What a rehearsal has in the place of a bare program's rate: nothing can be compared with it.
fn nothing(threads: usize, lanes: usize) -> Rate {
    Rate { threads, lanes: threads * lanes, per_second: f64::NAN, p50_ns: f64::NAN, p99_ns: f64::NAN }
}

/// What the CPU device understands of a GPU's settings, with little memory.
fn for_the_cpu(settings: &str) -> String {
    let known = |setting: &&str| {
        ["workers=", "turns=", "quantum=", "standbys=", "tenant-switch=", "weights="]
            .iter()
            .any(|key| setting.starts_with(key))
    };
    let mut kept: Vec<&str> = settings.split(',').filter(known).collect();
    kept.push("memory=512MiB");
    kept.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_device_is_the_one_of_the_next_number() {
        let bed = Bed::new(REHEARSAL, Duration::ZERO).unwrap();
        assert!(bed.second().is_none() && !bed.has_second());
        assert_eq!(Bed { device: "cuda:0".to_owned(), ..bed }.second().as_deref(), Some("cuda:1"));
    }

    #[test]
    fn a_rehearsal_leaves_out_what_only_gpus_have() {
        let settings = "workers=8,lanes=8,memory=40GiB,quantum=5ms,scrub=call";
        assert_eq!(for_the_cpu(settings), "workers=8,quantum=5ms,memory=512MiB");
    }

    #[test]
    fn an_unknown_device_is_refused_with_an_example() {
        let refused = Bed::new("gpu", Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains("cuda:0"), "{refused}");
    }
}
