//! Frames and answers that are written together.

use super::*;

#[test]
fn answers_of_one_read_are_followed_by_one_write_each() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let calls: Vec<CallId> = (0..6).map(|_| gpu.submit(&function, TenantId::new(1), 0)).collect();
    let started: Vec<String> = (0..4).map(|lane| format!("invoke on {lane} flags 0")).collect();
    let mut expected = vec!["install 1", "load 1 from 1000, export"];
    expected.extend(started.iter().map(String::as_str));
    gpu.expect(W0, &expected);
    gpu.client.set_nonblocking(true).unwrap();
    let mut batch = Batch::new(&gpu.device.completer);
    for id in [calls[2], calls[0]] {
        batch.finish(W0, id, Answer::Done(&Done::default())).unwrap();
    }
    gpu.expect(W0, &[]);
    let mut bytes = [0; 4096];
    assert!(gpu.client.read(&mut bytes).is_err(), "nothing was sent yet");
    batch.settle();
    gpu.expect(W0, &[&started[2], &started[0]]);
    let mut answers = Decoder::<OwnedFd>::default();
    let read = gpu.client.read(&mut bytes).unwrap();
    answers.feed(&bytes[..read], Vec::new()).unwrap();
    for request in [3, 1] {
        let (frame, _) = answers.next_frame().unwrap().unwrap();
        assert_eq!(v1::Response::decode(frame).unwrap().id, request);
    }
    assert_eq!(answers.pending(), 0);
}

#[test]
fn a_call_that_was_never_written_does_not_count_as_handed_over() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 1000);
    let call = gpu.call(&function, TenantId::new(1), 0);
    let mut unwritten = Unwritten::default();
    gpu.device.submit(call.clone(), 0, Some(&mut unwritten)).unwrap();
    gpu.expect(W0, &[]);
    assert_ne!(call.started_ns.load(Ordering::Relaxed), 0);
    gpu.device.slots.channel(W0).detach();
    assert_eq!(call.started_ns.load(Ordering::Relaxed), 0);
    gpu.device.slots.release(&mut unwritten);
}
