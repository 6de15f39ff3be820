//! The randomised abuser for some seconds (`PAPPUS_ABUSE_SECONDS`; half a minute in CI, `scripts/abuse` runs it for longer),
//! and its judge on made-up numbers.

use std::process::Command;
use std::time::Duration;

use self::judge::{Amounts, Judgement, Round};
use crate::programs::program;

#[path = "../../hostile/abuser/judge.rs"]
mod judge;

/// Fixed, so that a failure of a change is a failure of that change.
const SEED: &str = "1";

/// Latencies are not judged here: other cases run beside this one, in a debug build.
#[test]
fn abuse_takes_nothing_from_honest_tenants() {
    let seconds = std::env::var("PAPPUS_ABUSE_SECONDS").unwrap_or_else(|_| "8".to_owned());
    let output = Command::new(env!("CARGO_BIN_EXE_pappus-abuser"))
        .arg("--supervisor")
        .arg(program("pappus-supervisor"))
        .args(["--seconds", &seconds, "--judge", "steady", "--seed", SEED])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "{}\n{}{}", output.status, said[0], said[1]);
}

/// Nothing wrong.
fn fine() -> Round {
    Round { calls: 1000, p99: Duration::from_millis(29), log_lines: 3, ..Round::default() }
}

#[test]
fn the_judge_finds_each_bound_and_nothing_in_a_good_run() {
    const MIB: u64 = 1 << 20;
    let ms = Duration::from_millis;
    let bound = Some(judge::latency_bound(ms(1), ms(15)));
    let beyond = |beyond: Amounts| Round { beyond, ..fine() };
    let amounts = Amounts::default;
    assert_eq!(judge::round(&fine(), bound), []);
    let most =
        Amounts { resident: 64 * MIB, shared: 64 * MIB, descriptors: 64, threads: 128, connections: 0 };
    assert_eq!(judge::round(&beyond(most), bound), []);
    for (round, judgement) in [
        (Round { wrong: vec!["no answer".to_owned()], ..fine() }, Judgement::Answers),
        (Round { calls: 0, ..fine() }, Judgement::Answers),
        (Round { p99: Duration::from_millis(31), ..fine() }, Judgement::Latency),
        (Round { operator: Duration::from_millis(1001), ..fine() }, Judgement::Operator),
        (Round { newcomer: Duration::from_millis(1001), ..fine() }, Judgement::Newcomer),
        (beyond(Amounts { resident: 65 * MIB, ..amounts() }), Judgement::Memory),
        (beyond(Amounts { shared: 65 * MIB, ..amounts() }), Judgement::SharedMemory),
        (beyond(Amounts { descriptors: 65, ..amounts() }), Judgement::Descriptors),
        (beyond(Amounts { threads: 129, ..amounts() }), Judgement::Threads),
        (Round { log_lines: 151, ..fine() }, Judgement::Log),
    ] {
        assert_eq!(judge::round(&round, bound), [judgement], "{round:?}");
    }
    // Where as many others that behave make it longer, abusers may, too.
    assert_eq!(judge::latency_bound(ms(1), ms(16)), ms(32));
    // On a busy machine latencies say little.
    let slow = Round { p99: Duration::from_secs(9), operator: Duration::from_secs(4), ..fine() };
    assert_eq!(judge::round(&slow, None), []);
    let slower = Round { operator: Duration::from_secs(6), ..slow };
    assert_eq!(judge::round(&slower, None), [Judgement::Operator]);
}

#[test]
fn a_supervisor_is_back_when_little_is_left() {
    let left = Amounts { resident: 32 << 20, descriptors: 16, threads: 32, ..Amounts::default() };
    assert!(judge::is_back(left));
    for more in [
        Amounts { resident: 33 << 20, ..left },
        Amounts { shared: 33 << 20, ..left },
        Amounts { descriptors: 17, ..left },
        Amounts { threads: 33, ..left },
        Amounts { connections: 1, ..left },
    ] {
        assert!(!judge::is_back(more), "{more:?}");
    }
    // What is less than before, or shown, is not left over.
    let takes = Amounts { resident: 5, descriptors: 9, ..Amounts::default() };
    let shown = Amounts { resident: 7, descriptors: 4, ..Amounts::default() };
    assert_eq!(takes.beyond(shown), Amounts { descriptors: 5, ..Amounts::default() });
    assert_eq!(takes.or(shown), Amounts { resident: 7, descriptors: 9, ..Amounts::default() });
}

#[test]
fn what_lasts_from_one_look_to_the_next_counts() {
    let look = |resident, descriptors| Amounts { resident, descriptors, ..Amounts::default() };
    let looks = [look(9, 0), look(2, 5), look(3, 7), look(0, 6)];
    assert_eq!(judge::lasting(&looks), look(2, 6));
    assert_eq!(judge::lasting(&looks[..1]), look(0, 0));
}

#[test]
fn a_run_is_bad_for_what_is_against_any_of_its_rounds_and_its_end() {
    use Judgement::{Alive, Answers, Memory, Recovery};
    assert_eq!(judge::whole(&[vec![], vec![]], true, true), []);
    assert_eq!(judge::whole(&[vec![Memory], vec![Answers, Memory]], true, true), [Answers, Memory]);
    assert_eq!(judge::whole(&[vec![]], false, false), [Recovery, Alive]);
}

#[test]
fn a_percentile_is_a_time_that_was_measured() {
    let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
    let of = |hundredths| judge::percentile(&times, hundredths).as_millis();
    assert_eq!([of(1), of(50), of(99), of(100)], [2, 100, 198, 200]);
    assert_eq!(judge::percentile(&[], 99), Duration::ZERO);
}
