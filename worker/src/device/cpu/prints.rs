//! What kernels of a checked call print: records in a buffer of the call (`pappus_print_i64` of `kernels/c/pappus.h`
//! writes them), and their text. The buffer bounds it: what finds no room is counted.
//!
//! ```text
//! 0       4          8
//! | bytes | left out | kind: u8 | length: u8 | value: 8 bytes | what … | …
//! ```

use std::fmt::Write as _;

/// What comes before the records.
const HEAD_BYTES: usize = 8;
/// What comes before a record's text.
const RECORD_BYTES: usize = 10;

/// The text of a buffer, a line for each record, of at most so many bytes. Whatever a kernel wrote there, it holds no control
/// character but the ends of its lines.
pub(super) fn text(buffer: &[u8], most_bytes: usize) -> String {
    let word = |at: usize| buffer.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let (used, mut left_out) = (word(0).unwrap_or(0) as usize, u64::from(word(4).unwrap_or(0)));
    let mut records = buffer.get(HEAD_BYTES..).unwrap_or_default();
    records = &records[..records.len().min(used)];
    // Room for the last line.
    let most_bytes = most_bytes.saturating_sub(64);
    let mut text = String::new();
    while let Some((line, rest)) = next(records) {
        records = rest;
        match text.len() + line.len() < most_bytes {
            true => text.push_str(&line),
            false => left_out += 1,
        }
    }
    if left_out > 0 {
        // Writing into a string does not fail.
        let _ = writeln!(text, "… {left_out} more, for which there is no room");
    }
    text
}

/// The first record's line, and the records behind it.
fn next(records: &[u8]) -> Option<(String, &[u8])> {
    let (head, rest) = records.split_first_chunk::<RECORD_BYTES>()?;
    let [kind, length, bits @ ..] = *head;
    let (what, rest) = rest.split_at_checked(length.into())?;
    let bits = u64::from_le_bytes(bits);
    let what = String::from_utf8_lossy(what).replace(char::is_control, "?");
    let line = match kind {
        b'f' => format!("{what}: {:?}\n", f64::from_bits(bits)),
        _ => format!("{what}: {}\n", bits as i64),
    };
    Some((line, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(used: u32, left_out: u32, records: &[(u8, &[u8], u64)]) -> Vec<u8> {
        let mut bytes = [used.to_le_bytes(), left_out.to_le_bytes()].concat();
        for (kind, what, value) in records {
            bytes.extend([*kind, what.len() as u8]);
            bytes.extend(value.to_le_bytes());
            bytes.extend(*what);
        }
        bytes
    }

    #[test]
    fn records_are_lines() {
        let records: [(u8, &[u8], u64); 2] = [(b'i', b"i", -3i64 as u64), (b'f', b"x", 1e300f64.to_bits())];
        assert_eq!(text(&buffer(22, 0, &records), 1000), "i: -3\nx: 1e300\n");
        assert_eq!(text(&buffer(11, 0, &records), 1000), "i: -3\n");
        assert_eq!(text(&buffer(0, 0, &[]), 1000), "");
    }

    #[test]
    fn what_a_kernel_wrote_there_is_text_whatever_it_is() {
        let hostile: [(u8, &[u8], u64); 1] = [(0, b"\x1b[2J\r\n\0\xff\xc2\x9b", 1)];
        let said = text(&buffer(u32::MAX, 0, &hostile), 1000);
        assert_eq!(said, "?[2J???\u{fffd}?: 1\n");
        for length in 0..24 {
            text(&vec![0xff; length], 1000);
        }
    }

    #[test]
    fn the_text_is_bounded_and_says_what_is_left_out() {
        let records = vec![(b'i', &b"0123456789"[..], 7); 100];
        let said = text(&buffer(u32::MAX, 5, &records), 264);
        assert!(said.len() <= 264, "{}", said.len());
        let lines = said.lines().count() as u32 - 1;
        assert!(said.ends_with(&format!("… {} more, for which there is no room\n", 105 - lines)), "{said}");
    }
}
