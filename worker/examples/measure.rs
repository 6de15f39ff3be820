#[path = "../tests/harness/mod.rs"]
mod harness;
use pappus_worker::device::{
    Compiler,
    cpu::{Cpu, compiler::CpuCompiler},
};
use std::time::Instant;
fn main() {
    let t = Instant::now();
    let c = CpuCompiler::new().unwrap();
    println!("compiler engine {:?}", t.elapsed());
    let m = std::fs::read("kernels/built/mlops.wasm").unwrap();
    for _ in 0..5 {
        let t = Instant::now();
        let (code, _) = c.compile(&m).unwrap();
        println!("compile mlops {:?} {} bytes", t.elapsed(), code.len());
    }
    let t = Instant::now();
    let cpu = Cpu::new().unwrap();
    println!("Cpu::new {:?}", t.elapsed());
    drop(cpu);
    let t = Instant::now();
    let cpu = Cpu::new().unwrap();
    println!("Cpu::new {:?}", t.elapsed());
    drop(cpu);
    let mut w = harness::Worker::start(|| Cpu::new().unwrap());
    let code = c.compile(&m).unwrap().0;
    for i in 10..15 {
        let t = Instant::now();
        w.install(i, include_str!("../../kernels/configs/matmul.json"), &code, &[]);
        let e = w.call(99, &[], &[]).unwrap_err();
        let _ = e;
        println!("install {:?}", t.elapsed());
    }
    let hello = c.compile(&std::fs::read("kernels/built/module.wasm").unwrap()).unwrap().0;
    w.install(1, include_str!("../../kernels/configs/hello.json"), &hello, &[]);
    let call = w.arena_call(1, &[], &[]);
    let mut ns: Vec<_> = (0..20000)
        .map(|_| {
            let t = Instant::now();
            w.invoke(&call).unwrap();
            t.elapsed().as_nanos()
        })
        .collect();
    ns.sort();
    println!("hello p50 {} p99 {}", ns[10000], ns[19800]);
    let t = Instant::now();
    for _ in 0..100000u64 {
        w.to.push_to_worker(&pappus_protocol::ToWorker::Invoke {
            call: 1,
            invoke: pappus_protocol::to_worker::Invoke {
                function: 1,
                deadline_ns: u64::MAX,
                lane: 0,
                descriptors: 0,
                items: &[],
                outputs: &[],
                words: &[],
            },
        });
        w.to.flush().unwrap();
        loop {
            if let Some(_) = w.from.frame().unwrap() {
                break;
            }
            w.from.fill().unwrap();
        }
    }
    println!("hello, polling client: {} ns a call", t.elapsed().as_nanos() / 100000);
    let batch = 100;
    let t = Instant::now();
    for _ in 0..1000 {
        for _ in 0..batch {
            w.to.push_to_worker(&pappus_protocol::ToWorker::Invoke {
                call: 1,
                invoke: pappus_protocol::to_worker::Invoke {
                    function: 1,
                    deadline_ns: u64::MAX,
                    lane: 0,
                    descriptors: 0,
                    items: &[],
                    outputs: &[],
                    words: &[],
                },
            });
        }
        w.to.flush().unwrap();
        let mut got = 0;
        while got < batch {
            if let Some(_) = w.from.frame().unwrap() {
                got += 1;
                continue;
            }
            w.from.fill().unwrap();
        }
    }
    println!("hello, batches of 100: {} ns a call", t.elapsed().as_nanos() / 100000);
    let mut mm = w.arena_call(10, &[&4u64.to_le_bytes(), &[0; 131072]], &[131072]);
    mm.words = vec![4];
    let mut ns: Vec<_> = (0..500)
        .map(|_| {
            let t = Instant::now();
            w.invoke(&mm).unwrap();
            t.elapsed().as_nanos()
        })
        .collect();
    ns.sort();
    println!("matmul128 p50 {} p99 {}", ns[250], ns[495]);
}
