//! Words of mistakes in the configuration: what to write in place of what was written.

/// Mistakes of typing, of so many letters of a word.
const LETTERS_OF_A_TYPO: usize = 3;

/// What a word may have been meant to be, or all that it can be.
pub(super) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = known.clone().map(|one| (distance(word, one), one)).min();
    match near {
        Some((far, one)) if far <= (one.len() / LETTERS_OF_A_TYPO).max(1) => format!("; did you mean {one}?"),
        _ => format!("; there are {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// How many letters must be put in, left out, exchanged or swapped with the next one to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) =
        (one.chars().take(64).collect(), other.chars().take(64).collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let exchanged = rows[i][j] + usize::from(a != b);
            let mut least = exchanged.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// What to write where a duration belongs.
pub(super) fn expected_duration(given: &str) -> String {
    match given.parse::<u64>() {
        Ok(0) => "expected a duration: write \"0\"".to_owned(),
        Ok(seconds) => format!("expected a duration: write \"{seconds}s\""),
        Err(_) => "expected a duration in quotes, such as \"500ms\" or \"30s\"".to_owned(),
    }
}

/// What to write where a size belongs.
pub(super) fn expected_size(given: &str) -> String {
    match given.parse::<u64>() {
        Ok(bytes) => {
            let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
            let unit = units.into_iter().find(|(bits, _)| bytes > 0 && bytes.is_multiple_of(1 << bits));
            let (count, unit) = unit.map_or((bytes, ""), |(bits, unit)| (bytes >> bits, unit));
            format!("expected a size: write \"{count}{unit}\"")
        }
        Err(_) => "expected a size in quotes, such as \"256MiB\"".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_nearly_known_is_named() {
        let known = ["socket", "state-dir", "weight", "class"];
        for (word, meant) in
            [("sokcet", "socket"), ("wieght", "weight"), ("state_dir", "state-dir"), ("clas", "class")]
        {
            assert_eq!(did_you_mean(word, known.into_iter()), format!("; did you mean {meant}?"));
        }
        assert_eq!(did_you_mean("color", known.into_iter()), "; there are socket, state-dir, weight, class");
        assert_eq!(distance(&"x".repeat(1 << 20), "x"), 63, "a long word takes no long time");
    }

    #[test]
    fn sizes_and_durations_are_written_out() {
        assert_eq!(expected_size("268435456"), "expected a size: write \"256MiB\"");
        assert_eq!(expected_size("1000"), "expected a size: write \"1000\"");
        assert_eq!(expected_size("true"), "expected a size in quotes, such as \"256MiB\"");
        assert_eq!(expected_duration("0"), "expected a duration: write \"0\"");
        assert_eq!(expected_duration("[…]"), "expected a duration in quotes, such as \"500ms\" or \"30s\"");
    }
}
