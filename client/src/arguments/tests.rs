//! Command lines that are read, and those that are refused.

use clap::CommandFactory;

use super::*;
use crate::input::Source;

fn parse(line: &str) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(line.split(' '))
}

#[test]
fn the_definition_is_sound() {
    Arguments::command().debug_assert();
}

#[test]
fn the_socket_may_stand_before_and_after_the_command() {
    for line in ["pappus --socket s status", "pappus status --socket s", "pappus function --socket s list"] {
        assert_eq!(parse(line).unwrap().socket, Some("s".into()), "{line}");
    }
}

#[test]
fn inputs_outputs_and_times_are_read() {
    let line = "pappus invoke f --input A=a,b=c --input cfg=x --output B=o.npy --deadline 500ms --repeat 3";
    let Command::Invoke(invoke) = parse(line).unwrap().command else { panic!("no invoke") };
    assert_eq!(invoke.inputs[0].name, "A");
    let file = |name: &str| Source::File(name.into());
    assert_eq!(invoke.inputs[0].value.sources, ["a", "b=c"].map(file));
    assert_eq!(invoke.inputs[1].value.sources, [file("x")]);
    let written = Destination::File("o.npy".into());
    assert_eq!((&*invoke.outputs[0].name, &invoke.outputs[0].value), ("B", &written));
    assert_eq!((invoke.deadline, invoke.repeat), (Some(Duration::from_millis(500)), 3));
}

#[test]
fn a_supervisor_may_take_as_long_as_the_command_can_wait() {
    for (line, given, patience) in [
        ("pappus status", None, 10_000),
        ("pappus status --ready", None, 2_000),
        ("pappus invoke f", None, 10_000),
        ("pappus invoke f --deadline 500ms", None, 2_500),
        ("pappus invoke f --deadline 5m", None, 10_000),
        ("pappus status --ready --patience 1m", Some(60_000), 2_000),
    ] {
        let arguments = parse(line).unwrap();
        assert_eq!(arguments.patience, given.map(Duration::from_millis), "{line}");
        assert_eq!(arguments.command.patience(), Duration::from_millis(patience), "{line}");
    }
    assert!(parse("pappus status --patience 0s").is_err());
}

#[test]
fn tuning_has_a_device_and_a_number_of_calls() {
    let read = |line: &str| match parse(line).unwrap().command {
        Command::Package(PackageCommand::Tune(tune)) => tune,
        other => panic!("{other:?}"),
    };
    let tune = read("pappus package tune m.pappus");
    assert_eq!((&*tune.device, tune.repeat, tune.package), ("cuda:0", 30, "m.pappus".into()));
    let tune = read("pappus package tune m --device hip:1 --repeat 5 --json");
    assert_eq!((&*tune.device, tune.repeat, tune.json.json), ("hip:1", 5, true));
    for wrong in ["pappus package", "pappus package tune", "pappus package tune m --repeat 0"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn names_that_come_twice_are_usage_errors() {
    let check = |line: &str| match parse(line).unwrap().command {
        Command::Invoke(invoke) => invoke.check(),
        Command::Function(FunctionCommand::Check(check)) => check.check(),
        other => panic!("{other:?}"),
    };
    let inputs = "input \"A\" is named twice: separate its files by commas";
    for (line, why) in [
        ("pappus invoke f --input A=x --input B=x --output A=a --output B=x", Ok(())),
        ("pappus invoke f --output C=a --output C=b", Err("output \"C\" is named twice")),
        ("pappus invoke f --input A=x --input A=y", Err(inputs)),
        ("pappus function check f.json --input A=x --input B=8 --input A=8", Err(inputs)),
        ("pappus invoke f --input A=-,-", Err("stdin (-) is named twice: it can be read once")),
        (
            "pappus function check f.json --input A=- --input B=-",
            Err("stdin (-) is named twice: it can be read once"),
        ),
        (
            "pappus invoke f --output A=- --output B=-",
            Err("stdout (-) is named twice: write one of the outputs to a file"),
        ),
        (
            "pappus invoke f --output A=a.bin --output B=a.bin",
            Err("a.bin is named twice: give each output a file of its own"),
        ),
        ("pappus invoke f --output A=/dev/null --output B=/dev/null", Ok(())),
    ] {
        assert_eq!(check(line).map_err(|why| why.to_string()), why.map_err(str::to_owned), "{line}");
    }
}

#[test]
fn a_missing_function_is_asked_for_by_its_usage() {
    let why = parse("pappus invoke").unwrap_err().to_string();
    // Whatever the environment sets.
    assert!(why.contains("Usage: pappus invoke <NAME>"), "{why}");
}

#[test]
fn a_malformed_assignment_is_refused_with_an_example() {
    for (line, words) in [
        ("pappus invoke f --deadline 0s", "nothing can be done in no time"),
        ("pappus invoke f --input a.bin", "expected NAME=FILE, e.g. --input A=a.bin"),
        ("pappus invoke f --output =b", "expected NAME=FILE, e.g. --output B=a.bin"),
        (
            "pappus function check f --input 8KiB",
            "NAME=FILE, NAME=SIZE or NAME=TYPE[N,...], e.g. --input A=8KiB",
        ),
        ("pappus function add f g --weight w.npy", "expected NAME=FILE, e.g. --weight W=w.npy"),
        ("pappus settings workers", "expected KEY=VALUE"),
    ] {
        let why = parse(line).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn malformed_and_contradictory_arguments_are_usage_errors() {
    for line in [
        "pappus",
        "pappus invoke f --input A",
        "pappus invoke f --input =a",
        "pappus invoke f --input A=a,,b",
        "pappus invoke f --input A=u8:256",
        "pappus token --force",
        "pappus status --ready --json",
        "pappus invoke f --deadline soon",
        "pappus invoke f --repeat 0",
        "pappus module add m",
        "pappus settings workers",
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), i32::from(crate::failure::USAGE), "{line}");
    }
}
