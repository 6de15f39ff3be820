//! Mutants: every line of the fence in the sample is dropped, moved, doubled or weakened. Each mutant is refused, or there is
//! a name for why it is harmless.

use std::collections::BTreeMap;

use pappus_fence::check;

use crate::accepted::EVERYTHING;

/// What a line is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// A line of a sequence of the fence, word by word.
    Fence,
    /// An access to global or computed local memory: its address is the fence's, its data the kernel's.
    Access,
    /// Puts the low word or the offset in place: any value is as good.
    Low,
    /// What reaches parameters and local memory by name.
    Named,
    /// Writes a register at the entry.
    First,
    /// The kernel's own business, brackets of the text, declarations.
    Own,
}

/// Why a mutant changes nothing that the fence holds.
const HARMLESS: [&str; 10] = [
    "the hardware bounds shared memory and constants",
    "the low word is any",
    "a fence without an access",
    "the data are the kernel's",
    "fuel without a branch",
    "the same line twice writes the same",
    "the order of lines that know nothing of each other",
    "a store that comes later again",
    "an offset nearer than the farthest",
    "the register or result is written later in its block",
];

fn part(lines: &[&str], at: usize) -> Part {
    let line = lines[at].trim();
    let is_entry_write = line.starts_with("mov.") && line.ends_with(", 0;") && !line.contains("pappus");
    if line.starts_with("cvt.u32.u64 %pappus_lo")
        || line == "mov.b32 %pappus_lo, 4096;"
        || line.starts_with("cvt.u64.u32 %pappus_at")
    {
        Part::Low
    } else if line.contains("[%pappus_at") && line != "ld.volatile.global.u32 %pappus_lo, [%pappus_at];" {
        Part::Access
    } else if line.contains("pappus")
        || (line.starts_with("st.local.b64 [depot") && line.ends_with(", 0;"))
        || line == "fence.proxy.async.shared::cta;"
        || (line == "bar.sync 0;" && lines[at - 1].contains("proxy"))
    {
        Part::Fence
    } else if line.contains(".param.") || line.contains(".local.") {
        Part::Named
    } else if is_entry_write {
        Part::First
    } else {
        Part::Own
    }
}

/// The words of a line that satisfy a condition: begin and end.
fn words(
    line: &str,
    is_word: impl Fn(char) -> bool,
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut begin = None;
    for (at, letter) in line.char_indices().chain([(line.len(), ' ')]) {
        match (begin, is_word(letter)) {
            (None, true) => begin = Some(at),
            (Some(from), false) => {
                found.extend(is_wanted(&line[from..at]).then_some((from, at)));
                begin = None;
            }
            _ => {}
        }
    }
    found
}

/// Texts in which one line has become others, with the name of the mutation.
fn changed(line: &str) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    all.push(("dropped", String::new()));
    all.push(("doubled", format!("{line}\n{line}")));
    all.push(("label before", format!("$mutant:\n{line}")));
    all.push(("statement before", format!("mov.b32 %r1, 1;\n{line}")));
    let plain = line.trim_start();
    if plain.ends_with(';') && !plain.starts_with(['@', '.']) {
        all.push(("predicated", format!("@%p1 {plain}")));
        all.push(("predicated", format!("@!%p1 {plain}")));
    }
    if let Some(rest) = plain.strip_prefix('@') {
        all.push(("predicate", format!("@!{rest}").replace("!!", "")));
        all.push(("predicate", rest.split_once(' ').map_or("", |(_, rest)| rest).to_owned()));
        all.push(("predicate", format!("@%p1 {}", rest.split_once(' ').map_or("", |(_, rest)| rest))));
    }
    for (from, to) in words(
        line,
        |letter| letter == '%' || letter == '_' || letter.is_alphanumeric(),
        |word| word.starts_with('%'),
    ) {
        let others = [
            "%pappus_hi",
            "%pappus_lo",
            "%pappus_fuel",
            "%pappus_step",
            "%pappus_end",
            "%pappus_at",
            "%pappus_base",
            "%pappus_out",
            "%r1",
            "%rd1",
            "%p1",
        ];
        let others = others.into_iter().filter(|other| *other != &line[from..to]);
        all.extend(others.map(|other| ("register", format!("{}{other}{}", &line[..from], &line[to..]))));
    }
    let is_number = |word: &str| word.starts_with(|letter: char| letter.is_ascii_digit());
    for (from, to) in words(
        line,
        |letter| letter == '%' || letter == '_' || letter == '.' || letter == '$' || letter.is_alphanumeric(),
        is_number,
    ) {
        let value: u64 = line[from..to].parse().unwrap_or(0);
        let others = [value + 1, value.wrapping_sub(1), 0, 4, 24, 1 << 31, 1 << 32, u64::MAX];
        let others = others.into_iter().filter(|other| *other != value).map(|other| other.to_string());
        let others = others.chain(["-1", "0x10", "007", "0f00000000", "%r1", "1+1"].map(str::to_owned));
        all.extend(others.map(|other| ("immediate", format!("{}{other}{}", &line[..from], &line[to..]))));
    }
    for space in [".global", ".shared", ".local", ".param", ".const", ".shared::cta"] {
        let others = [".global", ".shared", ".local", ".param", ".const", ".shared::cluster", ""]
            .into_iter()
            .filter(|other| *other != space);
        let is_whole = |at: &usize| line[at + space.len()..].starts_with(['.', ';', ' ']);
        if let Some(at) = line.find(space).filter(is_whole).filter(|_| !plain.starts_with(space)) {
            let rest = &line[at + space.len()..];
            all.extend(others.map(|other| ("state space", format!("{}{other}{rest}", &line[..at]))));
        }
    }
    for (from, to) in [
        ("mov.b64", "add.s64"),
        ("mov.b32", "ld.b32"),
        ("min.u64", "max.u64"),
        ("min.u64", "min.s64"),
        ("min.u64", "min.u32"),
        ("add.s64", "sub.s64"),
        ("sub.u32", "add.u32"),
        ("setp.eq", "setp.ne"),
        ("setp.ne", "setp.eq"),
        ("setp.ge", "setp.gt"),
        ("exit", "ret"),
        ("exit", "trap"),
        ("bra", "call"),
        ("volatile.", ""),
        ("st.", "ld."),
        ("ld.", "st."),
        ("bar.sync", "bar.arrive"),
        (".proxy", ""),
        ("mad.lo", "mul.lo"),
        ("shl", "shr"),
        ("%aggr_smem_size", "%total_smem_size"),
        ("%tid.x", "%tid.y"),
        ("%ntid.x", "%ntid.y"),
        (".v4", ""),
        (".v4", ".v2"),
        (".v2", ".v4"),
        (".b64", ".b128"),
        (".u32", ".b128"),
        (".b32", ".b64"),
        ("atom", "atom.async"),
        ("call.uni", "call"),
        ("ld.global", "ld.global.lu"),
        ("cp.async.cg", "cp.async.bulk"),
        ("prefetch", "discard"),
        ("prefetch", "applypriority"),
    ] {
        if let Some((before, behind)) = line.split_once(from) {
            all.push(("opcode", format!("{before}{to}{behind}")));
        }
    }
    if let Some((before, behind)) = line.split_once(", ") {
        all.push(("operands", format!("{before};")));
        all.push(("operands", format!("{before}, {before}, {behind}")));
        if let Some((opcode, first)) = before.rsplit_once(' ') {
            all.push(("operands", format!("{opcode} {}, {first};", behind.trim_end_matches(';'))));
        }
    }
    all
}

/// Why a mutant of a line may be accepted, if it may.
fn harmless(kind: &str, part: Part, line: &str, mutant: &str) -> Option<&'static str> {
    let is_branch = line.contains("bra $L");
    Some(match (kind, part) {
        (_, Part::Low) if !is_guarded(mutant) => "the low word is any",
        ("dropped", Part::Access) => "a fence without an access",
        ("predicated" | "predicate", Part::Access) => "the data are the kernel's",
        ("dropped" | "predicated" | "predicate" | "opcode", _) if is_branch => "fuel without a branch",
        ("doubled", _) if line == "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};" => {
            "the same line twice writes the same"
        }
        ("doubled", _) if line == "activemask.b32 %pappus_lo;" => "the same line twice writes the same",
        ("doubled" | "statement before" | "label before", Part::Named | Part::First) => {
            "the same line twice writes the same"
        }
        // Before a sequence, not in it.
        ("label before" | "statement before", Part::Fence) if begins(line) => {
            "the order of lines that know nothing of each other"
        }
        ("register" | "immediate" | "operands" | "opcode" | "state space", Part::Access)
            if address(line) == address(mutant) && !has_more_reach(line, mutant) =>
        {
            "the data are the kernel's"
        }
        ("state space", Part::Access) if mutant.contains(".shared.") || mutant.contains(".const.") => {
            "the hardware bounds shared memory and constants"
        }
        ("register", Part::Access)
            if line.starts_with("cp.async") && mutant.ends_with("[%pappus_at+64], 16;") =>
        {
            "the hardware bounds shared memory and constants"
        }
        ("immediate", Part::Fence) if line == "min.u64 %pappus_at, %pappus_at, 16;" && is_lower(mutant) => {
            "an offset nearer than the farthest"
        }
        ("doubled" | "moved down", _)
            if line.starts_with("st.local.b64 [depot") || line == "mov.b64 %pappus_base, depot;" =>
        {
            "the same line twice writes the same"
        }
        ("moved down", Part::Fence) if line == ".param .b32 pappus_argument;" => {
            "the order of lines that know nothing of each other"
        }
        ("opcode", Part::Fence) if line.starts_with("call") && mutant.starts_with("call") => {
            "the data are the kernel's"
        }
        ("dropped", Part::Named)
            if line.starts_with("st.param.b32 [half_result]") || line.ends_with("[total_result+4], %r2;") =>
        {
            "the register or result is written later in its block"
        }
        ("dropped" | "predicated", Part::First)
            if ["mov.b32 %r1, 0;", "mov.b64 %rd1, 0;"].contains(&line) =>
        {
            "the register or result is written later in its block"
        }
        ("immediate", Part::Access) if is_near(mutant) => "an offset nearer than the farthest",
        _ => return None,
    })
}

/// True if the bound of an offset is a plain number below the right one.
fn is_lower(mutant: &str) -> bool {
    let bound = mutant.rsplit_once(", ").and_then(|(_, bound)| bound.strip_suffix(';')?.parse::<u64>().ok());
    bound.is_some_and(|bound| bound < 16)
}

/// True if a mutation of a line concerns the fence. What the kernel's own operands may be, the attacks by name say.
fn concerns(part: Part, kind: &str, line: &str) -> bool {
    match part {
        Part::Named => line.contains("st.param") && ["dropped", "predicated", "predicate"].contains(&kind),
        Part::First => ["dropped", "predicated"].contains(&kind),
        Part::Own => {
            line.contains("bra $L") && ["predicate", "label before", "statement before"].contains(&kind)
        }
        _ => true,
    }
}

/// True if a line is the first of a sequence that may stand anywhere.
fn begins(line: &str) -> bool {
    [
        "mov.b64 %pappus_at, {%pappus_lo, %pappus_hi};",
        "mov.b64 %pappus_base, depot;",
        "sub.u32 %pappus_fuel, %pappus_fuel, 1;",
        "activemask.b32 %pappus_lo;",
    ]
    .contains(&line)
}

/// What stands in the brackets with `%pappus_at`.
fn address(line: &str) -> Option<&str> {
    let begin = line.find("[%pappus_at")?;
    line[begin..].find(']').map(|end| &line[begin..=begin + end])
}

/// True if a line names what only the fence's own lines may name.
fn is_guarded(line: &str) -> bool {
    ["%pappus_hi", "%pappus_fuel", "%pappus_out", "%pappus_step", "%pappus_end"]
        .iter()
        .any(|name| line.contains(name))
}

/// True if an access reaches more bytes or another space than before, or is of another kind.
fn has_more_reach(line: &str, mutant: &str) -> bool {
    let opcode = |line: &str| {
        let plain = line.trim_start();
        let plain =
            if plain.starts_with('@') { plain.split_once(' ').map_or("", |(_, rest)| rest) } else { plain };
        plain.split(' ').next().unwrap_or_default().to_owned()
    };
    let is_local = opcode(line).contains(".local");
    is_guarded(mutant)
        || (is_local && opcode(line) != opcode(mutant))
        || !opcode(mutant).contains(".global") && !is_local
        || ["async.bulk", "discard", "applypriority", ".async.add", ".lu"]
            .iter()
            .any(|word| opcode(mutant).contains(word))
}

/// True if the offset of an access to global memory is one that the guard is for.
fn is_near(mutant: &str) -> bool {
    let offset = address(mutant).and_then(|address| address.strip_prefix("[%pappus_at+")?.strip_suffix(']'));
    let is_plain = |offset: &str| {
        offset
            .parse::<i64>()
            .is_ok_and(|value| value.abs() < 1 << 31 && (value.to_string() == offset || offset == "-0"))
    };
    offset.is_some_and(is_plain) && mutant.contains(".global")
}

#[test]
fn no_mutant_of_the_fence_is_accepted() {
    let lines: Vec<&str> = EVERYTHING.lines().collect();
    let mut counts = BTreeMap::<(&str, &str), usize>::new();
    let mut wrong = Vec::new();
    for at in 0..lines.len() {
        let of = part(&lines, at);
        let is_looped = at > 0 && lines[at - 1].starts_with("$pappus_on_");
        if of == Part::Own && !is_looped {
            continue;
        }
        let mut mutants = changed(lines[at]);
        if let Some(next) = lines.get(at + 1) {
            mutants.push(("moved down", format!("{next}\n{}", lines[at])));
        }
        for (kind, mutant) in mutants {
            if !concerns(of, kind, lines[at]) {
                continue;
            }
            let behind = if kind == "moved down" { at + 2 } else { at + 1 };
            let text = [&lines[..at], &[mutant.as_str()], &lines[behind..]].concat().join("\n") + "\n";
            if text == EVERYTHING {
                continue;
            }
            let verdict = match (check(&text), harmless(kind, of, lines[at].trim(), mutant.trim())) {
                (Err(_), _) => "refused",
                (Ok(_), Some(why)) => why,
                (Ok(_), None) => {
                    wrong.push(format!("{kind} at {}, {of:?}: {} -> {mutant}", at + 1, lines[at]));
                    "wrong"
                }
            };
            *counts.entry((kind, verdict)).or_default() += 1;
        }
    }
    for ((kind, verdict), count) in &counts {
        println!("{count:5} {kind}: {verdict}");
    }
    assert!(wrong.is_empty(), "{} accepted:\n{}", wrong.len(), wrong.join("\n"));
    assert!(counts.keys().all(|(_, verdict)| *verdict == "refused" || HARMLESS.contains(verdict)));
}
