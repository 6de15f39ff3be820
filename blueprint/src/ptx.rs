//! What PTX declares of its kernels: the only text among the forms of a module, and the one that tells each parameter.
//! Only declarations are read; whether the code behind them is right is for the driver's compiler.

/// A kernel that PTX declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its symbol.
    pub name: &'a str,
    /// Its parameters, in order.
    pub params: Vec<Param>,
}

/// A parameter that PTX declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// What it is.
    pub class: Class,
    /// Its bytes.
    pub bytes: u32,
}

/// What PTX says of a parameter's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// An integer or an address.
    Integer,
    /// A float.
    Float,
    /// Bits of any meaning.
    Bits,
    /// Bytes: a struct.
    Struct,
}

/// The kernels in PTX, in order; `None` where a declaration is not understood, so that nothing can be said.
pub fn entries(text: &str) -> Option<Vec<Entry<'_>>> {
    let mut entries = Vec::new();
    // What stands behind `//` and between `/*` and `*/` may be anything, a declaration included.
    let mut rest = text;
    while let Some((at, found)) = next_of(rest, &["//", "/*", ".entry"]) {
        rest = &rest[at + found.len()..];
        match found {
            "//" => rest = rest.split_once('\n').map_or("", |(_, rest)| rest),
            "/*" => rest = rest.split_once("*/").map_or("", |(_, rest)| rest),
            _ => {
                let (entry, behind) = entry(rest)?;
                entries.push(entry);
                rest = behind;
            }
        }
    }
    Some(entries)
}

/// The first of these words, and where it is.
fn next_of<'w>(text: &str, words: &[&'w str]) -> Option<(usize, &'w str)> {
    words.iter().filter_map(|word| Some((text.find(word)?, *word))).min_by_key(|(at, _)| *at)
}

/// Reads ` NAME ( PARAM, … )`, where the parentheses may be missing.
fn entry(text: &str) -> Option<(Entry<'_>, &str)> {
    let text = text.strip_prefix(char::is_whitespace)?.trim_start();
    let end = text.find(|c: char| c.is_whitespace() || c == '(' || c == '{')?;
    let (name, rest) = text.split_at(end);
    let Some(list) = rest.trim_start().strip_prefix('(') else {
        return Some((Entry { name, params: Vec::new() }, rest));
    };
    let (list, rest) = list.split_once(')')?;
    let params = match list.trim() {
        "" => Some(Vec::new()),
        list => list.split(',').map(param).collect(),
    };
    Some((Entry { name, params: params? }, rest))
}

/// Reads `.param .align 8 .b8 NAME[32]`, `.param .u64 .ptr .global NAME`.
fn param(text: &str) -> Option<Param> {
    let mut words = text.split_whitespace();
    (words.next()? == ".param").then_some(())?;
    let (class, bytes) = words.clone().find_map(kind)?;
    let name = words.next_back()?;
    match name.split_once('[') {
        None => Some(Param { class, bytes }),
        Some((_, elements)) => {
            let elements: u32 = elements.strip_suffix(']')?.trim().parse().ok()?;
            Some(Param { class: Class::Struct, bytes: bytes.checked_mul(elements)? })
        }
    }
}

/// `.u64`: an integer of 8 bytes.
fn kind(word: &str) -> Option<(Class, u32)> {
    let (class, bits) = word.strip_prefix('.')?.split_at_checked(1)?;
    let class = match class {
        "u" | "s" => Class::Integer,
        "f" => Class::Float,
        "b" => Class::Bits,
        _ => return None,
    };
    let bits: u32 = bits.parse().ok()?;
    matches!(bits, 8 | 16 | 32 | 64 | 128).then_some((class, bits / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&str, Vec<(Class, u32)>)> {
        let of = |entry: Entry<'_>| entry.params.iter().map(|param| (param.class, param.bytes)).collect();
        let entries = entries(text).unwrap();
        entries.into_iter().map(|entry| (entry.name, of(entry))).collect()
    }

    #[test]
    fn parameters_are_those_that_are_declared() {
        let text = "
            .version 8.0 // .entry none(.param .u64 a)
            /* .visible .entry neither() */
            .visible .entry first(
                .param .u64 first_param_0,
                .param .u64 .ptr .global .align 16 first_param_1,
                .param .f32 first_param_2,
                .param .align 8 .b8 first_param_3[24]
            )
            .maxntid 256, 1, 1
            { ret; }
            .entry second() { ret; }
            .entry third { ret; }";
        let first = vec![(Class::Integer, 8), (Class::Integer, 8), (Class::Float, 4), (Class::Struct, 24)];
        assert_eq!(found(text), [("first", first), ("second", vec![]), ("third", vec![])]);
    }

    #[test]
    fn what_is_not_understood_says_nothing() {
        assert_eq!(found("text without kernels"), []);
        for text in [
            ".entry",
            ".entry k(.param .u64 a",
            ".entry k(.param a)",
            ".entry k(.reg .u64 a)",
            ".entry k(.param .b8 a[x])",
        ] {
            assert_eq!(entries(text), None, "{text}");
        }
    }
}
