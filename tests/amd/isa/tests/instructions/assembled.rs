//! Words of instructions: `assembled.txt`, and how it is made.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use gfx9::decode::Arch;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/instructions/assembled.txt");

/// Instructions that only the younger architecture has.
const ONLY_GFX942: [&str; 5] =
    ["v_mov_b64", "v_lshl_add_u64", "scratch_", "buffer_inv sc1", "s_getreg_b32 s8, hwreg(HW_REG_XCC_ID)"];

static WORDS: LazyLock<BTreeMap<String, Vec<u32>>> = LazyLock::new(|| {
    if std::env::var_os("UPDATE_ASSEMBLED").is_some() {
        std::fs::write(FILE, assemble_all()).unwrap();
    }
    let text = std::fs::read_to_string(FILE).unwrap();
    let line = |line: &str| {
        let (asm, words) = line.split_once(" | ").unwrap();
        let words = words.split(' ').map(|word| u32::from_str_radix(word, 16).unwrap());
        (asm.to_owned(), words.collect())
    };
    text.lines().map(line).collect()
});

/// Of all tests: an instruction, and who uses it.
pub(crate) fn all() -> Vec<(String, &'static str)> {
    let vector = crate::vector::cases().into_iter().map(|case| (case.asm, "vector"));
    let scalar = crate::scalar::cases().into_iter().map(|case| (case.asm, "scalar"));
    let memory = crate::memory::INSTRUCTIONS.iter().map(|asm| ((*asm).to_owned(), "memory"));
    let control = crate::control::INSTRUCTIONS.iter().map(|asm| ((*asm).to_owned(), "control"));
    let bench = crate::bench::INSTRUCTIONS.iter().map(|asm| ((*asm).to_owned(), "bench"));
    vector.chain(scalar).chain(memory).chain(control).chain(bench).collect()
}

/// The architecture that an instruction is tested on.
pub(crate) fn arch(asm: &str) -> Arch {
    if ONLY_GFX942.iter().any(|only| asm.starts_with(only)) { Arch::Gfx942 } else { Arch::Gfx90a }
}

/// The words of an instruction.
pub(crate) fn words(asm: &str) -> Vec<u32> {
    WORDS.get(asm).unwrap_or_else(|| panic!("assembled.txt lacks \"{asm}\": UPDATE_ASSEMBLED=1")).clone()
}

/// The words of a program.
pub(crate) fn program(lines: &[&str]) -> Vec<u32> {
    lines.iter().flat_map(|line| words(line)).collect()
}

fn assembler() -> Command {
    Command::new("llvm-mc-19")
}

/// What LLVM makes of all instructions, as the file has it.
fn assemble_all() -> String {
    let mut lines = BTreeMap::new();
    for (mcpu, wanted) in [("gfx90a", Arch::Gfx90a), ("gfx942", Arch::Gfx942)] {
        let all: Vec<_> = all().into_iter().map(|(asm, _)| asm).filter(|asm| arch(asm) == wanted).collect();
        for (asm, words) in all.iter().zip(assemble(mcpu, &all)) {
            let words: Vec<_> = words.iter().map(|word| format!("{word:08x}")).collect();
            lines.insert(asm.clone(), words.join(" "));
        }
    }
    lines.iter().map(|(asm, words)| format!("{asm} | {words}\n")).collect()
}

fn assemble(mcpu: &str, lines: &[String]) -> Vec<Vec<u32>> {
    let arguments = ["-triple=amdgcn-amd-amdhsa", &format!("-mcpu={mcpu}"), "--show-encoding"];
    let piped = || Stdio::piped();
    let mut child =
        assembler().args(arguments).stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    // A marker before each: one line may become several words of text.
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let encodings = text.lines().filter_map(|line| line.split_once("encoding: [")).map(|(_, bytes)| {
        let bytes = bytes.trim_end_matches(']').split(',');
        let bytes: Vec<u8> =
            bytes.map(|byte| u8::from_str_radix(byte.trim_start_matches("0x"), 16).unwrap()).collect();
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    });
    let encodings: Vec<_> = encodings.collect();
    assert_eq!(encodings.len(), lines.len(), "an instruction that is none");
    encodings
}

#[test]
fn the_file_is_what_the_assembler_makes() {
    LazyLock::force(&WORDS);
    if assembler().arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: llvm-mc-19 (Debian's llvm-19) is not installed");
        return;
    }
    assert!(
        std::fs::read_to_string(FILE).unwrap() == assemble_all(),
        "UPDATE_ASSEMBLED=1 makes assembled.txt anew"
    );
}
