//! `pappus top`: what devices, workers, tenants and functions do, again and again, sorted and searched by keys; or once, for scripts.
//!
//! - [`picture`]: four tables, made of what the supervisor answers.
//! - [`view`]: what of them is shown, and what a key changes.
//! - [`screen`]: draws it.

mod picture;
mod screen;
mod view;

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use pappus_client::{Client, Code, Error, v1};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::json;

use self::picture::{Picture, Sample};
use self::view::{Step, View};
use super::status::WIDTH;
use super::verdict;
use crate::arguments::TopArguments;
use crate::failure::{Failure, Result};
use crate::json;
use crate::scratch::ENDING;

/// How often it is looked whether a signal came.
const LOOK_AT_SIGNALS: Duration = Duration::from_millis(100);

/// Shows one picture, or one after the other until a key ends it.
pub(crate) fn run(
    connect: impl Fn() -> Result<Client>,
    arguments: &TopArguments,
    out: &mut dyn Write,
) -> Result<()> {
    let mut source = Source { client: Some(connect()?), connect, sees_tenants: true };
    let first = source.sample()?;
    if arguments.json.json {
        let mut status = json::status(&first.status);
        verdict::add_to(&mut status, &first.status);
        let tenants = first.tenants.as_ref().map(|all| all.iter().map(json::tenant).collect::<Vec<_>>());
        return Ok(writeln!(out, "{}", json!({"status": status, "tenants": tenants}))?);
    }
    if arguments.once {
        return print(&Picture::of(&first, None), &first.status, out);
    }
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        let message =
            "stdin and stdout are no terminal: `pappus top --once` prints one picture, --json one object";
        return Err(Failure::Usage(message.into()));
    }
    let ended = Arc::new(AtomicI32::new(0));
    let mut restored = Restored::begin(&ended)?;
    let watched = watch(&mut source, first, arguments, &mut restored.0, &ended);
    drop(restored);
    match ended.load(Ordering::Relaxed) {
        0 => watched,
        signal => std::process::exit(128 + signal),
    }
}

/// Where pictures come from: a connection, made anew where it broke.
struct Source<C> {
    connect: C,
    client: Option<Client>,
    /// False once the supervisor refused to tell of all tenants.
    sees_tenants: bool,
}

impl<C: Fn() -> Result<Client>> Source<C> {
    fn sample(&mut self) -> Result<Sample> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => (self.connect)()?,
        };
        let status = client.status()?;
        let tenants = if self.sees_tenants { client.list_tenants().map(Some) } else { Ok(None) };
        let tenants: Option<Vec<v1::TenantInfo>> = match tenants {
            Err(Error::Refused(why)) if why.code() == Code::PermissionDenied => None,
            other => other?,
        };
        self.sees_tenants = tenants.is_some();
        self.client = Some(client);
        Ok(Sample { at: Instant::now(), status, tenants })
    }
}

/// One picture as text.
fn print(picture: &Picture, status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{}\n", picture.title)?;
    for pane in &picture.panes {
        pane.to_table().print_within(WIDTH, out)?;
        writeln!(out)?;
    }
    verdict::print(status, out)
}

/// The terminal, which is as it was before when this is dropped.
struct Restored(DefaultTerminal);

impl Restored {
    /// From now on, a signal that asks the program to end is told by `ended`: the terminal must not be left without lines and echo.
    fn begin(ended: &Arc<AtomicI32>) -> Result<Self> {
        let mut signals = SigSet::empty();
        ENDING.into_iter().for_each(|signal| signals.add(signal));
        signals.thread_block().map_err(std::io::Error::from)?;
        let ended = ended.clone();
        let watching = move || {
            if let Ok(signal) = signals.wait() {
                ended.store(signal as i32, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watching)?;
        Ok(Self(ratatui::try_init()?))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws, takes keys, and asks again when it is time.
fn watch<C: Fn() -> Result<Client>>(
    source: &mut Source<C>,
    first: Sample,
    arguments: &TopArguments,
    terminal: &mut DefaultTerminal,
    ended: &AtomicI32,
) -> Result<()> {
    let mut view = View::default();
    let mut picture = Picture::of(&first, None);
    let mut last = first;
    // Why there is no newer picture.
    let mut failed = None;
    let mut next = Instant::now() + arguments.every;
    loop {
        terminal.draw(|frame| screen::draw(frame, &picture, &last.status, failed.as_deref(), &mut view))?;
        if ended.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        if event::poll(next.saturating_duration_since(Instant::now()).min(LOOK_AT_SIGNALS))?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && view.press(key, &picture) == Step::End
        {
            return Ok(());
        }
        if Instant::now() < next {
            continue;
        }
        if !view.is_paused {
            match source.sample() {
                Ok(sample) => {
                    picture = Picture::of(&sample, Some(&last));
                    (last, failed) = (sample, None);
                }
                Err(why) => failed = Some(why.to_string()),
            }
        }
        next = Instant::now() + arguments.every;
    }
}
