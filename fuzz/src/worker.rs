//! Messages between supervisor and worker: frames of both directions, read in place, and descriptors beside
//! them.

use std::os::fd::AsFd;

use pappus_protocol::header::{Frame, HEADER_BYTES, Header};
use pappus_protocol::limits::{MAX_FAULT_BYTES, MAX_FDS, MAX_ITEMS, MAX_OUTPUTS, MAX_SCALARS};
use pappus_protocol::{FromWorker, ToWorker, control};
use pappus_shmem::fds;

/// A stream of frames: each is read as both sides would; what is read is written the same.
pub fn read(mut bytes: &[u8]) {
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let Ok((tag, id, length)) = Header::decode(header) else { return };
        // A stream that ends early gives the bytes it has, so that short inputs reach the bodies.
        let (body, later) = rest.split_at(rest.len().min(length));
        bytes = later;
        let frame = Frame { tag, id, body };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        if let Ok(message) = ToWorker::decode(frame) {
            check(&message);
            assert_eq!(message.head(), (tag, head_id(&message, id)));
            message.encode_body(&mut first);
            let again = ToWorker::decode(Frame { tag, id, body: &first });
            again.expect("what was written is read").encode_body(&mut second);
            assert_eq!(first, second);
        }
        if let Ok(message) = FromWorker::decode(frame) {
            match &message {
                FromWorker::Failed { fault, .. }
                | FromWorker::Refused { fault, .. }
                | FromWorker::Broken { fault } => {
                    assert!(fault.message.len() <= MAX_FAULT_BYTES);
                    assert_eq!(fault.to_fault().as_ref(), *fault);
                }
                _ => {}
            }
            first.clear();
            second.clear();
            message.encode_body(&mut first);
            let again = FromWorker::decode(Frame { tag, id, body: &first });
            again.expect("what was written is read").encode_body(&mut second);
            assert_eq!(first, second);
        }
    }
}

/// The id of messages that name nothing is 0.
fn head_id(message: &ToWorker<'_>, id: u64) -> u64 {
    match message {
        ToWorker::Configure(_) | ToWorker::Soon | ToWorker::Order | ToWorker::Read { .. } => 0,
        _ => id,
    }
}

/// Nothing is counted beyond its limit.
fn check(message: &ToWorker<'_>) {
    match message {
        ToWorker::Invoke { invoke, .. } => assert!(
            invoke.items.len() <= MAX_ITEMS
                && invoke.outputs.len() <= MAX_OUTPUTS
                && invoke.scalars.len() <= MAX_SCALARS
                && invoke.descriptors as usize <= MAX_FDS
        ),
        ToWorker::Install { install, .. } => assert!(install.descriptors() <= MAX_FDS + 2),
        _ => {}
    }
}

/// Packets on the control socket: how many descriptors are expected, of which message; then packets, each behind a
/// byte that says how long it is and how many descriptors it has.
pub fn read_control(bytes: &[u8]) {
    let Some((&[count, id], mut rest)) = bytes.split_first_chunk::<2>() else { return };
    let (ours, theirs) = control::pair().expect("a pair of sockets");
    let null = std::fs::File::open("/dev/null").expect("it is always there");
    while let Some((&head, later)) = rest.split_first() {
        let (packet, later) = later.split_at(later.len().min(usize::from(head & 0x1f)));
        rest = later;
        let passed = vec![null.as_fd(); [0, 1, 2, 8][usize::from(head >> 6)]];
        // No reader yet: a full socket is the end.
        if packet.is_empty() || fds::send(ours.as_fd(), packet, &passed).is_err() {
            break;
        }
    }
    // The reader that waits for more sees that the socket is closed.
    drop(ours);
    if let Ok(received) = control::recv(&theirs, id.into(), count.into()) {
        assert_eq!(received.len(), usize::from(count));
    }
}
