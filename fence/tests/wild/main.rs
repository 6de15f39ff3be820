//! Kernels that reach for every address are fenced, and the checker accepts what came out. `scripts/gpu-check fence` runs them on a GPU.

mod generator;

use generator::wild;

#[test]
fn every_wild_kernel_is_fenced_and_accepted() {
    for seed in 0..300 {
        let kernel = wild(seed, seed % 5 == 0);
        let fenced =
            pappus_fence::fence(&kernel.text).unwrap_or_else(|why| panic!("{seed}: {why}\n{}", kernel.text));
        let checked = pappus_fence::check(&fenced.text);
        assert!(checked.is_ok(), "{seed}: {}\n{}", checked.unwrap_err(), fenced.text);
        assert!(kernel.accesses > 0);
    }
}
