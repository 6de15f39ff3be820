//! A lost device: every call that waits on it moves to another device, once.

use super::*;
use crate::routing::Router;
use crate::server::moving::move_stranded;
use crate::server::reply_handle::DevicePlace;

/// Two devices; clients and functions are the first one's.
struct Pair {
    lost: Gpu,
    other: Gpu,
    router: Router<Device>,
    devices: Vec<Arc<Device>>,
}

impl Pair {
    fn new() -> Self {
        let (lost, other) = (Gpu::new(false), Gpu::new(false));
        let devices = vec![lost.device.clone(), other.device.clone()];
        let router = Router::new(devices.clone());
        Self { lost, other, router, devices }
    }

    /// A call that is routed and accepted as a connection does it; its request.
    fn call(&self, function: &Arc<Loaded>, request: u64, deadline_ns: u64) -> CallId {
        let mut call = self.lost.call(function, CALLER, 0);
        let (_, routed) = self.router.route(call.domain, function, 0, None).unwrap();
        let accepted = self.lost.tenants.account(CALLER).accept().unwrap();
        let handle = self.lost.invocations.open(request, accepted, String::new()).unwrap();
        let changed = Arc::get_mut(&mut call).unwrap();
        (changed.routed, changed.reply, changed.deadline_ns) = (routed, handle.clone(), deadline_ns);
        let id = self.lost.device.submit(call, 0, None).unwrap();
        let place: DevicePlace = (self.lost.device.clone(), id);
        assert!(self.lost.invocations.placed(request, &handle, place).is_none());
        id
    }

    /// All processes of the first device are gone for good, with what ran in them.
    fn lose(&mut self) {
        let mut all = Vec::new();
        for worker in [W0, W1] {
            self.lost.device.slots.channel(worker).detach();
            all.extend(self.lost.device.events.worker_gone(worker));
        }
        self.lost.device.set_lost(true);
        self.lost.device.events.bury(all, &killed(), false);
    }

    /// Ends what runs on the other device, one after the other, until nothing does; the calls in the order in which they
    /// started, and whether they ran alone.
    fn run_all(&mut self) -> Vec<(CallId, bool)> {
        let mut ran = Vec::new();
        loop {
            let inbox = &mut self.other.workers[0].inbox;
            inbox.fill().unwrap();
            let mut started = Vec::new();
            while let Some(frame) = inbox.frame().unwrap() {
                if let ToWorker::Invoke { call, invoke } = ToWorker::decode(frame).unwrap() {
                    started.push((CallId(call), invoke.flags != 0));
                }
            }
            if started.is_empty() {
                return ran;
            }
            started.iter().for_each(|(id, _)| self.other.done(W0, *id));
            ran.extend(started);
        }
    }
}

fn answers(gpu: &mut Gpu) -> Vec<(u64, bool)> {
    gpu.client.set_nonblocking(true).unwrap();
    let (mut bytes, mut answers, mut told) = ([0; 1 << 14], Decoder::<OwnedFd>::default(), Vec::new());
    while let Ok(read @ 1..) = gpu.client.read(&mut bytes) {
        answers.feed(&bytes[..read], Vec::new()).unwrap();
    }
    while let Some((frame, _)) = answers.next_frame().unwrap() {
        let response = v1::Response::decode(frame).unwrap();
        told.push((response.id, matches!(response.body, Some(v1::response::Body::Invoked(_)))));
    }
    told
}

#[test]
fn calls_of_a_device_that_is_lost_are_run_elsewhere_once_each() {
    let mut pair = Pair::new();
    let function = pair.lost.function("f", 0);
    // Four run, two wait; of these the younger one has less time.
    for request in 1..=4 {
        pair.call(&function, request, u64::MAX);
    }
    pair.call(&function, 5, u64::MAX);
    pair.call(&function, 6, u64::MAX / 2);
    assert_eq!((pair.lost.device.load(), pair.lost.device.waiting().len()), (6, 2));
    move_stranded(&pair.router, &pair.devices);
    assert_eq!(pair.other.device.load(), 0, "it is not lost");

    pair.lose();
    assert_eq!(pair.lost.device.waiting().len(), 6);
    // One is cancelled meanwhile.
    let open = pair.lost.invocations.take(3).unwrap();
    let (device, id) = open.place.unwrap();
    assert!(device.cancel(id).is_some());
    open.handle.give_up();
    drop(open.handle);
    move_stranded(&pair.router, &pair.devices);
    assert_eq!((pair.lost.device.load(), pair.other.device.load()), (0, 5));
    // Their clients find them where they are.
    let open = pair.lost.invocations.take(4).unwrap();
    let (device, id) = open.place.unwrap();
    assert!(Arc::ptr_eq(&device, &pair.other.device) && device.cancel(id).is_some());
    open.handle.give_up();
    drop(open.handle);

    let ran = pair.run_all();
    let alone: Vec<_> = ran.iter().map(|(_, alone)| *alone).collect();
    assert_eq!(
        alone.iter().filter(|alone| **alone).count(),
        2,
        "those that ran before are suspects: {ran:?}"
    );
    // The first to come started at once; behind it, the one with less time is next, then the oldest.
    let told = answers(&mut pair.lost);
    assert_eq!(told, [1, 6, 2, 5].map(|request| (request, true)));
    assert_eq!((pair.lost.device.load(), pair.other.device.load()), (0, 0));
    assert_eq!(pair.lost.tenants.account(CALLER).used(Limit::Calls), 0, "nothing is left of them");
}

#[test]
fn a_device_that_comes_back_is_used_again() {
    let mut pair = Pair::new();
    let function = pair.lost.function("f", 0);
    let domain = Domain { owner: TenantId::new(1), caller: CALLER };
    let route = |pair: &Pair| {
        Arc::ptr_eq(pair.router.route(domain, &function, 0, None).unwrap().0, &pair.lost.device)
    };
    assert!(route(&pair), "its home");
    pair.lose();
    assert!(!route(&pair));
    pair.lost.device.set_lost(false);
    assert!(route(&pair), "where its home still is");
}

#[test]
fn what_no_other_device_can_run_goes_on_waiting() {
    let mut pair = Pair::new();
    let function = pair.lost.function("f", 0);
    pair.call(&function, 1, u64::MAX);
    pair.lose();
    pair.other.device.set_lost(true);
    move_stranded(&pair.router, &pair.devices);
    assert_eq!((pair.lost.device.load(), pair.other.device.load()), (1, 0));
    pair.other.device.set_lost(false);
    move_stranded(&pair.router, &pair.devices);
    assert_eq!((pair.lost.device.load(), pair.other.device.load()), (0, 1));
    assert_eq!(pair.run_all().len(), 1);
    assert_eq!(answers(&mut pair.lost), [(1, true)]);
}
