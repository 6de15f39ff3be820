//! Writes random kernels that reach for every address, as they are and fenced: `wild FIRST_SEED COUNT DIR`. A line for each on stdout:
//! seed, accesses of a thread, and whether all addresses are mapped where `fence/gpu/fuzz.py` runs it.

#[path = "../tests/wild/generator.rs"]
mod generator;

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, count, folder] = arguments.as_slice() else {
        return Err("usage: wild FIRST_SEED COUNT DIR".into());
    };
    let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
    for seed in first..first + count {
        // Those run without the fence, too: the positive control.
        let mapped = seed % 16 == 0;
        let kernel = generator::wild(seed, mapped);
        let fenced = pappus_fence::fence(&kernel.text).map_err(|why| format!("seed {seed}: {why}"))?;
        pappus_fence::check(&fenced.text).map_err(|why| format!("seed {seed}: {why}"))?;
        std::fs::write(Path::new(folder).join(format!("{seed}.ptx")), &kernel.text)?;
        std::fs::write(Path::new(folder).join(format!("{seed}.fenced.ptx")), &fenced.text)?;
        println!("{seed} {} {}", kernel.accesses, u8::from(mapped));
    }
    println!("{} {:#x} {:?}", generator::SECRET, generator::TABLE, generator::COUNTERS);
    Ok(())
}
