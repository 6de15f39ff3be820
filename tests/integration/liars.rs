//! Workers that lie (ATTACKS 32). The liar (`tests/hostile/liar.rs`) takes the place of one worker process and plays
//! a script; the process that replaces it is honest. What it says is either refused, and then it is gone, the log says
//! why, and its calls run again elsewhere; or it affects no calls but its own.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use pappus_client::{Client, Code, Error, Invocation};

use rustix::process::Signal;

use crate::fixture::{Supervisor, beside, signal, until};
use crate::house;
use crate::kit::{self, refused};

pub(crate) const LIAR: &str = env!("CARGO_BIN_EXE_pappus-liar");

/// What an honest worker says its machine code is made for: a file of such code ends in it.
fn fingerprint() -> &'static str {
    static FINGERPRINT: LazyLock<String> = LazyLock::new(|| {
        let supervisor = Supervisor::start();
        kit::add_copy(&mut supervisor.client());
        let mut code = std::fs::read_dir(supervisor.tenant_dir().join("code")).unwrap();
        let extensions = code.by_ref().map(|file| {
            let path = file.unwrap().path();
            path.extension().map_or_else(String::new, |extension| extension.to_str().unwrap().to_owned())
        });
        extensions.min_by_key(|extension| extension == "json").unwrap()
    });
    &FINGERPRINT
}

/// A script as the liar reads it: a greeting alone in its line is an honest one.
fn script(lies: &str) -> String {
    let honest = format!("hello 1 cpu {} 0", fingerprint());
    let lines = lies.lines().map(|line| if line == "hello" { &honest } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// A supervisor, one of whose workers (the first process of a role) plays `lies`.
fn lying(role: &str, lies: &str, device: &str) -> Supervisor {
    let (program, dir) = beside(Path::new(LIAR));
    if !lies.is_empty() {
        std::fs::write(dir.path().join(format!("lies.{role}")), script(lies)).unwrap();
    }
    Supervisor::new(program, vec!["--device".into(), device.into()], dir)
}

/// One worker, the first of which lies, if there are lies.
fn serving(lies: &str) -> (Supervisor, Client) {
    let supervisor = lying("serve", lies, "cpu:workers=1,memory=16MiB");
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    (supervisor, client)
}

/// How many descriptors the supervisor has open.
fn descriptors(supervisor: &Supervisor) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", supervisor.pid())).unwrap().count()
}

/// The liar answers a call with `lies`; for them it is replaced, the log says `why`, the call is answered rightly, and
/// nothing of the liar is left.
#[track_caller]
fn is_caught(lies: &str, why: &str) {
    let (supervisor, mut client) = serving("");
    kit::works(&mut client);
    let before = descriptors(&supervisor);
    supervisor.write("lies.serve", script(&format!("hello\nawait invoke\n{lies}\nsilence")));
    let honest = supervisor.worker_pids();
    signal(honest[0], Signal::KILL);
    until("the liar is there", || supervisor.worker_pids() != honest);
    let liar = supervisor.worker_pids();
    kit::works(&mut client);
    let log = supervisor.log();
    assert!(log.contains(why), "{lies}: the log does not say {why:?}");
    let device = supervisor.device();
    assert_eq!((device.completed, device.failed), (2, 0), "{lies}");
    assert_ne!(supervisor.worker_pids(), liar);
    until("the liar is reaped", || supervisor.children() == supervisor.worker_pids());
    until("nothing of the liar is open", || descriptors(&supervisor) <= before);
}

/// The control: the same liar, with an answer that is its to give, is believed and stays.
#[test]
fn a_workers_statement_about_itself_is_accepted() {
    let (supervisor, mut client) = serving("hello\nawait invoke\ndone it 5\nsilence");
    let liar = supervisor.worker_pids();
    assert_eq!(kit::copied(&mut client, b"abc").unwrap(), [0; 3], "it wrote nothing");
    assert_eq!(supervisor.worker_pids(), liar);
    assert!(!supervisor.log().contains("WARN"));
    let (supervisor, mut client) = serving("hello\nawait invoke\nfailed it trap 7 a reason\nsilence");
    let error = refused(kit::copied(&mut client, b"abc"), Code::KernelFault, "a reason");
    // There is no such kernel.
    assert_eq!(error.place, "");
    assert!(!supervisor.log().contains("WARN"));
}

#[test]
fn forged_ids_are_not_believed() {
    for id in ["it+1", "it-1", "0", "max"] {
        is_caught(&format!("done {id} 5"), "it answered a call that it does not have");
        is_caught(&format!("failed {id} trap 0 forged"), "it answered a call that it does not have");
    }
}

#[test]
fn replies_out_of_turn_are_not_believed() {
    is_caught("hello", "it sent Hello");
    is_caught("survey", "it sent Survey");
    is_caught("compiled 1 copy", "it sent Compiled");
    is_caught("refused 1 why", "it sent Refused");
    is_caught("yielded 1 5 0", "turn");
    is_caught("yielding 1", "turn");
    is_caught("leased 1", "settings that it was not sent");
    is_caught("leased max", "settings that it was not sent");
    is_caught("exported it 64", "unavailable");
    is_caught("descriptors it+1 1\nexported it 64", "a packet of another message");
    is_caught("descriptors it 1\nexported it 64", "weights that it was not asked for");
    is_caught("loaded it max", "larger than what it was asked to load");
}

/// What a liar says on its turn page, with its first call on a device of two workers.
#[track_caller]
fn is_caught_in_its_turn(lies: &str, why: &str) {
    is_caught_on_its_page(&format!("await invoke\n{lies}"), why);
}

/// What a liar says and writes on its turn page, from its beginning on.
#[track_caller]
fn is_caught_on_its_page(lies: &str, why: &str) {
    let supervisor = lying("serve", &format!("hello\n{lies}\nsilence"), BY_TURNS);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    until(why, || supervisor.log().contains(why));
    let device = supervisor.device();
    assert_eq!((device.completed, device.failed), (1, 0), "{lies}");
}

const BY_TURNS: &str = "cpu:workers=2,memory=16MiB,turns=on,quantum=1ms";

#[test]
fn what_a_liar_writes_on_its_turn_page_is_not_believed() {
    const NOT_ITS: &str = "it yielded a turn that it does not have";
    // The liar has turn 1. It speaks of a later turn, of none, and of one that it gave back before the next. (The first
    // word of the page says that the liar sleeps, so that every turn wakes it.)
    for lies in ["yielded 2 5 0", "yielding 2", "yielded 0 5 0"] {
        is_caught_in_its_turn(lies, NOT_ITS);
    }
    let again = "scribble 0 1\nawait order\nscribble 0 5\nyielded 1 5 0\nawait order\nyielding 1";
    is_caught_on_its_page(again, NOT_ITS);
    is_caught_in_its_turn("scribble 16 max\nlook", NOT_ITS);
    is_caught_in_its_turn("forever yielding 2", NOT_ITS);
    // Whatever it orders itself, and whatever the numbers are: nobody reads that.
    is_caught_in_its_turn("scribble 0 max\nscribble 1 max\nscribble 17 max\nlook", "for nothing");
    is_caught_in_its_turn("forever look", "for nothing");
}

/// The control: what it says of its own turn is believed, as far as that can be.
#[test]
fn a_liar_yields_its_own_turn() {
    let lies = "hello\nawait invoke\nyielding 1\nyielded 1 max 0\ndone it 5\nsilence";
    let supervisor = lying("serve", lies, BY_TURNS);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    assert_eq!(kit::copied(&mut client, b"abc").unwrap(), [0; 3], "it wrote nothing");
    assert!(!supervisor.log().contains("WARN"));
    let used_ns: u64 = supervisor.device().workers.iter().map(|worker| worker.device_ns).sum();
    assert!(used_ns < 60_000_000_000, "{used_ns}");
}

/// The liar says that it answered everything, and answered nothing: the call's deadline ends that.
#[test]
fn a_liar_that_wants_no_turn_answers_for_its_calls_all_the_same() {
    let lies = "hello\nawait invoke\nyielded 1 5 max\nsilence";
    let supervisor = lying("serve", lies, BY_TURNS);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    let call = Invocation::new("copy").input("in", vec![1]).deadline(Duration::from_millis(50));
    refused(client.invoke(&call), Code::DeadlineExceeded, "");
    kit::works(&mut client);
}

/// A liar that keeps its turn, writes over the whole page, and says that the supervisor does not sleep: others wait for
/// as long as a turn may overrun.
#[test]
fn a_liar_that_scribbles_delays_others_by_an_overrun_at_most() {
    let scribbles: Vec<String> =
        (0..512).filter(|at| *at != 16).map(|at| format!("scribble {at} max")).collect();
    let lies = format!("hello\nawait invoke\n{}\nscribble 16 0\nsilence", scribbles.join("\n"));
    let (program, dir) = beside(Path::new(LIAR));
    std::fs::write(dir.path().join("lies.serve"), script(&lies)).unwrap();
    std::fs::write(dir.path().join("pappus.toml"), house::config(&[("a", ""), ("b", "")])).unwrap();
    let flags = ["--config", "pappus.toml", "--device", BY_TURNS].map(str::to_owned);
    let supervisor = Supervisor::new(program, flags.into(), dir);
    let [mut client, mut stranger] = ["a", "b"].map(|tenant| house::enter(&supervisor, tenant));
    kit::add_copy(&mut client);
    kit::add_copy(&mut stranger);
    let call = Invocation::new("copy").input("in", vec![1]).deadline(Duration::from_secs(60));
    let stuck = client.send_invocation(&call).unwrap();
    supervisor.until_running();
    for _ in 0..20 {
        kit::works(&mut stranger);
    }
    client.cancel(stuck).unwrap();
    kit::fails(&mut client, stuck, Code::Cancelled);
}

#[test]
fn an_answer_counts_once() {
    let (supervisor, mut client) = serving("hello\nawait invoke\ntimes 2 done it 5\nsilence");
    assert_eq!(kit::copied(&mut client, b"abc").unwrap(), [0; 3]);
    kit::works(&mut client);
    assert!(supervisor.log().contains("it answered a call that it does not have"));
    assert_eq!(supervisor.device().completed, 2);
}

#[test]
fn answers_before_any_call_are_not_believed() {
    for lies in ["done 1 5", "done 0 5", "failed 1 trap 0 why", "yielded 0 5 0", "leased 9\nleased 9"] {
        let (supervisor, mut client) = serving(&format!("hello\nmute\n{lies}\nsilence"));
        kit::works(&mut client);
        until("the log says so", || supervisor.log().contains("replacing it"));
        assert_eq!(supervisor.device().failed, 0, "{lies}");
    }
}

#[test]
fn a_malformed_frame_ends_the_worker() {
    // Length, tag, version and id: an unknown tag, another version, too long a body, a supervisor's own message.
    is_caught("bytes 00000000 ff00 0100 0000000000000000", "unknown tag");
    is_caught("bytes 00000000 4100 0200 0000000000000000", "wrong version");
    is_caught("bytes ffffffff 4100 0100 0000000000000000", "body too long");
    is_caught("bytes 00000000 0600 0100 0000000000000000", "a supervisor's message");
    // A body of another shape: a result of 8 bytes, a fault of an unknown kind, text that is none.
    is_caught("bytes 08000000 4100 0100 0100000000000000 0000000000000000", "bad Done");
    is_caught("bytes 08000000 4200 0100 0100000000000000 6300000000000000", "bad Failed");
    is_caught("bytes 09000000 4700 0100 0000000000000000 0800000000000000ff", "bad Broken");
    is_caught("zeros 4096", "bad frame header");
}

/// Half a frame is waited for, until the call's deadline.
#[test]
fn half_a_frame_and_silence_are_ended_by_the_deadline() {
    for lies in ["bytes 20000000 4100 0100", "bytes 20000000 4100 0100 0100000000000000 00", ""] {
        let (supervisor, mut client) = serving(&format!("hello\nawait invoke\n{lies}\nsilence"));
        let liar = supervisor.worker_pids();
        let call = Invocation::new("copy").input("in", vec![1]).deadline(Duration::from_millis(50));
        refused(client.invoke(&call), Code::DeadlineExceeded, "");
        kit::works(&mut client);
        assert_ne!(supervisor.worker_pids(), liar);
    }
}

#[test]
fn a_flood_of_messages_ends_with_its_first_forged_one() {
    is_caught("forever done it+9 5", "it answered a call that it does not have");
    is_caught("forever look", "turn");
    is_caught("forever zeros 65536", "bad frame header");
}

/// The supervisor does not read descriptors that it did not ask for: they stay in the socket, and go with it.
#[test]
fn floods_of_descriptors_stay_outside() {
    let (supervisor, mut client) = serving("hello\nawait invoke\ndescriptors it 100000\ndone it 5\nsilence");
    let before = descriptors(&supervisor);
    assert_eq!(kit::copied(&mut client, b"abc").unwrap(), [0; 3]);
    assert!(descriptors(&supervisor) <= before + 1);
    is_caught("descriptors it 100000\ndone it+1 5", "it answered a call that it does not have");
}

/// Only the worker can measure timings: forged ones reach its caller and break nothing.
#[test]
fn false_timings_break_nothing() {
    let (supervisor, mut client) = serving("hello\nawait invoke\ndone it max\nsilence");
    let call = Invocation::new("copy").input("in", vec![1]).output("out");
    let timings = client.invoke(&call).unwrap().timings.unwrap();
    assert_eq!(timings.execute_ns, u64::MAX);
    // What the supervisor measures itself is right.
    assert!(timings.total_ns < 60_000_000_000 && timings.queued_ns <= timings.total_ns);
    assert_eq!(supervisor.device().workers[0].device_ns, 0);
    assert_eq!(supervisor.device().completed, 1);
}

/// One call is in the liar, another in an honest worker; the liar claims all that may be near its own.
#[test]
fn calls_of_others_are_not_its_to_answer() {
    let lies = "hello\nawait invoke\ndone it+1 5\ndone it-1 5\nsilence";
    let supervisor = lying("serve", lies, "cpu:workers=2,memory=16MiB");
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::add_spin(&mut client);
    supervisor.worker_pids();
    let calls = [(); 2].map(|()| client.send_invocation(&Invocation::new("spin")).unwrap());
    until("the liar is caught", || supervisor.log().contains("it answered a call that it does not have"));
    until("both calls run", || supervisor.device().running == 2);
    for call in calls {
        client.cancel(call).unwrap();
        kit::fails(&mut client, call, Code::Cancelled);
    }
    assert_eq!(supervisor.device().completed, 0, "the liar answered a call");
}

/// What a worker says of its device makes its calls suspects, and no more than that.
#[test]
fn a_device_that_is_said_to_be_lost_costs_the_worker_only() {
    is_caught("broken the sky fell", "its device context is lost: the sky fell");
    let (supervisor, mut client) = serving("hello\nbroken before any call\nsilence");
    kit::works(&mut client);
    until("the log says so", || supervisor.log().contains("before any call"));
    // A worker that says so every time is believed once it was alone with the call.
    let again = "hello\nawait invoke\nbroken again\nsilence";
    let (supervisor, mut client) = serving(again);
    supervisor.worker_pids();
    supervisor.write("lies.serve", script(again));
    refused(kit::copied(&mut client, b"abc"), Code::Internal, "again");
    kit::works(&mut client);
}

/// A worker's words are one line of the log, without control characters.
#[test]
fn words_of_a_worker_forge_no_line_of_the_log() {
    let lies = "broken first\\n2026-01-01T00:00:00Z ERROR forged \\e[31mline";
    is_caught(lies, "forged");
    let (supervisor, mut client) = serving(&format!("hello\nawait invoke\n{lies}\nsilence"));
    kit::works(&mut client);
    let log = supervisor.log();
    let line = log.lines().find(|line| line.contains("forged")).unwrap();
    assert!(line.contains("replacing it") && !line.contains('\u{1b}'), "{line:?}");
}

#[test]
fn a_greeting_that_lies_is_no_worker() {
    for (greeting, why) in [
        ("hello 9 cpu liar 0", "another build"),
        ("hello 1 cuda liar 0", "it is for cuda"),
        ("hello 1 tpu liar 0", "tpu"),
        ("hello 1 cpu ../../x 0", "no plain word"),
        ("survey", "before its greeting"),
        ("done 1 5", "before its greeting"),
        ("zeros 64", "bad frame header"),
        ("exit 3", "ended before its greeting"),
    ] {
        let (supervisor, mut client) = serving(&format!("{greeting}\nsilence"));
        kit::works(&mut client);
        until(why, || supervisor.log().contains(why));
        until("it is gone", || supervisor.children() == supervisor.worker_pids());
    }
    // More memory than there is, for itself: it gets no calls, and its successor gets everything.
    let (supervisor, mut client) = serving("hello 1 cpu liar max\nsilence");
    signal(supervisor.children()[0], Signal::KILL);
    kit::works(&mut client);
}

/// What a compiling process says concerns the module it was started for.
#[test]
fn a_compiler_that_lies_costs_its_own_registration() {
    let scripts = [
        ("hello\nawait compile\ncompiled it copy", "unavailable"),
        ("hello\nawait compile\ncode it 64\ncompiled it+1 copy", "it sent Compiled"),
        ("hello\nawait compile\ncode it+1 64\ncompiled it copy", "another message"),
        ("hello\nawait compile\nunsealed it\ncompiled it copy", "seal"),
        // Not behind `await`: the supervisor asks nothing of a process that has said nothing.
        ("compiled 1 copy", "before it said hello"),
        ("hello\nawait compile\ndone it 5", "it sent Done"),
        ("hello\nawait compile\nhello", "it sent Hello"),
        ("hello\nawait compile\nexit 7", "exited with code 7"),
        ("hello 1 cuda liar 0", "it compiles for cuda"),
        ("hello 1 cpu ../x 0", "no plain word"),
        ("zeros 64", "bad frame header"),
    ];
    let caught = |(lies, words): (&str, &str)| {
        let supervisor = lying("compile", &format!("{lies}\nsilence"), "cpu:workers=1,memory=1MiB");
        let mut client = supervisor.client();
        let variant = kit::wasm(&mut client, kit::probes());
        let error = refused(client.add_module("m", vec![variant.clone()]), Code::InvalidArgument, "");
        assert!(error.message.contains(words), "{lies}: {error}");
        assert_eq!(client.list_modules().unwrap(), []);
        // The next one is honest.
        client.add_module("m", vec![variant]).unwrap();
        until("no process is left", || supervisor.children() == supervisor.worker_pids());
    };
    // All cases at once: a case mostly waits.
    std::thread::scope(|scope| {
        for script in scripts {
            scope.spawn(move || caught(script));
        }
    });
}

/// Machine code that is none, and kernels that are not in it: the owner's calls fail, and no others.
#[test]
fn machine_code_that_is_none_is_not_run() {
    let lies = "hello\nawait compile\ncode it 4096\ncompiled it copy fill store global work spin trap";
    let supervisor = lying("compile", lies, "cpu:workers=1,memory=16MiB");
    let mut client = supervisor.client();
    let refusal = kit::Function { steps: &[kit::launch("trap", &[])], ..kit::Function::default() };
    match refusal.try_add(&mut client, "lied") {
        Ok(_) => {
            let answer = client.invoke(&Invocation::new("lied"));
            assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
        }
        Err(error) => assert!(matches!(error, Error::Refused(_)), "{error}"),
    }
    assert_eq!(supervisor.device().workers[0].restarts, 0);
}

/// All processes lie, from the first to the last.
fn none_is_honest(liar: &str) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/liars").join(liar);
    let mut supervisor = Supervisor::with_worker(&program);
    let mut client = supervisor.client();
    let variant = kit::wasm(&mut client, kit::probes());
    match client.add_module("m", vec![variant]) {
        Err(Error::Refused(error)) => {
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
            assert!(error.message.contains("could not be compiled"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.list_modules().unwrap(), []);
    let workers = client.status().unwrap().devices.remove(0).workers;
    assert_eq!(workers[0].state, "starting");
    supervisor.terminate();
    assert_eq!(supervisor.ended().code(), Some(0));
}

#[test]
fn garbage_from_every_worker_answers_no_call() {
    none_is_honest("garbage");
}

#[test]
fn a_flood_from_every_worker_answers_no_call() {
    none_is_honest("flood");
}

#[test]
fn forged_replies_from_every_worker_answer_no_call() {
    none_is_honest("forges");
}

#[test]
fn workers_that_quit_at_once_answer_no_call() {
    none_is_honest("quits");
}
