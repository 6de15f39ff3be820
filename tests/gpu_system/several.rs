//! Several GPUs: `cuda:all` serves the same function on each of them (`scripts/gpu-check multi`).

use crate::fixture::Supervisor;
use crate::functions::{add_copy, copied, copy_of};

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/gpu-check multi (and a second one)"]
fn calls_spread_over_all_gpus() {
    let supervisor = Supervisor::with(&["--device", "cuda:all:workers=1,lanes=4,memory=8GiB"]);
    let mut client = supervisor.client();
    let names = |devices: &[pappus_client::v1::DeviceStatus]| -> Vec<String> {
        devices.iter().map(|device| device.name.clone()).collect()
    };
    let found = names(&client.status().unwrap().devices);
    assert!(found.len() > 1, "there is only {found:?}");
    add_copy(&mut client, "copy", 2_000_000);
    for round in 0..4u8 {
        let calls: Vec<_> = (0..32 * found.len() as u64)
            .map(|nth| {
                let byte = round.wrapping_mul(64).wrapping_add(nth as u8);
                (client.send_invocation(&copy_of("copy", byte)).unwrap(), byte)
            })
            .collect();
        for (id, byte) in calls {
            copied(&mut client, id, byte);
        }
    }
    let devices = client.status().unwrap().devices;
    let all: u64 = devices.iter().map(|device| device.completed).sum();
    assert_eq!(all, 4 * 32 * found.len() as u64);
    for device in &devices {
        println!("{}: {} of {all} calls", device.name, device.completed);
        let fair = all / found.len() as u64;
        assert!(device.completed >= fair / 2 && device.failed == 0, "{device:?}");
    }
}
