//! What devices become of requests and surveys.

use super::*;

fn gpu(index: u32) -> FoundDevice {
    FoundDevice {
        index,
        name: "NVIDIA H200".into(),
        uuid: format!("GPU-{index}0{index}"),
        arch: "sm_90".into(),
        memory_bytes: 141 * GIB,
        free_bytes: 140 * GIB,
        numa_node: Some(index),
    }
}

fn two() -> Survey {
    Survey { driver: "570.1".into(), shared: false, devices: vec![gpu(0), gpu(1)], ..Survey::default() }
}

fn take(requests: &[&str], survey: &Survey) -> Result<Vec<DeviceConfig>, String> {
    let requests: Vec<DeviceRequest> = requests.iter().map(|text| text.parse().unwrap()).collect();
    resolve(&requests, &Surveys::from([(Kind::Cuda, survey.clone())])).map_err(|e| e.to_string())
}

fn one(request: &str) -> DeviceConfig {
    take(&[request], &two()).unwrap().remove(0)
}

#[test]
fn missing_settings_follow_from_the_device() {
    let device = one("cuda:1");
    assert_eq!(
        (device.name.as_str(), device.uuid.as_str(), device.numa_node),
        ("cuda:1", "GPU-101", Some(1))
    );
    assert_eq!((device.arch.as_str(), device.driver.as_str()), ("sm_90", "570.1"));
    assert_eq!((device.workers, device.lanes, device.standbys), (62, 8, 1));
    assert_eq!((device.memory_bytes, device.weights_bytes), (126 * GIB, 126 * GIB / 4));
    assert_eq!((device.stack_bytes, device.scrub_calls), (GIB, false));
    assert_eq!((device.turns, device.workers_per_domain), (true, 1));
    assert_eq!(device.quantum, Duration::from_millis(5));
}

#[test]
fn turns_are_for_several_workers_that_cannot_overlap() {
    assert!(!one("cuda:0:workers=1").turns);
    let off = one("cuda:0:turns=off");
    assert!(!off.turns && off.workers_per_domain == 4);
    assert!(one("cuda:0:workers=1,turns=on").turns);
    let mps = Survey { shared: true, ..two() };
    assert!(!take(&["cuda:0"], &mps).unwrap()[0].turns);
    assert!(take(&["cuda:0:scrub=call"], &mps).unwrap_err().contains("MPS"));
    assert!(take(&["cuda:0:tenant-switch=scrub"], &mps).unwrap_err().contains("MPS"));
    assert!(take(&["cuda:0"], &mps).unwrap()[0].under_mps && !one("cuda:0").under_mps);
    assert!(one("cuda:0:scrub=call").scrub_calls);
}

#[test]
fn contexts_of_all_workers_must_fit_and_nothing_else_is_set_aside() {
    let device = one("cuda:0:workers=48,memory=100GiB");
    assert_eq!((device.workers, device.weights_bytes), (48, 25 * GIB));
    assert_eq!(
        device.largest_call_of(device.memory_bytes, device.standbys, GIB),
        97 * GIB,
        "beside a worker there are a standby and a compiler"
    );
    let shares = one("cuda:0:memory=100GiB,isolation=auto,standbys=1");
    assert_eq!(shares.largest_call_of(100 * GIB, 1, GIB), 95 * GIB, "the shared one stays, with its stacks");
    let why = take(&["cuda:0:workers=16,memory=8GiB"], &two()).unwrap_err();
    for words in [
        "memory=8.0 GiB on cuda:0",
        "of 16 workers, 1 standbys and a compiler may take about 9.5 GiB",
        "expected at least 64.0 MiB",
    ] {
        assert!(why.contains(words), "{why}");
    }
    let mps = Survey { shared: true, ..two() };
    for (request, survey, words) in [
        (
            "cuda:0:workers=63",
            two(),
            "contexts of 64 processes on one GPU; 63 workers, 1 standbys and a compiler are 65",
        ),
        ("cuda:0:workers=47", mps, "contexts of 48 processes on one GPU under MPS; 47 workers"),
    ] {
        let why = take(&[request], &survey).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(one("cuda:0:workers=63,standbys=0").workers, 63);
    let why = take(&["cuda:0:memory=200GiB"], &two()).unwrap_err();
    assert!(why.contains("cuda:0 has 141.0 GiB"), "{why}");
}

#[test]
fn as_many_workers_as_a_share_of_the_memory_holds() {
    let workers = |request| one(request).workers;
    assert_eq!(["cuda:0", "cuda:0:memory=24GiB", "cuda:0:memory=2GiB"].map(workers), [62, 11, 1]);
    assert_eq!(workers("cuda:0:standbys=4"), 59, "the driver's limit");
    let mps = Survey { shared: true, ..two() };
    assert_eq!(take(&["cuda:0"], &mps).unwrap()[0].workers, 46);
    assert_eq!((workers("cpu"), one("cpu").standbys, one("cpu:workers=1").standbys), (32, 1, 0));
}

#[test]
fn a_gpu_is_found_by_position_by_uuid_and_with_all() {
    let names = |requests: &[&str]| -> Vec<String> {
        take(requests, &two()).unwrap().into_iter().map(|d| d.name).collect()
    };
    assert_eq!(names(&["cuda:gpu-101".replace("gpu", "GPU").as_str()]), ["cuda:1"]);
    assert_eq!(names(&["cuda:GPU-1"]), ["cuda:1"]);
    assert_eq!(names(&["cuda:all:workers=2", "cpu"]), ["cuda:0", "cuda:1", "cpu"]);
    for (requests, words) in [
        (&["cuda:3"][..], "cuda:3: there are 2 GPUs: cuda:0 NVIDIA H200 GPU-000, cuda:1 NVIDIA H200 GPU-101"),
        (&["cuda:GPU-9"], "cuda:GPU-9: there are 2 GPUs"),
        (&["cuda:GPU-"], "several UUIDs begin so"),
        (&["cuda:1", "cuda:GPU-1"], "given twice"),
        (&["cuda:all", "cuda:0"], "given twice"),
    ] {
        let why = take(requests, &two()).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
    let none = take(&["cuda:0"], &Survey::default()).unwrap_err();
    assert!(none.contains("there is no GPU"), "{none}");
}

#[test]
fn a_slice_keeps_its_uuid_as_its_name() {
    let slice = FoundDevice { uuid: "MIG-7".into(), memory_bytes: 18 * GIB, free_bytes: 17 * GIB, ..gpu(0) };
    let survey = Survey { devices: vec![gpu(0), slice], ..two() };
    let devices = take(&["cuda:MIG-7", "cuda:0"], &survey).unwrap();
    assert_eq!(take(&["cuda:MIG-7", "cuda:all"], &survey).unwrap(), devices[..2]);
    assert_eq!((devices[0].name.as_str(), devices[0].uuid.as_str()), ("cuda:MIG-7", "MIG-7"));
    assert_eq!((devices[1].name.as_str(), devices[1].memory_bytes), ("cuda:0", 126 * GIB));
    // A container that sees nothing but a slice.
    let alone = Survey { devices: vec![FoundDevice { uuid: "MIG-7".into(), ..gpu(0) }], ..two() };
    for request in ["cuda:0", "cuda:all", "cuda:MIG-7"] {
        assert_eq!(take(&[request], &alone).unwrap()[0].name, "cuda:MIG-7", "{request}");
    }
    assert!(take(&["cuda:MIG-8"], &survey).unwrap_err().contains("cuda:MIG-8"));
}

#[test]
fn nothing_asked_for_means_all_gpus_or_the_cpu() {
    let names = |survey: &Survey| -> (Vec<String>, usize) {
        let (devices, left_out) = default_devices(&Surveys::from([(Kind::Cuda, survey.clone())])).unwrap();
        (devices.into_iter().map(|d| d.name).collect(), left_out.len())
    };
    assert_eq!(names(&two()), (vec!["cuda:0".into(), "cuda:1".into()], 0));
    assert_eq!(names(&Survey::default()), (vec!["cpu".into()], 0));
    let small = FoundDevice { memory_bytes: 2 * GIB, free_bytes: GIB, ..gpu(1) };
    assert_eq!(names(&Survey { devices: vec![gpu(0), small.clone()], ..two() }), (vec!["cuda:0".into()], 1));
    assert_eq!(names(&Survey { devices: vec![small], ..two() }), (vec!["cpu".into()], 1));
}

#[test]
fn gpus_of_several_makers_are_told_apart() {
    let amd =
        FoundDevice { name: "AMD Instinct MI210".into(), arch: "gfx90a:sramecc+:xnack-".into(), ..gpu(0) };
    let hip = Survey { driver: "HIP 7.1.0".into(), devices: vec![amd], ..Survey::default() };
    let surveys = Surveys::from([(Kind::Cuda, two()), (Kind::Hip, hip)]);
    let (all, _) = default_devices(&surveys).unwrap();
    assert_eq!(all.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["cuda:0", "cuda:1", "hip:0"]);
    let take = |text: &str| resolve(&[text.parse().unwrap()], &surveys).map_err(|e| e.to_string());
    let hip = take("hip:GPU-000:workers=2").unwrap().remove(0);
    assert_eq!((hip.kind, hip.name.as_str(), hip.driver.as_str()), (Kind::Hip, "hip:0", "HIP 7.1.0"));
    assert!(take("hip:1").unwrap_err().contains("there is 1 GPU: hip:0 AMD Instinct MI210"));
    assert!(take("cuda:2").unwrap_err().contains("there are 2 GPUs"));
    for (meant, selector) in [(true, "hip:0"), (true, "hip:all"), (false, "cuda:0"), (false, "cuda:all")] {
        let request: DeviceRequest = selector.parse().unwrap();
        assert_eq!(hip.is_meant(&request.selector), meant, "{selector}");
    }
}

/// There, processes would find in a processor what others left.
#[test]
fn processes_that_would_overlap_by_themselves_take_turns_unless_told_otherwise() {
    let survey = Survey { devices: vec![gpu(0)], ..Survey::default() };
    let surveys = Surveys::from([(Kind::Hip, survey.clone()), (Kind::Cuda, survey)]);
    let take = |text: &str| {
        let devices = resolve(&[text.parse().unwrap()], &surveys).map_err(|e| e.to_string());
        devices.map(|mut devices| devices.remove(0))
    };
    for (text, turns) in
        [("cuda:0", true), ("hip:0", true), ("hip:0:turns=off", false), ("hip:0:workers=1", false)]
    {
        assert_eq!(take(text).unwrap().turns, turns, "{text}");
    }
    for setting in ["scrub=call", "tenant-switch=scrub"] {
        assert!(take(&format!("hip:0:{setting}")).is_ok());
        assert!(take(&format!("hip:0:workers=1,{setting}")).is_ok());
        assert!(take(&format!("cuda:0:turns=off,{setting}")).is_ok());
        let why = take(&format!("hip:0:turns=off,{setting}")).unwrap_err();
        assert!(why.contains("works with turns=on only"), "{why}");
    }
}

#[test]
fn a_cpu_has_memory_for_all_its_workers_together() {
    let cpu = one("cpu:workers=3,memory=96MiB,standbys=3,turns=on,quantum=1ms");
    assert_eq!((cpu.largest_call_of(cpu.memory_bytes, cpu.standbys, 0), cpu.lanes), (96 << 20, 1));
    assert!((2..=3).contains(&cpu.workers_per_domain));
    assert!(one("cpu:memory=64GiB").largest_call_of(64 * GIB, 1, 0) < 4 * GIB, "what a kernel addresses");
    assert!(cpu.turns && cpu.quantum == Duration::from_millis(1) && cpu.standbys == 3);
    assert!(!one("cpu").turns && !one("cpu").scrub_switch && one("cpu:tenant-switch=scrub").scrub_switch);
    for (text, words) in [
        ("cpu:workers=2,memory=1KiB", "memory is 1.0 KiB"),
        ("cpu:workers=2,standbys=3", "standbys must be 0 to 2"),
    ] {
        let why = take(&[text], &two()).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn a_device_that_shares_workers_makes_code_of_its_kind_interruptible() {
    let of = |requests: &[&str]| -> Vec<bool> {
        take(requests, &two()).unwrap().iter().map(|device| device.interruptible).collect()
    };
    assert_eq!(of(&["cpu", "cuda:0"]), [false, false]);
    assert_eq!(of(&["cpu:isolation=process"]), [false]);
    assert_eq!(of(&["cpu", "cuda:0", "cpu:1:isolation=auto"]), [true, false, true], "they run the same code");
    assert_eq!(of(&["cpu", "cuda:0", "cuda:1:isolation=auto"]), [false, true, true]);
}

#[test]
fn a_gpu_shares_one_worker_whose_process_and_standby_are_made_for_that() {
    let shares = one("cuda:0:isolation=auto,shared-limit=20ms");
    assert_eq!((shares.shared_workers, shares.shared_limit), (1, Duration::from_millis(20)));
    assert_eq!((shares.workers, shares.standbys), (61, 2), "one standby more, one worker less");
    let made =
        |device: &DeviceConfig| [0, 1, 2].map(|nth| (device.makes_shared(nth), device.stands_by_shared(nth)));
    assert_eq!(made(&shares), [(true, false), (false, true), (false, false)]);
    let none = [(false, false); 3];
    assert_eq!((made(&one("cuda:0")), made(&one("cpu:isolation=auto"))), (none, none));
    assert_eq!(one("cuda:0").shared_workers, 0, "off by default");
    assert_eq!(one("cuda:0:isolation=auto,standbys=1").standbys, 1);
    for (text, words) in [
        ("cuda:0:isolation=auto,workers=1", "tenants share 1 with isolation=auto"),
        ("cuda:0:isolation=maybe", "isolation must be process or auto"),
        ("cuda:0:colour=red", "; isolation=process|auto and shared-limit=DURATION"),
        ("hip:0:isolation=auto", "is no setting of it"),
    ] {
        let why = text.parse().and_then(|request| resolve(&[request], &Surveys::from([(Kind::Cuda, two())])));
        let why = why.unwrap_err().to_string();
        assert!(why.contains(words), "{text}: {why}");
    }
}
