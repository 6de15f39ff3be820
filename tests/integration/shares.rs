//! What tenants are given of a device that others want, too: weights, a limit of overruns, and what is shown of it.

use std::collections::HashMap;
use std::time::Duration;

use pappus_client::{Client, Code, Invocation};

use crate::fixture::{Supervisor, until};
use crate::house::{config, enter};
use crate::kit::{self, refused};

/// A device that takes turns, with so many workers.
fn device(workers: usize) -> String {
    format!("cpu:workers={workers},memory=16MiB,turns=on,quantum=1ms")
}

fn house(tenants: &[(&str, &str)], flags: &[&str]) -> Supervisor {
    let device = device(tenants.len());
    Supervisor::configured(&config(tenants), &[&["--device", &device], flags].concat())
}

/// Device time of each tenant, as the operator sees it.
fn device_ns(supervisor: &Supervisor) -> HashMap<String, u64> {
    let device = supervisor.device();
    device.tenants.into_iter().map(|one| (one.tenant, one.device_ns)).collect()
}

/// A tenant that always has calls, each a part of a millisecond.
struct Busy {
    client: Client,
    open: Vec<u64>,
}

impl Busy {
    fn new(supervisor: &Supervisor, tenant: &str) -> Self {
        let mut client = enter(supervisor, tenant);
        kit::add_kernel(&mut client, "work", "work", &[kit::constant(20_000)]);
        let mut busy = Self { client, open: Vec::new() };
        (0..64).for_each(|_| busy.send());
        busy
    }

    fn send(&mut self) {
        let call = Invocation::new("work").deadline(Duration::from_secs(300));
        self.open.push(self.client.send_invocation(&call).unwrap());
    }

    /// Waits for its oldest call, and has another one.
    fn turn_over(&mut self) {
        let oldest = self.open.remove(0);
        self.client.wait_invoked(oldest).unwrap();
        self.send();
    }
}

/// Keeps tenants busy until all together used so much device time more; what each used meanwhile.
fn used_meanwhile(supervisor: &Supervisor, tenants: &[&str], for_ms: u64) -> Vec<f64> {
    let threads: Vec<_> = tenants.iter().map(|tenant| Busy::new(supervisor, tenant)).collect();
    // From now on all of them want the device.
    let before = device_ns(supervisor);
    let done = std::sync::atomic::AtomicBool::new(false);
    let of = |times: &HashMap<String, u64>, tenant: &str| times.get(tenant).copied().unwrap_or(0);
    std::thread::scope(|scope| {
        for mut busy in threads {
            let done = &done;
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    busy.turn_over();
                }
                // None of them fails, whatever changed meanwhile.
                busy.open.drain(..).for_each(|id| drop(busy.client.wait_invoked(id).unwrap()));
            });
        }
        let mut used = Vec::new();
        until("the device was used", || {
            let now = device_ns(supervisor);
            used = tenants.iter().map(|t| (of(&now, t) - of(&before, t)) as f64 / 1e6).collect();
            used.iter().sum::<f64>() >= for_ms as f64
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        used
    })
}

#[test]
fn weights_give_shares_and_change_while_calls_run() {
    let weights = |a, b, c| {
        let tenant = |weight| format!("weight = {weight}");
        [("a", tenant(a)), ("b", tenant(b)), ("c", tenant(c))]
    };
    let text =
        |weights: &[(&str, String); 3]| config(&weights.each_ref().map(|(name, w)| (*name, w.as_str())));
    let supervisor = Supervisor::configured(&text(&weights(1, 2, 4)), &["--device", &device(3)]);
    let used = used_meanwhile(&supervisor, &["a", "b", "c"], 2100);
    let part = |used: &[f64], nth: usize| used[nth] / used.iter().sum::<f64>() * 7.0;
    for (nth, wanted) in [1.0, 2.0, 4.0].into_iter().enumerate() {
        assert!((part(&used, nth) / wanted - 1.0).abs() < 0.25, "{used:?}");
    }
    // The same again, the other way round: tenants are read again without a restart.
    supervisor.write("pappus.toml", text(&weights(4, 2, 1)));
    supervisor.admin().reload().unwrap();
    let used = used_meanwhile(&supervisor, &["a", "b", "c"], 2100);
    for (nth, wanted) in [4.0, 2.0, 1.0].into_iter().enumerate() {
        assert!((part(&used, nth) / wanted - 1.0).abs() < 0.25, "{used:?}");
    }
    assert_eq!(supervisor.device().failed, 0);
}

#[test]
fn a_neighbour_of_an_endless_call_is_answered_meanwhile() {
    // The control: its limit is far away, so that nothing ends it before the neighbour is answered.
    let supervisor = house(&[("endless", "overrun-limit = '1h'"), ("other", "")], &[]);
    let (mut endless, mut other) = (enter(&supervisor, "endless"), enter(&supervisor, "other"));
    kit::add_spin(&mut endless);
    kit::add_copy(&mut other);
    let spin = Invocation::new("spin").deadline(Duration::from_secs(300));
    let spin = endless.send_invocation(&spin).unwrap();
    supervisor.until_running();
    for _ in 0..20 {
        kit::works(&mut other);
    }
    assert_eq!(supervisor.device().running, 1, "it still runs");
    assert!(endless.cancel(spin).is_ok());
}

#[test]
fn a_call_that_keeps_others_waiting_is_ended_with_an_error_of_its_own() {
    let tenants = [("endless", "overrun-limit = '200ms'"), ("other", "")];
    let supervisor = house(&tenants, &[]);
    let (mut endless, mut other) = (enter(&supervisor, "endless"), enter(&supervisor, "other"));
    kit::add_spin(&mut endless);
    kit::add_copy(&mut endless);
    kit::add_copy(&mut other);
    let spin = Invocation::new("spin").deadline(Duration::from_secs(300));
    let spin = endless.send_invocation(&spin).unwrap();
    supervisor.until_running();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, other) = (&stop, &mut other);
        scope.spawn(move || {
            // Always waits for the device, and is always answered.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                kit::works(other);
            }
        });
        let error = refused(endless.wait_invoked(spin), Code::Overrun, "overrun-limit");
        assert!(!error.retryable, "the same call would do the same");
        // Its tenant goes on.
        kit::works(&mut endless);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let used = device_ns(&supervisor);
    assert!(used["endless"] >= 200_000_000, "charged for what it had: {used:?}");
}

#[test]
fn without_a_limit_or_without_others_a_long_call_goes_on() {
    let tenants = [("endless", "overrun-limit = 0"), ("other", "")];
    let supervisor = house(&tenants, &["--overrun-limit", "100ms"]);
    let (mut endless, mut other) = (enter(&supervisor, "endless"), enter(&supervisor, "other"));
    kit::add_spin(&mut endless);
    kit::add_spin(&mut other);
    let spin = |seconds: u64| Invocation::new("spin").deadline(Duration::from_secs(seconds));
    let unlimited = endless.send_invocation(&spin(300)).unwrap();
    supervisor.until_running();
    // Both want the device all the time; only the one with a limit is ended.
    refused(other.invoke(&spin(300)), Code::Overrun, "overrun-limit");
    assert_eq!(supervisor.device().running, 1);
    assert!(endless.cancel(unlimited).is_ok());
}

#[test]
fn tenants_see_their_own_device_time_and_the_operator_that_of_all() {
    let supervisor = house(&[("a", "weight = 3\nclass = 'latency'"), ("b", "")], &[]);
    let (mut a, mut b) = (enter(&supervisor, "a"), enter(&supervisor, "b"));
    for client in [&mut a, &mut b] {
        kit::add_copy(client);
        kit::works(client);
        kit::works(client);
    }
    let mine = a.status().unwrap().devices.remove(0).tenants;
    assert_eq!(mine.iter().map(|one| one.tenant.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!((mine[0].weight, mine[0].class.as_str()), (3, "latency"));
    let quota = a.quota().unwrap();
    assert_eq!((quota.weight, quota.class.as_str()), (3, "latency"));
    until("the operator sees both", || {
        let times = device_ns(&supervisor);
        ["a", "b"].iter().all(|tenant| times.get(*tenant).is_some_and(|ns| *ns > 0))
    });
}

#[test]
fn a_call_that_cannot_end_in_time_is_refused_at_once() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=1,memory=16MiB"]);
    let mut client = supervisor.client();
    kit::add_kernel(&mut client, "work", "work", &[kit::constant(1_000_000)]);
    let send = |client: &mut Client, deadline: Duration, count: usize| -> Vec<u64> {
        let call = Invocation::new("work").deadline(deadline);
        (0..count).map(|_| client.send_invocation(&call).unwrap()).collect()
    };
    let tight = |client: &mut Client, deadline: Duration| {
        let answers: Vec<_> =
            send(client, deadline, 60).into_iter().map(|id| client.wait_invoked(id)).collect();
        let errors = answers.into_iter().filter_map(Result::err);
        let told = errors.filter(|error| error.to_string().contains("cannot end this call in time"));
        told.map(|error| refused::<()>(Err(error), Code::ResourceExhausted, "wait before it take")).collect()
    };
    // Nothing is known of the function yet: each waits for as long as it may.
    let unknown: Vec<pappus_client::v1::Error> = tight(&mut client, Duration::from_millis(1));
    assert_eq!(unknown, []);
    let known = send(&mut client, Duration::from_secs(300), 20);
    let took = known.into_iter().map(|id| client.wait_invoked(id).unwrap().timings.unwrap().execute_ns);
    let shortest = Duration::from_nanos(took.min().unwrap());
    // A third of them fits.
    let late = tight(&mut client, 20 * shortest);
    assert!(late.len() >= 20, "{} of 60", late.len());
    assert!(late.iter().all(|error| error.retryable && error.retry_after_ms > 0));
}
