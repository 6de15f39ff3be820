//! Declarations as text: what bindgen writes, and what `sys.rs` does. Only as much of Rust is understood as both use;
//! what is not understood fails the test.

use std::collections::HashMap;

/// What stands in place of the mark of structs that have another alignment than their members, before the number.
const ALIGNED: &str = "@aligned";

/// The declarations of one file.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    /// Types of the arguments and of the result of each function.
    pub(crate) functions: HashMap<String, (Vec<String>, String)>,
    /// The value of each constant that is a number.
    pub(crate) constants: HashMap<String, i128>,
    /// Names and types of each struct's members; of a union's as well.
    pub(crate) records: HashMap<String, Record>,
    aliases: HashMap<String, String>,
}

/// A struct or a union.
#[derive(Debug)]
pub(crate) struct Record {
    is_union: bool,
    /// Where it is more than its members ask for.
    align: Option<usize>,
    members: Vec<(String, String)>,
}

/// Where something lies, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) bytes: usize,
    pub(crate) align: usize,
}

impl Declarations {
    /// Reads a file of bindgen's, or `sys.rs`.
    pub(crate) fn read(text: &str) -> Self {
        let kept = |line: &&str| !line.trim_start().starts_with("#[") && !line.trim_start().starts_with("//");
        let mut text = text.to_owned();
        for align in [4, 8] {
            for mark in [format!("#[repr(align({align}))]"), format!("#[repr(C, align({align}))]")] {
                text = text.replace(&mark, &format!("{ALIGNED}{align}"));
            }
        }
        let text: String = text.lines().filter(kept).map(|line| format!("{line}\n")).collect();
        let mut found = Self::default();
        for piece in text.split("pub fn ").skip(1) {
            found.function(piece);
        }
        if let Some((_, table)) = text.split_once("\nfunctions! {") {
            let table = table.split("\n}").next().unwrap();
            table
                .split(';')
                .filter(|one| !one.trim().is_empty())
                .for_each(|one| found.function(&format!("{one};")));
        }
        if let Some((_, handles)) = text.split_once("\nhandles!(") {
            for handle in handles.split(");").next().unwrap().split(',') {
                if let Some((opaque, name)) = handle.split_once(" as ") {
                    found.aliases.insert(name.trim().into(), format!("*mut {}", opaque.trim()));
                }
            }
        }
        for piece in text.split("pub type ").skip(1) {
            let (name, aliased) = piece.split(';').next().unwrap().split_once('=').unwrap();
            found.aliases.insert(name.trim().into(), one_line(aliased));
        }
        for piece in text.split("pub const ").skip(1) {
            let Some((name, rest)) = piece.split_once(':') else { continue };
            let value = rest.split(';').next().and_then(|rest| rest.rsplit_once('='));
            if let Some(value) = value.and_then(|(_, value)| number(value)) {
                found.constants.insert(name.trim().into(), value);
            }
        }
        for (word, is_union) in [("pub struct ", false), ("pub union ", true)] {
            let pieces: Vec<&str> = text.split(word).collect();
            for pair in pieces.windows(2) {
                let (before, piece) = (pair[0], pair[1]);
                let Some((name, body)) = piece.split_once(" {\n") else { continue };
                let body = if body.starts_with('}') { "" } else { body.split("\n}").next().unwrap() };
                // Macros, whose structs are read from their arguments.
                if name.contains('$') || body.contains('$') {
                    continue;
                }
                let align = before.trim_end().rsplit_once(ALIGNED).and_then(|(_, align)| align.parse().ok());
                let members = body.split("pub ").skip(1).map(|member| {
                    let (name, kind) = member.trim().trim_end_matches(',').split_once(':').unwrap();
                    (name.trim().to_owned(), one_line(kind))
                });
                found
                    .records
                    .insert(name.trim().into(), Record { is_union, align, members: members.collect() });
            }
        }
        found
    }

    /// `name(argument: Type, …) -> Type;`.
    fn function(&mut self, text: &str) {
        let declared = text.split(';').next().unwrap();
        let Some((name, rest)) = declared.split_once('(') else { return };
        let Some((arguments, result)) = rest.rsplit_once(')') else { return };
        let arguments = arguments.split(',').filter(|one| !one.trim().is_empty());
        let types = arguments.filter_map(|one| Some(one_line(one.split_once(':')?.1))).collect();
        let result = result.trim().strip_prefix("->").unwrap_or("()");
        self.functions.insert(name.trim().into(), (types, one_line(result)));
    }

    /// A type in its last form: aliases resolved, and whether what a pointer points to is written through left out, which
    /// no calling convention knows.
    pub(crate) fn resolved(&self, kind: &str) -> String {
        let kind = kind.trim();
        if let Some(target) = kind.strip_prefix("*mut ").or(kind.strip_prefix("*const ")) {
            return format!("*{}", self.resolved(target));
        }
        let name = kind.rsplit("::").next().unwrap();
        match self.aliases.get(name) {
            Some(aliased) if aliased != name => self.resolved(aliased),
            _ => name.to_owned(),
        }
    }

    /// The layout of a type by the rules of C.
    pub(crate) fn layout(&self, kind: &str) -> Layout {
        let plain = |bytes| Layout { bytes, align: bytes };
        let kind = kind.trim();
        if let Some(bits) = kind.strip_prefix("__BindgenBitfieldUnit<") {
            return self.layout(bits.trim_end_matches('>'));
        }
        if let Some((element, count)) =
            kind.strip_prefix('[').and_then(|array| array.trim_end_matches(']').rsplit_once(';'))
        {
            let element = self.layout(element);
            let count = number(count).unwrap_or_else(|| panic!("no length: {kind}"));
            return Layout { bytes: element.bytes * count as usize, ..element };
        }
        match &*self.resolved(kind) {
            "c_char" | "c_uchar" | "u8" | "i8" | "bool" => plain(1),
            "c_ushort" | "c_short" | "u16" | "i16" => plain(2),
            "c_int" | "c_uint" | "u32" | "i32" | "f32" | "c_float" => plain(4),
            "c_ulonglong" | "c_longlong" | "c_ulong" | "c_long" | "usize" | "u64" | "i64" => plain(8),
            pointer if pointer.starts_with('*') => plain(8),
            record => self.places(record).1,
        }
    }

    /// Where each member of a struct lies, the members of its members among them, and its own layout. Members of what has
    /// no name are its own.
    pub(crate) fn places(&self, record: &str) -> (HashMap<String, (usize, usize)>, Layout) {
        let Record { is_union, align, members } =
            self.records.get(record).unwrap_or_else(|| panic!("nothing is known of {record}"));
        let (mut end, mut align, mut places) = (0usize, align.unwrap_or(1), HashMap::new());
        for (name, kind) in members {
            let layout = self.layout(kind);
            let offset = if *is_union { 0 } else { end.next_multiple_of(layout.align) };
            end = end.max(offset + layout.bytes);
            align = align.max(layout.align);
            places.insert(name.clone(), (offset, layout.bytes));
            if self.records.contains_key(&self.resolved(kind)) {
                for (inner, (at, bytes)) in self.places(&self.resolved(kind)).0 {
                    let inner =
                        if name.starts_with("__bindgen_anon") { inner } else { format!("{name}.{inner}") };
                    places.insert(inner, (offset + at, bytes));
                }
            }
        }
        (places, Layout { bytes: end.next_multiple_of(align), align })
    }

    /// A constant by the name that the C headers have; bindgen puts that of its enum in front.
    pub(crate) fn constant(&self, name: &str) -> Option<i128> {
        let behind = format!("_{name}");
        let found = self.constants.iter().find(|(known, _)| *known == name || known.ends_with(&behind));
        found.map(|(_, value)| *value)
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `7`, `0x8000_0000`, `1 << 3`, `1160 - 256`, `16usize`.
fn number(text: &str) -> Option<i128> {
    let text = text.trim().trim_end_matches("usize");
    if let Some((one, by)) = text.split_once("<<") {
        return Some(number(one)? << number(by)?);
    }
    if let Some((one, other)) = text.rsplit_once(" - ") {
        return Some(number(one)? - number(other)?);
    }
    let digits = text.trim().replace('_', "");
    match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}
