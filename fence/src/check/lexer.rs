//! Lines, names and numbers of fenced PTX. A line is one item in one spelling. Fenced text has no comments, strings or line
//! directives: what two readers could take for different things is refused here or fits no rule.

use super::Unfenced;

/// A line that is not empty, without the blanks in front.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) number: usize,
    pub(super) text: &'a str,
}

/// The lines of a text. A semicolon ends a line: two statements need two lines.
pub(super) fn lines(text: &str) -> Result<Vec<Line<'_>>, Unfenced> {
    let mut found = Vec::new();
    for (number, text) in (1..).zip(text.split('\n')) {
        let text = text.trim_start_matches([' ', '\t']);
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b" _$%.,;:(){}[]<>@!+-|=".contains(&byte);
        if !text.bytes().all(is_known) || text.find(';').is_some_and(|at| at + 1 < text.len()) {
            return Err(Unfenced::new(
                number,
                "a byte that fenced text has not, or two statements in a line",
            ));
        }
        if !text.is_empty() {
            found.push(Line { number, text });
        }
    }
    Ok(found)
}

/// True if a word can name something: letters, digits, `_`, `$`, and one `%` in front; no word of PTX itself.
pub(super) fn is_name(word: &str) -> bool {
    let rest = word.strip_prefix('%').unwrap_or(word);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$';
    let begins = rest.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    begins && rest.bytes().all(is_plain) && !["_", "WARP_SZ"].contains(&rest)
}

/// True if a word is a number that all readers take for the same: decimal without leading zeros, `0x`, `0f` or `0d`.
pub(super) fn is_number(word: &str) -> bool {
    let hex = |prefix: &str, digits: std::ops::RangeInclusive<usize>| {
        let rest = word.strip_prefix(prefix).unwrap_or_default();
        digits.contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let word = word.strip_prefix('-').unwrap_or(word);
    decimal(word).is_some() || hex("0x", 1..=16) || hex("0f", 8..=8) || hex("0d", 16..=16)
}

/// The value of a plain decimal number: offsets, sizes and limits are written so.
pub(super) fn decimal(word: &str) -> Option<u64> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    if is_plain { word.parse().ok() } else { None }
}

/// The parts between commas that are in no brackets, each comma with its blank.
pub(super) fn operands<'a>(text: &'a str) -> Vec<&'a str> {
    let mut depth = 0_i64;
    let split = |sign: char| {
        depth += i64::from("{[(".contains(sign)) - i64::from("}])".contains(sign));
        depth == 0 && sign == ','
    };
    let parts = text.split(split).enumerate();
    let part =
        |(nth, part): (usize, &'a str)| if nth == 0 { part } else { part.strip_prefix(' ').unwrap_or("") };
    parts.map(part).filter(|_| !text.is_empty()).collect()
}

/// What stands between two brackets, if a text is that.
pub(super) fn inside(text: &str, open: char, close: char) -> Option<&str> {
    text.strip_prefix(open)?.strip_suffix(close)
}
