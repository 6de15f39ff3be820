//! An `Invoke` against a function and an arena: whatever passes names ranges that are there, and no output lies in
//! another output or in an input.

use std::sync::{Arc, LazyLock};

use pappus_blueprint::Blueprint;
use pappus_proto::v1;
use pappus_protocol::to_worker::{DISCARD, Item, STAGING_ARENA};
use pappus_shmem::memfd;
use pappus_supervisor::arena::Arena;
use pappus_supervisor::client_io::ClientIo;
use pappus_supervisor::client_memfd::ClientMemfd;
use pappus_supervisor::ids::TenantId;
use pappus_supervisor::limits::STAGING_BYTES;
use pappus_supervisor::quota::Limit;
use pappus_supervisor::server::invoke;
use pappus_supervisor::tenants::Tenants;
use prost::Message;

const ARENA: u64 = 1;
const ARENA_BYTES: u64 = 4096;

/// Two inputs, a size that one of them tells, two outputs.
const FUNCTION: &[u8] = br#"{"module_path": "m", "kernels": ["k"], "blueprint": {
    "inputs": ["a", "b"], "weights": [],
    "buffers": {"c": {"Sizeof": "a"}, "d": {"FromInput": {"bufname": "b", "idx": 0}}},
    "outputs": ["c", "d"], "control_flow": []}}"#;

static BLUEPRINT: LazyLock<Blueprint> =
    LazyLock::new(|| pappus_blueprint::parse(FUNCTION).expect("it is a blueprint"));

static ARENAS: LazyLock<Arc<Arena>> = LazyLock::new(|| {
    let memfd = memfd::arena("pappus-fuzz", ARENA_BYTES).expect("a small arena");
    let account = Tenants::default().account(TenantId::new(0));
    let memfd = ClientMemfd::new(memfd, account.tenant, &ClientIo::default());
    Arc::new(Arena::new(ARENA, memfd, &account, Limit::ArenaBytes).expect("its quota has room"))
});

/// A protobuf `Invoke`.
pub fn read(bytes: &[u8]) {
    let Ok(request) = v1::Invoke::decode(bytes) else { return };
    let (items, targets) = match invoke::check(&request, &[], std::slice::from_ref(&*ARENAS), &BLUEPRINT, &[])
    {
        Ok(ranges) => ranges,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut inputs = Vec::new();
    for item in &items {
        assert_eq!(item.kind.get(), Item::ARENA, "no descriptor came with it");
        let (start, end) = (item.offset.get(), item.offset.get() + item.bytes.get());
        inside(item.source.get(), end);
        if item.source.get() == ARENA {
            inputs.push(start..end);
        }
    }
    let mut outputs: Vec<std::ops::Range<u64>> = Vec::new();
    assert_eq!(targets.len(), BLUEPRINT.outputs().len());
    for target in targets.iter().filter(|target| target.arena.get() != DISCARD.get()) {
        let range = target.offset.get()..target.offset.get() + target.bytes.get();
        inside(target.arena.get(), range.end);
        if target.arena.get() == ARENA {
            let apart = |other: &std::ops::Range<u64>| {
                range.is_empty() || other.is_empty() || other.end <= range.start || range.end <= other.start
            };
            assert!(inputs.iter().chain(&outputs).all(apart));
            outputs.push(range);
        }
    }
}

fn inside(arena: u64, end: u64) {
    let bytes = match arena {
        ARENA => ARENA_BYTES,
        _ if arena == STAGING_ARENA.get() => STAGING_BYTES,
        other => panic!("there is no arena {other}"),
    };
    assert!(end <= bytes);
}
