//! What the checker accepts and what not: samples, attacks by name, mutants of every line of the fence, and noise.

mod accepted;
mod attacks;
mod kernels;
mod mutants;
mod noise;
