//! Memory: each kind of access moves the right bytes, and nothing else; addresses are checked.

use gfx9::decode::Arch;
use gfx9::exec::Stop;
use gfx9::memory::{Access, Fault, Reason};
use gfx9::wave::{PRIVATE_APERTURE, SCRATCH, SHARED_APERTURE};

use crate::assembled::{arch, words};
use crate::bench::{Bench, Noise, PLACE};

/// Each with an address in v[0:1] (or v0 and s[0:1], or v0 of LDS), data in v[4:7], results in v[8:11].
pub(crate) const INSTRUCTIONS: &[&str] = &[
    "global_load_ubyte v8, v[0:1], off",
    "global_load_sbyte v8, v[0:1], off",
    "global_load_ushort v8, v[0:1], off",
    "global_load_sshort v8, v[0:1], off",
    "global_load_dword v8, v[0:1], off",
    "global_load_dwordx2 v[8:9], v[0:1], off",
    "global_load_dwordx3 v[8:10], v[0:1], off",
    "global_load_dwordx4 v[8:11], v[0:1], off",
    "global_load_ubyte_d16 v8, v[0:1], off",
    "global_load_ubyte_d16_hi v8, v[0:1], off",
    "global_load_sbyte_d16 v8, v[0:1], off",
    "global_load_sbyte_d16_hi v8, v[0:1], off",
    "global_load_short_d16 v8, v[0:1], off",
    "global_load_short_d16_hi v8, v[0:1], off",
    "global_store_byte v[0:1], v4, off",
    "global_store_byte_d16_hi v[0:1], v4, off",
    "global_store_short v[0:1], v4, off",
    "global_store_short_d16_hi v[0:1], v4, off",
    "global_store_dword v[0:1], v4, off",
    "global_store_dwordx2 v[0:1], v[4:5], off",
    "global_store_dwordx3 v[0:1], v[4:6], off",
    "global_store_dwordx4 v[0:1], v[4:7], off",
    "global_load_dword v8, v[0:1], off offset:-8",
    "global_load_dword v8, v0, s[0:1] offset:16",
    "global_load_dword a8, v[0:1], off",
    "global_store_dword v[0:1], a4, off",
    "flat_load_dword v8, v[0:1] offset:4",
    "flat_store_dword v[0:1], v4",
    "global_atomic_swap v8, v[0:1], v4, off glc",
    "global_atomic_cmpswap v8, v[0:1], v[4:5], off glc",
    "global_atomic_add v8, v[0:1], v4, off glc",
    "global_atomic_add v[0:1], v4, off",
    "global_atomic_sub v8, v[0:1], v4, off glc",
    "global_atomic_smin v8, v[0:1], v4, off glc",
    "global_atomic_umin v8, v[0:1], v4, off glc",
    "global_atomic_smax v8, v[0:1], v4, off glc",
    "global_atomic_umax v8, v[0:1], v4, off glc",
    "global_atomic_and v8, v[0:1], v4, off glc",
    "global_atomic_or v8, v[0:1], v4, off glc",
    "global_atomic_xor v8, v[0:1], v4, off glc",
    "global_atomic_inc v8, v[0:1], v4, off glc",
    "global_atomic_dec v8, v[0:1], v4, off glc",
    "global_atomic_add_f32 v[0:1], v4, off",
    "global_atomic_swap_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_cmpswap_x2 v[8:9], v[0:1], v[4:7], off glc",
    "global_atomic_add_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_sub_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_smin_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_umin_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_smax_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_umax_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_and_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_or_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_xor_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_inc_x2 v[8:9], v[0:1], v[4:5], off glc",
    "global_atomic_dec_x2 v[8:9], v[0:1], v[4:5], off glc",
    "s_load_dword s8, s[0:1], 0x4",
    "s_load_dword s8, s[0:1], s2",
    "s_load_dwordx2 s[8:9], s[0:1], 0x0",
    "s_load_dwordx4 s[8:11], s[0:1], 0x0",
    "s_load_dwordx8 s[8:15], s[0:1], 0x0",
    "s_load_dwordx16 s[8:23], s[0:1], 0x0",
    "s_dcache_inv",
    "s_dcache_wb",
    "s_dcache_inv_vol",
    "s_dcache_wb_vol",
    "s_memtime s[8:9]",
    "s_memrealtime s[8:9]",
    "buffer_wbl2",
    "buffer_inv sc1",
    "buffer_wbinvl1",
    "buffer_wbinvl1_vol",
    "buffer_store_dword v4, v0, s[0:3], s4 offen offset:8",
    "buffer_load_dword v8, v0, s[0:3], s4 offen offset:8",
    "buffer_load_ubyte v8, off, s[0:3], s4 offset:5",
    "scratch_store_dwordx2 v0, v[4:5], off offset:8",
    "scratch_load_dword v8, off, s0 offset:4",
    "scratch_load_dwordx2 v[8:9], v0, off offset:8",
    "ds_nop",
    "ds_write_b8 v0, v4 offset:3",
    "ds_write_b16 v0, v4",
    "ds_write_b32 v0, v4 offset:12",
    "ds_write_b64 v0, v[4:5]",
    "ds_write_b96 v0, v[4:6]",
    "ds_write_b128 v0, v[4:7]",
    "ds_write2_b32 v0, v4, v5 offset0:1 offset1:3",
    "ds_write2st64_b32 v0, v4, v5 offset0:0 offset1:1",
    "ds_write2_b64 v0, v[4:5], v[6:7] offset0:1 offset1:0",
    "ds_write2st64_b64 v0, v[4:5], v[6:7] offset0:1 offset1:0",
    "ds_read_u8 v8, v0 offset:3",
    "ds_read_i8 v8, v0",
    "ds_read_u16 v8, v0",
    "ds_read_i16 v8, v0",
    "ds_read_b32 v8, v0 offset:12",
    "ds_read_b64 v[8:9], v0",
    "ds_read_b96 v[8:10], v0",
    "ds_read_b128 v[8:11], v0",
    "ds_read2_b32 v[8:9], v0 offset0:1 offset1:3",
    "ds_read2st64_b32 v[8:9], v0 offset0:0 offset1:1",
    "ds_read2_b64 v[8:11], v0 offset0:1 offset1:0",
    "ds_read2st64_b64 v[8:11], v0 offset0:1 offset1:0",
    "ds_permute_b32 v8, v0, v4",
    "ds_bpermute_b32 v8, v0, v4 offset:4",
    "ds_add_u32 v0, v4",
    "ds_sub_u32 v0, v4",
    "ds_rsub_u32 v0, v4",
    "ds_inc_u32 v0, v4",
    "ds_dec_u32 v0, v4",
    "ds_min_i32 v0, v4",
    "ds_max_i32 v0, v4",
    "ds_min_u32 v0, v4",
    "ds_max_u32 v0, v4",
    "ds_and_b32 v0, v4",
    "ds_or_b32 v0, v4",
    "ds_xor_b32 v0, v4",
    "ds_cmpst_b32 v0, v4, v5",
    "ds_add_rtn_u32 v8, v0, v4",
    "ds_sub_rtn_u32 v8, v0, v4",
    "ds_rsub_rtn_u32 v8, v0, v4",
    "ds_inc_rtn_u32 v8, v0, v4",
    "ds_dec_rtn_u32 v8, v0, v4",
    "ds_min_rtn_i32 v8, v0, v4",
    "ds_max_rtn_i32 v8, v0, v4",
    "ds_min_rtn_u32 v8, v0, v4",
    "ds_max_rtn_u32 v8, v0, v4",
    "ds_and_rtn_b32 v8, v0, v4",
    "ds_or_rtn_b32 v8, v0, v4",
    "ds_xor_rtn_b32 v8, v0, v4",
    "ds_wrxchg_rtn_b32 v8, v0, v4",
    "ds_cmpst_rtn_b32 v8, v0, v4, v5",
];

const AT: u64 = 0x5_0000_0000;
/// Bytes of each lane, and in front of the first.
const STRIDE: usize = 32;
const FRONT: usize = 16;

/// A bench whose lanes point at bytes of their own at `base`; the bytes.
fn bench(seed: u64, base: u64, architecture: Arch) -> (Bench, Vec<u8>) {
    let mut noise = Noise(seed);
    let mut bench = Bench::new(&mut noise, architecture);
    let bytes: Vec<u8> = (0..FRONT + 64 * STRIDE + 16).map(|_| noise.next() as u8).collect();
    bench.memory.add(AT, &bytes, true);
    for lane in 0..64 {
        let address = base + (FRONT + STRIDE * lane) as u64;
        bench.v(0)[lane] = address as u32;
        bench.v(1)[lane] = (address >> 32) as u32;
    }
    (bench, bytes)
}

/// Runs an instruction, compares results in v8 on with `load(own bytes, old v8)` and each lane's bytes with `store`.
fn check(asm: &str, load: impl Fn(&[u8], u32) -> Vec<u32>, store: impl Fn(&[u32; 4], &mut [u8])) {
    for seed in 1..40 {
        let is_lds = asm.starts_with("ds_");
        let (mut bench, mut expected) = bench(seed, if is_lds { 0 } else { AT }, arch(asm));
        if is_lds {
            bench.lds[..expected.len()].copy_from_slice(&expected);
        }
        let old: Vec<[u32; 64]> = (0..64).map(|number| *bench.v(number)).collect();
        let exec = bench.wave.exec();
        bench.step(asm);
        let first = if asm.contains(" a8") { 40 } else { 8 };
        let data = if asm.contains(" a4") { 36 } else { 4 };
        for lane in 0..64 {
            let own = FRONT + STRIDE * lane;
            let results = load(&expected[own - 16..own + 16], old[first][lane]);
            for (number, result) in results.iter().enumerate() {
                let wanted = if exec >> lane & 1 == 1 { *result } else { old[first + number][lane] };
                assert_eq!(bench.v(first + number)[lane], wanted, "{asm}: result {number} of lane {lane}");
            }
            if exec >> lane & 1 == 1 {
                let data = std::array::from_fn(|number| old[data + number][lane]);
                store(&data, &mut expected[own - 16..own + 16]);
            }
        }
        let now = if is_lds { bench.lds[..expected.len()].to_vec() } else { bench.memory.bytes(AT) };
        assert!(now == expected, "{asm}: memory");
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn loads(asm: &str, load: impl Fn(&[u8], u32) -> Vec<u32>) {
    check(asm, load, |_, _| ());
}

fn stores(asm: &str, store: impl Fn(&[u32; 4], &mut [u8])) {
    check(asm, |_, _| vec![], store);
}

/// In `bytes`, the lane's own begin at 16.
#[test]
fn loads_bring_the_right_bytes() {
    loads("global_load_ubyte v8, v[0:1], off", |m, _| vec![u32::from(m[16])]);
    loads("global_load_sbyte v8, v[0:1], off", |m, _| vec![m[16] as i8 as u32]);
    loads("global_load_ushort v8, v[0:1], off", |m, _| vec![word(m, 16) & 0xffff]);
    loads("global_load_sshort v8, v[0:1], off", |m, _| vec![word(m, 16) as i16 as u32]);
    for (asm, count) in [
        ("global_load_dword v8, v[0:1], off", 1),
        ("global_load_dword a8, v[0:1], off", 1),
        ("global_load_dwordx2 v[8:9], v[0:1], off", 2),
        ("global_load_dwordx3 v[8:10], v[0:1], off", 3),
        ("global_load_dwordx4 v[8:11], v[0:1], off", 4),
        ("ds_read_b64 v[8:9], v0", 2),
        ("ds_read_b96 v[8:10], v0", 3),
        ("ds_read_b128 v[8:11], v0", 4),
    ] {
        loads(asm, move |m, _| (0..count).map(|n| word(m, 16 + 4 * n)).collect());
    }
    let low = |old: u32, new: u32| vec![old & 0xffff_0000 | new & 0xffff];
    let high = |old: u32, new: u32| vec![old & 0xffff | new << 16];
    loads("global_load_ubyte_d16 v8, v[0:1], off", move |m, old| low(old, u32::from(m[16])));
    loads("global_load_ubyte_d16_hi v8, v[0:1], off", move |m, old| high(old, u32::from(m[16])));
    loads("global_load_sbyte_d16 v8, v[0:1], off", move |m, old| low(old, m[16] as i8 as u32));
    loads("global_load_sbyte_d16_hi v8, v[0:1], off", move |m, old| high(old, m[16] as i8 as u32));
    loads("global_load_short_d16 v8, v[0:1], off", move |m, old| low(old, word(m, 16)));
    loads("global_load_short_d16_hi v8, v[0:1], off", move |m, old| high(old, word(m, 16)));
    loads("global_load_dword v8, v[0:1], off offset:-8", |m, _| vec![word(m, 8)]);
    loads("flat_load_dword v8, v[0:1] offset:4", |m, _| vec![word(m, 20)]);
    loads("ds_read_u8 v8, v0 offset:3", |m, _| vec![u32::from(m[19])]);
    loads("ds_read_i8 v8, v0", |m, _| vec![m[16] as i8 as u32]);
    loads("ds_read_u16 v8, v0", |m, _| vec![word(m, 16) & 0xffff]);
    loads("ds_read_i16 v8, v0", |m, _| vec![word(m, 16) as i16 as u32]);
    loads("ds_read_b32 v8, v0 offset:12", |m, _| vec![word(m, 28)]);
    loads("ds_read2_b32 v[8:9], v0 offset0:1 offset1:3", |m, _| vec![word(m, 20), word(m, 28)]);
    loads("ds_read2_b64 v[8:11], v0 offset0:1 offset1:0", |m, _| {
        [24, 28, 16, 20].map(|at| word(m, at)).into()
    });
}

#[test]
fn loads_with_a_scalar_base_add_the_lanes_offset() {
    for seed in 1..20 {
        let (mut bench, bytes) = bench(seed, 0, Arch::Gfx90a);
        (*bench.s(0), *bench.s(1)) = (AT as u32, (AT >> 32) as u32);
        bench.wave.set_exec(u64::MAX);
        bench.step("global_load_dword v8, v0, s[0:1] offset:16");
        let wanted: Vec<_> = (0..64).map(|lane| word(&bytes, FRONT + STRIDE * lane + 16)).collect();
        assert_eq!(bench.v(8)[..], wanted);
    }
}

#[test]
fn stores_change_the_right_bytes() {
    let put = |m: &mut [u8], at: usize, value: u32| m[at..at + 4].copy_from_slice(&value.to_le_bytes());
    stores("global_store_byte v[0:1], v4, off", |d, m| m[16] = d[0] as u8);
    stores("global_store_byte_d16_hi v[0:1], v4, off", |d, m| m[16] = (d[0] >> 16) as u8);
    stores("global_store_short v[0:1], v4, off", |d, m| {
        m[16..18].copy_from_slice(&(d[0] as u16).to_le_bytes())
    });
    stores("global_store_short_d16_hi v[0:1], v4, off", |d, m| {
        m[16..18].copy_from_slice(&((d[0] >> 16) as u16).to_le_bytes());
    });
    for (asm, count) in [
        ("global_store_dword v[0:1], v4, off", 1),
        ("global_store_dword v[0:1], a4, off", 1),
        ("global_store_dwordx2 v[0:1], v[4:5], off", 2),
        ("global_store_dwordx3 v[0:1], v[4:6], off", 3),
        ("global_store_dwordx4 v[0:1], v[4:7], off", 4),
        ("flat_store_dword v[0:1], v4", 1),
        ("ds_write_b64 v0, v[4:5]", 2),
        ("ds_write_b96 v0, v[4:6]", 3),
        ("ds_write_b128 v0, v[4:7]", 4),
    ] {
        stores(asm, move |d, m| (0..count).for_each(|n| put(m, 16 + 4 * n, d[n])));
    }
    stores("ds_write_b8 v0, v4 offset:3", |d, m| m[19] = d[0] as u8);
    stores("ds_write_b16 v0, v4", |d, m| m[16..18].copy_from_slice(&(d[0] as u16).to_le_bytes()));
    stores("ds_write_b32 v0, v4 offset:12", move |d, m| put(m, 28, d[0]));
    stores("ds_write2_b32 v0, v4, v5 offset0:1 offset1:3", move |d, m| {
        put(m, 20, d[0]);
        put(m, 28, d[1]);
    });
    stores("ds_write2_b64 v0, v[4:5], v[6:7] offset0:1 offset1:0", move |d, m| {
        [24, 28, 16, 20].into_iter().zip(d).for_each(|(at, value)| put(m, at, *value));
    });
}

#[test]
fn places_64_units_apart() {
    for (store, load, unit) in [
        (
            "ds_write2st64_b32 v0, v4, v5 offset0:0 offset1:1",
            "ds_read2st64_b32 v[8:9], v0 offset0:0 offset1:1",
            4,
        ),
        (
            "ds_write2st64_b64 v0, v[4:5], v[6:7] offset0:1 offset1:0",
            "ds_read2st64_b64 v[8:11], v0 offset0:1 offset1:0",
            8,
        ),
    ] {
        let (mut bench, _) = bench(3, 0, Arch::Gfx90a);
        bench.wave.set_exec(1);
        bench.v(0)[0] = 8;
        bench.step(store);
        let words: Vec<u32> = (4..8).map(|number| bench.v(number)[0]).collect();
        let (near, far) = (8, 8 + 64 * unit);
        let order = if unit == 4 { [near, far] } else { [far, near] };
        for (index, at) in order.into_iter().enumerate() {
            assert_eq!(word(&bench.lds, at), words[index * unit / 4], "{store}");
        }
        bench.wave = gfx9::wave::Wave::new(0, 1, PLACE);
        bench.step(load);
        let loaded: Vec<u32> = (8..8 + unit / 2).map(|number| bench.v(number)[0]).collect();
        assert_eq!(loaded, words[..unit / 2], "{load}");
    }
}

/// What an atomic operation leaves, by the middle of its name.
fn updated(name: &str, old: i128, data: i128, second: i128, width: u32) -> i128 {
    let signed = |x: i128| if x >> (width - 1) == 1 { x - (1 << width) } else { x };
    let result = match name {
        "swap" | "wrxchg" => data,
        "add" => old + data,
        "sub" => old - data,
        "rsub" => data - old,
        "smin" => signed(old).min(signed(data)),
        "smax" => signed(old).max(signed(data)),
        "umin" => old.min(data),
        "umax" => old.max(data),
        "and" => old & data,
        "or" => old | data,
        "xor" => old ^ data,
        "inc" => {
            if old >= data {
                0
            } else {
                old + 1
            }
        }
        "dec" => {
            if old == 0 || old > data {
                data
            } else {
                old - 1
            }
        }
        // GLOBAL has the new value first, DS the expected one.
        "cmpswap" => {
            if old == second {
                data
            } else {
                old
            }
        }
        "cmpst" => {
            if old == data {
                second
            } else {
                old
            }
        }
        other => panic!("{other}"),
    };
    result.rem_euclid(1 << width)
}

#[test]
fn atomic_operations_update_and_return() {
    for asm in INSTRUCTIONS.iter().filter(|asm| asm.contains("atomic_") && !asm.contains("f32")) {
        let name = asm.trim_start_matches("global_atomic_").split(' ').next().unwrap();
        let (name, bytes) = name.strip_suffix("_x2").map_or((name, 4), |name| (name, 8));
        atomic(asm, name, bytes, asm.contains("glc"));
    }
    let is_atomic = |asm: &&&str| {
        let kind = asm.split(['_', ' ']).nth(1).unwrap();
        ["add", "sub", "rsub", "inc", "dec", "min", "max", "and", "or", "xor", "cmpst", "wrxchg"]
            .contains(&kind)
    };
    for asm in INSTRUCTIONS.iter().filter(|asm| asm.starts_with("ds_")).filter(is_atomic) {
        let full = asm.split(' ').next().unwrap();
        let kind = asm.split('_').nth(1).unwrap();
        let sign = if full.ends_with("i32") { "s" } else { "u" };
        let name = if kind == "min" || kind == "max" { format!("{sign}{kind}") } else { kind.to_owned() };
        atomic(asm, &name, 4, full.contains("_rtn_"));
    }
}

fn atomic(asm: &str, name: &str, bytes: usize, returns: bool) {
    let number =
        |d: &[u8]| d[..bytes].iter().rev().fold(0i128, |number, byte| number << 8 | i128::from(*byte));
    let parts = |d: &[u32; 4]| {
        let all: Vec<u8> = d.iter().flat_map(|word| word.to_le_bytes()).collect();
        [number(&all), number(&all[bytes..])]
    };
    let store = |d: &[u32; 4], m: &mut [u8]| {
        let [data, second] = parts(d);
        let new = updated(name, number(&m[16..]), data, second, 8 * bytes as u32);
        m[16..16 + bytes].copy_from_slice(&new.to_le_bytes()[..bytes]);
    };
    check(
        asm,
        |m, _| if returns { (0..bytes / 4).map(|n| word(m, 16 + 4 * n)).collect() } else { vec![] },
        store,
    );
    // All lanes at one place, in their order; comparisons succeed now and then.
    let (mut bench, _) = bench(9, if asm.starts_with("ds_") { 0 } else { AT }, Arch::Gfx90a);
    bench.wave.set_exec(u64::MAX);
    let first = bench.v(0)[0];
    *bench.v(0) = [first; 64];
    (4..8).for_each(|number| bench.v(number).iter_mut().for_each(|lane| *lane %= 3));
    let at = FRONT;
    let cells = if asm.starts_with("ds_") { bench.lds.clone() } else { bench.memory.bytes(AT) };
    let mut place = cells[at..at + 16].to_vec();
    for lane in 0..64 {
        let data = std::array::from_fn(|number| bench.v(4 + number)[lane]);
        let [data, second] = parts(&data);
        let new = updated(name, number(&place), data, second, 8 * bytes as u32);
        place[..bytes].copy_from_slice(&new.to_le_bytes()[..bytes]);
    }
    bench.step(asm);
    let cells = if asm.starts_with("ds_") { bench.lds.clone() } else { bench.memory.bytes(AT) };
    assert_eq!(cells[at..at + bytes], place[..bytes], "{asm}");
}

#[test]
fn atomic_sums_of_floats() {
    let (mut bench, bytes) = bench(5, AT, Arch::Gfx90a);
    bench.wave.set_exec(1);
    bench.v(4)[0] = 1.5f32.to_bits();
    bench.step("global_atomic_add_f32 v[0:1], v4, off");
    let sum = f32::from_bits(word(&bytes, FRONT)) + 1.5;
    assert_eq!(word(&bench.memory.bytes(AT), FRONT), sum.to_bits());
}

#[test]
fn lanes_exchange_values() {
    for seed in 1..50 {
        let (mut bench, _) = bench(seed, 0, Arch::Gfx90a);
        let (exec, addresses, values) = (bench.wave.exec(), *bench.v(0), *bench.v(4));
        let before = *bench.v(8);
        let active = |lane: usize| exec >> lane & 1 == 1;
        bench.step("ds_bpermute_b32 v8, v0, v4 offset:4");
        for lane in 0..64 {
            let from = (addresses[lane] as usize + 4) / 4 % 64;
            let wanted = if active(from) { values[from] } else { 0 };
            assert_eq!(bench.v(8)[lane], if active(lane) { wanted } else { before[lane] });
        }
        bench.wave = gfx9::wave::Wave::new(0, exec, PLACE);
        *bench.v(8) = before;
        bench.step("ds_permute_b32 v8, v0, v4");
        for lane in 0..64 {
            let from = (0..64).rev().find(|from| active(*from) && addresses[*from] as usize / 4 % 64 == lane);
            let wanted = from.map_or(0, |from| values[from]);
            assert_eq!(bench.v(8)[lane], if active(lane) { wanted } else { before[lane] });
        }
    }
}

#[test]
fn scalar_loads() {
    let (mut bench, bytes) = bench(1, AT, Arch::Gfx90a);
    for (asm, offset, count) in [
        ("s_load_dword s8, s[0:1], 0x4", 4, 1),
        ("s_load_dword s8, s[0:1], s2", 24, 1),
        ("s_load_dwordx2 s[8:9], s[0:1], 0x0", 0, 2),
        ("s_load_dwordx4 s[8:11], s[0:1], 0x0", 0, 4),
        ("s_load_dwordx8 s[8:15], s[0:1], 0x0", 0, 8),
        ("s_load_dwordx16 s[8:23], s[0:1], 0x0", 0, 16),
    ] {
        // The lowest two bits of an address are not looked at.
        (*bench.s(0), *bench.s(1), *bench.s(2)) = (AT as u32 + 3, (AT >> 32) as u32, 24);
        bench.wave = gfx9::wave::Wave::new(0, 0, PLACE);
        bench.step(asm);
        let wanted: Vec<_> = (0..count).map(|n| word(&bytes, offset + 4 * n)).collect();
        let got: Vec<_> = (0..count).map(|n| *bench.s(8 + n)).collect();
        assert_eq!(got, wanted, "{asm}");
    }
    let mut clock = |asm| {
        bench.wave = gfx9::wave::Wave::new(0, 0, PLACE);
        bench.step(asm);
        u64::from(*bench.s(8)) | u64::from(*bench.s(9)) << 32
    };
    assert_eq!(clock("s_memtime s[8:9]"), 0, "the clock of a bench stands still");
    let (before, first, after) = {
        let before = std::time::Instant::now();
        (before, clock("s_memrealtime s[8:9]"), std::time::Instant::now())
    };
    while after.elapsed().as_micros() < 10 {}
    let ticks = u128::from(clock("s_memrealtime s[8:9]") - first);
    assert!(ticks >= 1000 && ticks <= before.elapsed().as_nanos() / 10 + 1, "100 MHz, not {ticks}");
}

#[test]
fn caches_are_not_modelled() {
    for asm in [
        "s_dcache_inv",
        "s_dcache_wb",
        "s_dcache_inv_vol",
        "s_dcache_wb_vol",
        "buffer_wbl2",
        "buffer_inv sc1",
        "buffer_wbinvl1",
        "buffer_wbinvl1_vol",
        "ds_nop",
    ] {
        let (mut bench, bytes) = bench(1, AT, arch(asm));
        let before = bench.state();
        bench.step(asm);
        assert!(before.vector == bench.state().vector && bench.memory.bytes(AT) == bytes, "{asm}");
    }
}

/// Where a byte of a lane's scratch is: words of all lanes side by side.
fn scratch_at(offset: usize, lane: usize) -> usize {
    offset / 4 * 256 + 4 * lane + offset % 4
}

#[test]
fn stacks_are_swizzled_by_lane() {
    let (mut bench, _) = bench(1, 0, Arch::Gfx90a);
    let base = SCRATCH + 0x1000;
    (*bench.s(0), *bench.s(1), *bench.s(2), *bench.s(3)) =
        (base as u32, (base >> 32) as u32 | 1 << 31, u32::MAX, 1 << 23 | 3 << 21 | 1 << 19);
    *bench.s(4) = 0x400;
    bench.wave.set_exec(u64::MAX);
    *bench.v(0) = std::array::from_fn(|lane| 4 * (lane as u32 % 3));
    let data = *bench.v(4);
    bench.step("buffer_store_dword v4, v0, s[0:3], s4 offen offset:8");
    let cells: Vec<u8> = bench.scratch.iter().map(std::cell::Cell::get).collect();
    for lane in 0..64 {
        assert_eq!(word(&cells, 0x1400 + scratch_at(8 + 4 * (lane % 3), lane)), data[lane]);
    }
    bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
    bench.step("buffer_load_dword v8, v0, s[0:3], s4 offen offset:8");
    assert_eq!(*bench.v(8), data);
    bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
    bench.step("buffer_load_ubyte v8, off, s[0:3], s4 offset:5");
    let wanted: Vec<u32> = (0..64).map(|lane| u32::from(cells[0x1400 + scratch_at(5, lane)])).collect();
    assert_eq!(bench.v(8)[..], wanted);
    // Any other buffer.
    *bench.s(3) = 0;
    bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
    let load = words("buffer_load_dword v8, v0, s[0:3], s4 offen offset:8");
    assert!(matches!(bench.run(&load, 1), Err(Fault::Unsupported(_))));
}

#[test]
fn scratch_has_instructions_of_its_own() {
    let (mut bench, _) = bench(1, 0, Arch::Gfx942);
    bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
    bench.wave.set_flat_scratch(SCRATCH + 0x2000);
    *bench.v(0) = std::array::from_fn(|lane| 4 * (lane as u32 % 5));
    *bench.s(0) = 8;
    let (low, high) = (*bench.v(4), *bench.v(5));
    bench.step("scratch_store_dwordx2 v0, v[4:5], off offset:8");
    let cells: Vec<u8> = bench.scratch.iter().map(std::cell::Cell::get).collect();
    for lane in 0..64 {
        let at = 8 + 4 * (lane % 5);
        assert_eq!(word(&cells, 0x2000 + scratch_at(at, lane)), low[lane]);
        assert_eq!(word(&cells, 0x2000 + scratch_at(at + 4, lane)), high[lane]);
    }
    for asm in ["scratch_load_dwordx2 v[8:9], v0, off offset:8", "scratch_load_dword v8, off, s0 offset:4"] {
        bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
        bench.wave.set_flat_scratch(SCRATCH + 0x2000);
        bench.step(asm);
        let wanted = |lane: usize| {
            if asm.contains("x2") { low[lane] } else { word(&cells, 0x2000 + scratch_at(12, lane)) }
        };
        assert_eq!(bench.v(8)[..], (0..64).map(wanted).collect::<Vec<_>>(), "{asm}");
    }
}

#[test]
fn flat_addresses_reach_lds_and_scratch() {
    let (mut bench, _) = bench(1, SHARED_APERTURE, Arch::Gfx90a);
    bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
    let wanted: Vec<u32> = (0..64).map(|lane| word(&bench.lds, FRONT + STRIDE * lane + 4)).collect();
    bench.step("flat_load_dword v8, v[0:1] offset:4");
    assert_eq!(bench.v(8)[..], wanted);
    let (mut bench, _) = self::bench(1, PRIVATE_APERTURE, Arch::Gfx90a);
    bench.wave = gfx9::wave::Wave::new(0, 1, PLACE);
    bench.wave.set_flat_scratch(SCRATCH);
    let value = bench.v(4)[0];
    bench.step("flat_store_dword v[0:1], v4");
    let cells: Vec<u8> = bench.scratch.iter().map(std::cell::Cell::get).collect();
    assert_eq!(word(&cells, scratch_at(FRONT, 0)), value);
}

#[test]
fn addresses_are_checked() {
    let read_only = 0x6_0000_0000u64;
    let run = |asm: &str, address: u64, exec: u64| {
        let (mut bench, _) = bench(1, AT, Arch::Gfx90a);
        bench.memory.add(read_only, &[1; 64], false);
        bench.wave = gfx9::wave::Wave::new(0, exec, PLACE);
        *bench.v(0) = [address as u32; 64];
        *bench.v(1) = [(address >> 32) as u32; 64];
        let code = [words(asm), words("s_endpgm")].concat();
        (bench.run(&code, 2), bench.memory.bytes(read_only))
    };
    let load = "global_load_dword v8, v[0:1], off";
    let store = "global_store_dword v[0:1], v4, off";
    let add = "global_atomic_add v[0:1], v4, off";
    let fault = |address: u64, reason: Reason, access: Access| Err(Fault::Memory { address, reason, access });
    assert_eq!(run(load, read_only, 1).0, Ok(Stop::End));
    assert_eq!(run(load, 0, 1).0, fault(0, Reason::NotPresent, Access::Read));
    assert_eq!(run(store, u64::MAX - 1, 1).0, fault(u64::MAX - 1, Reason::NotPresent, Access::Write));
    assert_eq!(run(load, read_only + 61, 1).0, fault(read_only + 61, Reason::NotPresent, Access::Read));
    for asm in [store, add] {
        let (ended, bytes) = run(asm, read_only, 1);
        assert_eq!(ended, fault(read_only, Reason::ReadOnly, Access::Write), "{asm}");
        assert_eq!(bytes, [1; 64], "{asm}");
    }
    // Lanes outside EXEC access nothing.
    assert_eq!(run(store, 0, 0).0, Ok(Stop::End));
}

#[test]
fn lds_ends_where_it_ends() {
    let (mut bench, _) = bench(1, 0, Arch::Gfx90a);
    bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
    *bench.v(0) = [4096 - 12; 64];
    let before = bench.lds.clone();
    bench.step("ds_read_b128 v[8:11], v0");
    assert_eq!(bench.v(11)[0], 0);
    assert_eq!(bench.v(10)[0], word(&before, 4092));
    bench.wave = gfx9::wave::Wave::new(0, u64::MAX, PLACE);
    *bench.v(0) = [u32::MAX; 64];
    bench.step("ds_write_b32 v0, v4 offset:12");
    assert!(bench.lds == before);
}
