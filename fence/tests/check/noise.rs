//! Whatever the bytes are, the checker answers.

use proptest::prelude::*;

use pappus_fence::check;

use crate::accepted::EVERYTHING;

/// Words that mean something to the checker.
const WORDS: [&str; 24] = [
    "\n",
    ";",
    ":",
    ",",
    " ",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    "@",
    "%r1",
    "%pappus_hi",
    "$pappus_on_0",
    "$L",
    ".reg",
    ".param",
    "ld.global.u32",
    "18446744073709551615",
    "-",
    "é",
];

/// The sample with some bytes replaced by words.
fn damaged() -> impl Strategy<Value = String> {
    let damage = (0..EVERYTHING.len(), 0..12_usize, prop::sample::select(WORDS.to_vec()));
    prop::collection::vec(damage, 1..6).prop_map(|all| {
        let mut text = EVERYTHING.to_owned();
        for (at, length, word) in all {
            let fits =
                |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            let (from, to) = (fits(at), fits(at + length));
            text.replace_range(from..to, word);
        }
        text
    })
}

proptest! {
    #[test]
    fn any_text_has_an_answer(text in ".{0,300}") {
        prop_assert!(check(&text).is_err());
    }

    #[test]
    fn any_words_have_an_answer(words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..60)) {
        let head = EVERYTHING.split_inclusive('\n').take(3).collect::<String>();
        let _ = check(&(head + &words.concat()));
    }

    #[test]
    fn a_damaged_text_has_an_answer_in_a_line_of_its_own(text in damaged()) {
        if let Err(unfenced) = check(&text) {
            prop_assert!((1..=text.lines().count().max(1)).contains(&unfenced.line));
        }
    }
}

#[test]
fn a_text_that_ends_in_a_function_is_refused() {
    let begin = EVERYTHING.find(".visible .entry everything").unwrap();
    let end = EVERYTHING.find(".entry nothing").unwrap() - 3;
    for end in begin + 1..end {
        assert!(check(&EVERYTHING[..end]).is_err(), "{}", &EVERYTHING[end - 20..end]);
    }
}

#[test]
fn deep_long_and_many_are_no_special_case() {
    let head = EVERYTHING.split_inclusive('\n').take(3).collect::<String>();
    for word in
        ["{", "[", "(", "@", ".", "%r<", ".reg .b32 %a", "$x:\n", "\n", "a,", "0", ".const .b32 a[", "}\n"]
    {
        assert!(check(&(head.clone() + &word.repeat(50_000))).is_err() || word == "\n");
    }
}
