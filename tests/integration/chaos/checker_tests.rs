//! Bad histories that the checker must refuse, each beside a good one with a small difference.

use std::time::Duration;

use pappus_client::Code;

use super::checker::{FORGOTTEN, GRACE, check};
use super::history::{Answer, Ask, End, Event, Fault, What};

const DEADLINE: Duration = Duration::from_millis(100);
const RIGHT: u64 = 7;

/// One event a millisecond.
fn history(what: impl IntoIterator<Item = What>) -> Vec<Event> {
    let at = |nth: usize| Duration::from_millis(nth as u64);
    what.into_iter().enumerate().map(|(nth, what)| Event { at: at(nth), what }).collect()
}

fn good(events: &[Event]) {
    assert_eq!(check(events), []);
}

fn bad(events: &[Event], words: &str) {
    let wrong = check(events);
    assert!(wrong.iter().any(|wrong| wrong.why.contains(words)), "{words:?} is not in {wrong:?}");
}

fn joined() -> What {
    What::Joined { conn: 1 }
}

fn ask(end: End) -> Ask {
    Ask { function: "f", end, deadline: DEADLINE, hostile: false }
}

fn sent_as(ask: Ask) -> What {
    What::Sent { conn: 1, id: 1, ask }
}

fn sent(end: End) -> What {
    sent_as(ask(end))
}

fn done(digest: u64) -> What {
    What::Answered { conn: 1, id: 1, answer: Answer::Done { digest, total: Duration::ZERO } }
}

fn refused(code: Code) -> What {
    What::Answered { conn: 1, id: 1, answer: Answer::Refused { code, words: String::new() } }
}

fn killed() -> What {
    What::Fault(Fault::WorkerKilled)
}

const WELL: End = End::Well(RIGHT);

#[test]
fn an_answer_is_owed() {
    good(&history([joined(), sent(WELL), done(RIGHT)]));
    bad(&history([joined(), sent(WELL)]), "no answer: it waits still");
}

#[test]
fn one_answer_is_enough() {
    bad(&history([joined(), sent(WELL), done(RIGHT), done(RIGHT)]), "second answer");
}

#[test]
fn answers_follow_their_calls() {
    bad(&history([joined(), done(RIGHT), sent(WELL)]), "not sent before");
    bad(&history([joined(), done(RIGHT)]), "not sent before");
}

#[test]
fn answers_go_to_the_client_that_called() {
    let stray =
        What::Answered { conn: 2, id: 1, answer: Answer::Done { digest: RIGHT, total: Duration::ZERO } };
    bad(&history([joined(), What::Joined { conn: 2 }, sent(WELL), stray]), "connection 2 got the answer");
}

#[test]
fn outputs_are_right() {
    bad(&history([joined(), sent(WELL), done(RIGHT + 1)]), "wrong outputs");
    bad(&history([joined(), sent(End::Fault), done(RIGHT)]), "ends like this: Fault");
    bad(&history([joined(), sent(End::Never), done(RIGHT)]), "ends like this: Never");
}

#[test]
fn a_fault_needs_a_call_that_faults() {
    good(&history([joined(), sent(End::Fault), refused(Code::KernelFault)]));
    bad(&history([joined(), sent(WELL), refused(Code::KernelFault)]), "nothing explains KernelFault");
}

#[test]
fn errors_need_an_explanation() {
    for code in [
        Code::Internal,
        Code::InvalidArgument,
        Code::NotFound,
        Code::PermissionDenied,
        Code::OutOfMemory,
        Code::Unspecified,
    ] {
        let everything = [Fault::DiskFull, Fault::NoMemory, Fault::NoDescriptors, Fault::Drained];
        let faults = everything.map(What::Fault);
        let events = [joined(), sent(WELL)].into_iter().chain(faults).chain([refused(code)]);
        bad(&history(events), "nothing explains");
    }
}

#[test]
fn a_worker_is_lost_when_two_ended() {
    good(&history([joined(), sent(WELL), killed(), killed(), refused(Code::WorkerLost)]));
    bad(&history([joined(), sent(WELL), killed(), refused(Code::WorkerLost)]), "WorkerLost");
    bad(&history([joined(), killed(), killed(), sent(WELL), refused(Code::WorkerLost)]), "WorkerLost");
}

#[test]
fn a_module_is_blamed_when_two_compilers_ended() {
    let killed = What::Fault(Fault::OtherKilled);
    let refused = refused(Code::InvalidArgument);
    good(&history([joined(), sent(WELL), killed.clone(), killed.clone(), refused.clone()]));
    bad(&history([joined(), sent(WELL), killed, refused]), "InvalidArgument");
}

#[test]
fn only_cancelled_calls_may_be_answered_as_cancelled() {
    let cancelled = What::Cancelled { conn: 1, id: 1 };
    good(&history([joined(), sent(WELL), cancelled.clone(), refused(Code::Cancelled)]));
    // The answer may have been on its way.
    good(&history([joined(), sent(WELL), cancelled.clone(), done(RIGHT)]));
    bad(&history([joined(), sent(WELL), refused(Code::Cancelled)]), "Cancelled");
    bad(&history([joined(), cancelled, sent(WELL), done(RIGHT)]), "is cancelled");
}

#[test]
fn only_what_never_ends_is_ended_for_being_in_the_way() {
    good(&history([joined(), sent(End::Never), refused(Code::Overrun)]));
    bad(&history([joined(), sent(WELL), refused(Code::Overrun)]), "Overrun");
}

#[test]
fn a_deadline_is_over_when_it_passed() {
    let at = |event: &mut Event, at: Duration| event.at = at;
    let mut events = history([joined(), sent(End::Never), refused(Code::DeadlineExceeded)]);
    bad(&events, "nothing explains DeadlineExceeded");
    let passed = events[1].at + DEADLINE;
    at(&mut events[2], passed);
    good(&events);
    // The supervisor's own clock decides what was late.
    let late = Answer::Done { digest: RIGHT, total: DEADLINE + GRACE + Duration::from_nanos(1) };
    let late = What::Answered { conn: 1, id: 1, answer: late };
    bad(&history([joined(), sent(WELL), late]), "it succeeded after");
}

#[test]
fn a_call_that_could_have_run_is_not_forgotten() {
    let patient = |deadline| Ask { deadline, ..ask(WELL) };
    for (deadline, fine) in [(FORGOTTEN - Duration::from_secs(1), true), (FORGOTTEN, false)] {
        let mut events = history([joined(), sent_as(patient(deadline)), refused(Code::DeadlineExceeded)]);
        events[2].at = events[1].at + deadline;
        match fine {
            true => good(&events),
            false => bad(&events, "DeadlineExceeded"),
        }
    }
}

#[test]
fn scarcity_explains_refusals_while_it_lasts() {
    for fault in [Fault::NoDescriptors, Fault::DiskFull, Fault::NoMemory] {
        let (on, off) = (What::Fault(fault), What::Over(fault));
        let refused = refused(Code::ResourceExhausted);
        good(&history([joined(), sent(WELL), on.clone(), refused.clone()]));
        good(&history([joined(), on.clone(), sent(WELL), refused.clone(), off.clone()]));
        bad(&history([joined(), on, off, sent(WELL), refused]), "ResourceExhausted");
    }
    bad(&history([joined(), sent(WELL), refused(Code::ResourceExhausted)]), "ResourceExhausted");
    let hostile = Ask { hostile: true, ..ask(WELL) };
    good(&history([joined(), sent_as(hostile), refused(Code::ResourceExhausted)]));
}

#[test]
fn draining_refuses_and_loses_nothing_it_accepted() {
    let drained = What::Fault(Fault::Drained);
    let lost = What::Lost { conn: 1 };
    good(&history([joined(), drained.clone(), sent(WELL), refused(Code::Unavailable)]));
    bad(&history([joined(), sent(WELL), refused(Code::Unavailable)]), "Unavailable");
    // It may not have been read.
    good(&history([joined(), sent(WELL), drained.clone(), lost.clone()]));
    // It was: a later one has an answer.
    let later = What::Sent { conn: 1, id: 2, ask: ask(WELL) };
    let answer = Answer::Done { digest: RIGHT, total: Duration::ZERO };
    let answered = What::Answered { conn: 1, id: 2, answer };
    bad(&history([joined(), sent(WELL), later, answered, drained, lost]), "no excuse");
}

#[test]
fn a_killed_supervisor_takes_its_connections_along() {
    let (dead, back) = (What::Fault(Fault::SupervisorKilled), What::Over(Fault::SupervisorKilled));
    let lost = What::Lost { conn: 1 };
    good(&history([joined(), sent(WELL), dead.clone(), back.clone(), lost.clone()]));
    // A client that was busy elsewhere finds out late.
    good(&history([joined(), dead.clone(), back.clone(), sent(WELL), lost.clone()]));
    bad(&history([joined(), sent(WELL), lost.clone()]), "nothing explains the end of connection 1");
    bad(&history([joined(), sent(WELL), lost.clone()]), "no excuse");
    bad(&history([dead, back, joined(), sent(WELL), lost.clone()]), "nothing explains the end");
    // To leave what is gone explains nothing.
    bad(&history([joined(), sent(WELL), lost, What::Left { conn: 1 }]), "no excuse");
}

#[test]
fn a_client_that_left_is_owed_no_answers() {
    let left = What::Left { conn: 1 };
    good(&history([joined(), sent(WELL), left.clone()]));
    good(&history([joined(), sent(WELL), left, What::Lost { conn: 1 }]));
}
