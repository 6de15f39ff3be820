//! Answers that were gathered when their worker's thread panicked.

use super::*;

const CALLER: TenantId = TenantId::new(1);

/// The answers that the client got, in order.
fn answers_of(gpu: &mut Gpu) -> Vec<v1::Response> {
    gpu.client.set_nonblocking(true).unwrap();
    let (mut bytes, mut answers, mut told) = ([0; 4096], Decoder::<OwnedFd>::default(), Vec::new());
    while let Ok(read) = gpu.client.read(&mut bytes) {
        answers.feed(&bytes[..read], Vec::new()).unwrap();
    }
    while let Some((frame, _)) = answers.next_frame().unwrap() {
        told.push(v1::Response::decode(frame).unwrap());
    }
    told
}

/// The request ids that they answer.
fn answered(gpu: &mut Gpu) -> Vec<u64> {
    answers_of(gpu).into_iter().map(|told| told.id).collect()
}

#[test]
fn calls_that_ended_before_a_panic_are_answered_once() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let first = gpu.submit(&function, CALLER, 0);
    let mut call = gpu.call(&function, CALLER, 0);
    Arc::get_mut(&mut call).unwrap().reply = Arc::new(Panics(gpu.tenants.account(CALLER)));
    let panics = gpu.device.submit(call, 0, None).unwrap();
    let last = gpu.submit(&function, CALLER, 0);
    let (answers, written) = pipe::pipe().unwrap();
    let mut outbox = Outbox::new(written);
    for id in [first, panics, last] {
        outbox.push_from_worker(&FromWorker::Done { call: id.0, timings: Done::default() });
    }
    outbox.flush().unwrap();
    let end = listen(&gpu.device, W0, Generation::new(1), Epoch::new(0), &mut Inbox::new(answers));
    assert!(matches!(&end, End::Bad(why) if why.contains("the test's own panic")), "{end:?}");
    assert_eq!(answered(&mut gpu), [1, 3]);
    gpu.device.channel(W0).detach(None);
    let (lost, _) = gpu.device.worker_gone(W0);
    assert!(lost.is_empty(), "they are over, and nobody else answers them");
    assert!(answered(&mut gpu).is_empty());
}

#[test]
fn a_batch_that_is_not_settled_does_what_it_has_to_when_it_is_dropped() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let calls: Vec<CallId> = (0..5).map(|_| gpu.submit(&function, CALLER, 0)).collect();
    let lanes: Vec<String> = (0..4).map(|lane| format!("invoke on {lane} flags 0")).collect();
    let mut expected = vec!["install 1 from 0"];
    expected.extend(lanes.iter().map(String::as_str));
    gpu.expect(W0, &expected);
    let mut batch = Batch::new(&gpu.device);
    gpu.device.finish(W0, calls[2], Answer::Done(&Done::default()), &mut batch).unwrap();
    gpu.expect(W0, &[]);
    assert!(answered(&mut gpu).is_empty());
    drop(batch);
    gpu.expect(W0, &[&lanes[2]]);
    assert_eq!(answered(&mut gpu), [3]);
}

#[test]
fn a_call_whose_answer_cannot_be_made_is_told_so_and_the_others_get_theirs() {
    let mut gpu = Gpu::new(false);
    let function = gpu.function("f", 0);
    let config = r#"{"modules": [], "kernels": [], "blueprint": {"inputs": [], "weights": ["w"],
        "buffers": {"b": {"Sizeof": "w"}}, "outputs": ["b"], "control_flow": []}}"#;
    let parsed = Parsed {
        blueprint: pappus_blueprint::parse(config.as_bytes()).unwrap(),
        config: config.into(),
        weights: None,
        runs_on: vec![(Kind::Cuda, "sm_90".into())],
        callers: Arc::default(),
    };
    let record = FunctionRecord { name: "with an output".into(), ..FunctionRecord::clone(&function.record) };
    let other = gpu.cache.insert(gpu.tenants.account(CALLER), Arc::new(record), parsed);
    // The call of the second one has no place for its output.
    let calls = [&function, &other, &function].map(|function| gpu.submit(function, CALLER, 0));
    let (answers, written) = pipe::pipe().unwrap();
    let mut outbox = Outbox::new(written);
    for id in calls {
        outbox.push_from_worker(&FromWorker::Done { call: id.0, timings: Done::default() });
    }
    outbox.flush().unwrap();
    let end = listen(&gpu.device, W0, Generation::new(1), Epoch::new(0), &mut Inbox::new(answers));
    assert!(matches!(&end, End::Bad(why) if why.contains("index out of bounds")), "{end:?}");
    let told = answers_of(&mut gpu);
    assert_eq!(told.iter().map(|told| told.id).collect::<Vec<_>>(), [1, 2, 3]);
    let failed = |told: &v1::Response| match &told.body {
        Some(v1::response::Body::Error(error)) => error.message.contains("cannot make the answer"),
        _ => false,
    };
    assert_eq!(told.iter().map(failed).collect::<Vec<_>>(), [false, true, false]);
}
