//! Answers that were gathered when their worker's thread panicked.

use super::*;

/// Request ids of the answers that the client got, in order.
fn answered(gpu: &mut Gpu) -> Vec<u64> {
    gpu.client.set_nonblocking(true).unwrap();
    let (mut bytes, mut answers, mut ids) = ([0; 4096], Decoder::<OwnedFd>::default(), Vec::new());
    if let Ok(read) = gpu.client.read(&mut bytes) {
        answers.feed(&bytes[..read], Vec::new()).unwrap();
    }
    while let Some((frame, _)) = answers.next_frame().unwrap() {
        ids.push(v1::Response::decode(frame).unwrap().id);
    }
    ids
}

#[test]
fn calls_that_ended_before_a_panic_are_answered_once() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let first = gpu.submit(&function, 1, 0);
    let mut call = gpu.call(&function, 1, 0);
    Arc::get_mut(&mut call).unwrap().reply = Arc::new(Panics(gpu.tenants.account(1)));
    let panics = gpu.device.submit(call, 0, None).unwrap();
    let last = gpu.submit(&function, 1, 0);
    let (answers, written) = pipe::pipe().unwrap();
    let mut outbox = Outbox::new(written);
    for id in [first, panics, last] {
        outbox.push_from_worker(&FromWorker::Done { call: id.0, timings: Done::default() });
    }
    outbox.flush().unwrap();
    let end = listen(&gpu.device, 0, Generation::new(1), 0, &mut Inbox::new(answers));
    assert!(matches!(&end, End::Bad(why) if why.contains("the test's own panic")), "{end:?}");
    assert_eq!(answered(&mut gpu), [1, 3]);
    gpu.device.channel(0).detach(None);
    let (lost, _) = gpu.device.worker_gone(0);
    assert!(lost.is_empty(), "they are over, and nobody else answers them");
    assert!(answered(&mut gpu).is_empty());
}

#[test]
fn a_batch_that_is_not_settled_does_what_it_has_to_when_it_is_dropped() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let calls: Vec<CallId> = (0..5).map(|_| gpu.submit(&function, 1, 0)).collect();
    let lanes: Vec<String> = (0..4).map(|lane| format!("invoke on {lane} flags 0")).collect();
    let mut expected = vec!["install 1 from 0"];
    expected.extend(lanes.iter().map(String::as_str));
    gpu.expect(0, &expected);
    let mut batch = Batch::new(&gpu.device);
    gpu.device.finish(0, calls[2], Answer::Done(&Done::default()), &mut batch).unwrap();
    gpu.expect(0, &[]);
    assert!(answered(&mut gpu).is_empty());
    drop(batch);
    gpu.expect(0, &[&lanes[2]]);
    assert_eq!(answered(&mut gpu), [3]);
}
