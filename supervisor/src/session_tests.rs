//! The line of a session by hand and by random histories, the halves of its state, and its end.

use pappus_shmem::memfd;
use proptest::prelude::*;

use super::*;
use crate::client_io::ClientIo;
use crate::client_memfd::ClientMemfd;
use crate::quota::Limit;
use crate::tenants::Tenants;

const TENANT: TenantId = TenantId::new(1);

fn session(account: &Arc<Account>, buffers: &[(&str, u64)]) -> Arc<Session> {
    let buffers = buffers.iter().map(|(name, bytes)| ((*name).into(), *bytes)).collect();
    let shape = StateShape { owner: TENANT, buffers };
    let bytes = Session::memory_bytes(&shape).unwrap();
    let memfd = ClientMemfd::new(memfd::arena("state", bytes).unwrap(), TENANT, &ClientIo::default());
    let memory = Arc::new(Arena::new(1, memfd, account, Limit::SessionBytes).unwrap());
    Session::new(7, account, "a/f".into(), shape, memory).unwrap()
}

fn places(turn: &Turn) -> Vec<(u64, u64, u64)> {
    turn.buffers().collect()
}

fn now(session: &Arc<Session>) -> Turn {
    match session.line_up() {
        Ok(Place::Now(turn)) => turn,
        other => panic!("{other:?}"),
    }
}

fn later(session: &Arc<Session>) -> oneshot::Receiver<Turn> {
    match session.line_up() {
        Ok(Place::Later(place)) => place,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_halves_change_places_only_where_a_call_is_kept() {
    let account = Tenants::default().account(TENANT);
    let session = session(&account, &[("kv", 300), ("n", 8)]);
    assert_eq!((account.used(Limit::SessionBytes), session.state_bytes()), (8192, 308));
    let turn = now(&session);
    assert_eq!(places(&turn), [(0, 4096, 300), (512, 4096 + 512, 8)]);
    drop(turn);
    let turn = now(&session);
    assert_eq!(places(&turn)[0], (0, 4096, 300), "the call before was not kept");
    turn.keep();
    let turn = now(&session);
    assert_eq!(places(&turn), [(4096, 0, 300), (4096 + 512, 512, 8)]);
    assert_eq!((session.view().unwrap().calls, session.view().unwrap().open_calls), (1, 1));
}

#[test]
fn calls_have_their_turns_in_the_order_in_which_they_came() {
    let account = Tenants::default().account(TENANT);
    let session = session(&account, &[("kv", 8)]);
    let first = now(&session);
    let [mut second, third, mut fourth] = [(); 3].map(|()| later(&session));
    assert!(second.try_recv().is_err() && fourth.try_recv().is_err());
    drop(third);
    assert_eq!(session.view().unwrap().open_calls, 3);
    first.keep();
    let turn = second.try_recv().unwrap();
    assert_eq!(places(&turn)[0].0, 4096, "what the first one wrote");
    // The third one was given up before its turn came.
    drop(first);
    assert!(fourth.try_recv().is_err(), "it was passed on already");
    drop(turn);
    // The fourth one is given up with the turn in its hands.
    drop(fourth);
    assert_eq!(session.view().unwrap().open_calls, 0);
    drop(now(&session));
}

#[test]
fn very_many_that_were_given_up_are_passed_over() {
    let account = Tenants::default().account(TENANT);
    let session = session(&account, &[("kv", 8)]);
    let first = now(&session);
    (0..100_000).for_each(|_| drop(later(&session)));
    // Nor are they kept while a long call runs: nobody is charged for them.
    assert!(session.line.lock().waiting.len() <= FEW_WAITING);
    let waits = later(&session);
    (0..1000).for_each(|_| drop(later(&session)));
    assert_eq!(session.view().unwrap().open_calls, 2);
    drop((first, waits));
    drop(now(&session));
}

#[test]
fn a_session_that_is_over_says_why_and_its_calls_go_on() {
    let account = Tenants::default().account(TENANT);
    let session = session(&account, &[("kv", 8)]);
    let (turn, mut waits) = (now(&session), later(&session));
    let memory = session.end(WhyOver::Closed);
    assert!(memory.is_some() && session.end(WhyOver::Idle).is_none() && session.view().is_none());
    drop(memory);
    let why = session.line_up().unwrap_err();
    assert_eq!(why, SessionError::Over { id: 7, why: WhyOver::Closed });
    turn.keep();
    drop(turn);
    let turn = waits.try_recv().unwrap();
    assert_eq!(places(&turn)[0].0, 4096);
    assert_eq!(account.used(Limit::SessionBytes), 8192, "a call has it");
    drop(turn);
    assert_eq!(account.used(Limit::SessionBytes), 0);
    assert!(session.look(Duration::ZERO).is_none());
}

#[test]
fn what_a_session_keeps_is_charged() {
    let account = Tenants::default().account(TENANT);
    let name = "n".repeat(255);
    let held = session(&account, &[(name.as_str(), 8); 100]);
    assert!(account.used(Limit::PlanBytes) >= 100 * 255);
    drop(held);
    assert_eq!(account.used(Limit::PlanBytes), 0);
}

#[test]
fn only_a_session_without_calls_becomes_idle() {
    let account = Tenants::default().account(TENANT);
    let session = session(&account, &[("kv", 8)]);
    let turn = now(&session);
    assert!(session.look(Duration::ZERO).is_none(), "a call has it");
    drop(turn);
    let hour = Duration::from_secs(3600);
    assert!(session.look(hour).is_none());
    let memory = session.look(Duration::ZERO).unwrap();
    drop(memory);
    assert_eq!(account.used(Limit::SessionBytes), 0);
    let why = session.line_up().unwrap_err();
    assert!(why.to_string().contains("session-idle") && why.reason() == Reason::SessionLost, "{why}");
}

#[test]
fn a_state_that_no_arena_has_room_for_is_refused() {
    let shape = |bytes| StateShape { owner: TENANT, buffers: [("kv".into(), bytes)].into() };
    assert_eq!(Session::memory_bytes(&shape(MAX_ARENA_BYTES / 2)), Ok(MAX_ARENA_BYTES));
    for bytes in [MAX_ARENA_BYTES / 2 + 1, u64::MAX] {
        assert_eq!(Session::memory_bytes(&shape(bytes)).unwrap_err(), SessionError::TooLarge);
    }
    assert_eq!(Session::memory_bytes(&shape(0)), Ok(2 * PAGE_BYTES));
}

/// What happens to a session.
#[derive(Debug, Clone)]
enum Step {
    Come,
    /// The call that has the turn is answered with its outputs, or ends otherwise.
    Answered(bool),
    /// A call that waits is given up.
    GiveUp(usize),
    Look,
    End,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Come),
        5 => any::<bool>().prop_map(Step::Answered),
        2 => (0..8_usize).prop_map(Step::GiveUp),
        1 => Just(Step::Look),
        1 => Just(Step::End),
    ];
    prop::collection::vec(step, 1..40)
}

/// A session beside what must hold of it.
struct Model {
    session: Arc<Session>,
    /// What the two halves hold, and what the state is.
    halves: [u64; 2],
    state: u64,
    has_turn: Option<Turn>,
    waiting: VecDeque<oneshot::Receiver<Turn>>,
    is_over: bool,
}

impl Model {
    /// A call has the turn: it finds the state, and spoils the half that it writes.
    fn begin(&mut self, turn: Turn) {
        assert!(self.has_turn.is_none(), "two calls have the turn");
        let (from, to, _) = places(&turn)[0];
        assert_eq!(self.halves[(from > 0) as usize], self.state);
        self.halves[(to > 0) as usize] = u64::MAX;
        self.has_turn = Some(turn);
    }

    /// The first call that waits has the turn, if nobody else has, and no other one.
    fn hand_on(&mut self) {
        if self.has_turn.is_none()
            && let Some(mut first) = self.waiting.pop_front()
        {
            let turn = first.try_recv().expect("nobody overtakes, and no turn is lost");
            self.begin(turn);
        }
        for waiting in &mut self.waiting {
            assert!(waiting.try_recv().is_err(), "a turn for a call that waits behind another");
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Come => match self.session.line_up() {
                Ok(Place::Now(turn)) => {
                    assert!(!self.is_over && self.waiting.is_empty());
                    self.begin(turn);
                }
                Ok(Place::Later(place)) => {
                    assert!(!self.is_over && self.has_turn.is_some());
                    self.waiting.push_back(place);
                }
                Err(_) => assert!(self.is_over),
            },
            Step::Answered(well) => {
                let Some(turn) = self.has_turn.take() else { return };
                if well {
                    self.state += 1;
                    self.halves[(places(&turn)[0].1 > 0) as usize] = self.state;
                    turn.keep();
                    self.hand_on();
                }
                drop(turn);
            }
            Step::GiveUp(nth) => drop(self.waiting.remove(nth)),
            Step::Look => {
                let idle = self.session.look(Duration::ZERO);
                let may_end = !self.is_over && self.has_turn.is_none();
                assert_eq!(idle.is_some(), may_end);
                self.is_over |= may_end;
            }
            Step::End => {
                assert_eq!(self.session.end(WhyOver::Closed).is_some(), !self.is_over);
                self.is_over = true;
            }
        }
        self.hand_on();
    }
}

proptest! {
    /// Whatever comes, one call at a time has the turn, in order, and finds what the last kept one left; all memory comes back.
    #[test]
    fn any_history_of_a_session_keeps_its_promises(steps in steps()) {
        let account = Tenants::default().account(TENANT);
        let session = session(&account, &[("kv", 8)]);
        let (halves, waiting) = ([0; 2], VecDeque::new());
        let mut model = Model { session, halves, state: 0, has_turn: None, waiting, is_over: false };
        steps.into_iter().for_each(|step| model.step(step));
        model.step(Step::End);
        while model.has_turn.is_some() {
            model.step(Step::Answered(true));
        }
        prop_assert!(model.waiting.is_empty());
        prop_assert_eq!(account.used(Limit::SessionBytes), 0);
    }
}
