//! Several GPUs: `cuda:all` or `hip:all` serves the same function on each of them (`scripts/gpu-check multi`).

use crate::functions::{add_copy, copied, copy_of};
use crate::gpu::Gpu;

pub(crate) fn calls_spread_over_all_gpus(gpu: &Gpu) {
    let supervisor = gpu.supervisor(&format!("{}:all", gpu.kind()), "workers=1,lanes=4,memory=8GiB", &[]);
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
        assert!(device.completed >= gpu.or(fair / 2, 1) && device.failed == 0, "{device:?}");
    }
}
