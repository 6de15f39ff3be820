//! Words of doc comments: a sentence names its subject, and the doc of a `bool` says when it is true.

use crate::tidy::sources;

/// Words that stand for something which is named elsewhere, or nowhere.
const PRONOUNS: &str = "he it its itself none one ones others she so such that their theirs them themselves there these \
    they this those what which who whom whose";

/// Shorter sentences are read at a glance.
const LEAST_WORDS: usize = 10;

/// A sentence may have up to three pronouns for ten words: more is a riddle.
const MOST_PRONOUNS: (usize, usize) = (3, 10);

/// A paragraph of a doc comment: every word with the number of its line.
type Paragraph<'a> = Vec<(usize, &'a str)>;

/// What a line says as a part of a doc comment.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
}

/// The paragraphs of all doc comments, without code, tables and headings.
fn paragraphs(text: &str) -> Vec<Paragraph<'_>> {
    let mut all = vec![Vec::new()];
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        let said = doc(line);
        let fence = said.is_some_and(|said| said.starts_with("```"));
        is_code = said.is_some() && is_code != fence;
        let said =
            said.filter(|said| !is_code && !fence && !said.starts_with(['|', '#'])).unwrap_or_default();
        if said.is_empty() || said.starts_with("- ") {
            all.push(Vec::new());
        }
        all.last_mut().unwrap().extend(said.split_whitespace().map(|word| (number, word)));
    }
    all
}

/// The sentences of a paragraph, each with the number of its first line.
fn sentences(paragraph: &Paragraph<'_>) -> Vec<(usize, String)> {
    let ends =
        |(_, word): &(usize, &str)| word.trim_end_matches([')', '"', '*', '_']).ends_with(['.', '?', '!']);
    let parts = paragraph.split_inclusive(ends);
    parts.map(|part| (part[0].0, part.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(" "))).collect()
}

/// True if a sentence is long, and too many of its words are pronouns. What stands in backticks is one word.
fn is_riddle(sentence: &str) -> bool {
    let plain: Vec<_> =
        sentence.split('`').enumerate().map(|(n, part)| if n % 2 == 0 { part } else { "code" }).collect();
    let plain = plain.concat().to_ascii_lowercase();
    let words = plain.split(|c: char| !c.is_ascii_alphabetic() && !['\'', '-'].contains(&c));
    let words: Vec<_> =
        words.map(|word| word.trim_start_matches(['\'', '-'])).filter(|word| !word.is_empty()).collect();
    let is_pronoun = |word: &str| PRONOUNS.split(' ').any(|pronoun| pronoun == word);
    let pronouns = words.iter().filter(|word| is_pronoun(word)).count();
    words.len() >= LEAST_WORDS && pronouns * MOST_PRONOUNS.1 > words.len() * MOST_PRONOUNS.0
}

/// Riddles in a file: lines and sentences.
fn riddles(text: &str) -> Vec<(usize, String)> {
    let all = paragraphs(text).into_iter().flat_map(|paragraph| sentences(&paragraph));
    all.filter(|(_, sentence)| is_riddle(sentence)).collect()
}

/// True if a line begins a function.
fn is_function(line: &str) -> bool {
    let rest =
        line.strip_prefix("pub").map_or(line, |rest| rest.split_once(' ').map_or(rest, |(_, rest)| rest));
    let rest = rest.split(' ').find(|word| !["const", "async", "unsafe"].contains(word));
    rest == Some("fn")
}

/// Docs of functions that return a `bool` and do not say when it is true: lines and docs.
fn silent_bools(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_doc = |line: &&str| line.starts_with("///");
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begin) = lines[at..].iter().position(is_doc).map(|nth| at + nth) {
        let docs: Vec<&str> = lines[begin..].iter().copied().take_while(is_doc).collect();
        at = begin + docs.len();
        let mut code = lines[at..].iter().skip_while(|line| line.starts_with("#[")).peekable();
        if !code.peek().is_some_and(|line| is_function(line)) {
            continue;
        }
        let mut signature = String::new();
        for line in code {
            signature += line;
            signature.push(' ');
            if line.ends_with(['{', ';', '}']) {
                break;
            }
        }
        let head = signature.split(" where ").next().unwrap_or_default();
        let said: Vec<&str> = docs.iter().filter_map(|line| doc(line)).collect();
        let said = said.join(" ");
        let mut words = said.split(|c: char| !c.is_ascii_alphabetic());
        let says = words.any(|word| word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false"));
        if head.trim_end_matches(['{', ';', ' ']).ends_with("-> bool") && !says {
            found.push((begin + 1, said));
        }
    }
    found
}

/// Whatever is found in a source fails.
fn check(what: &str, find: impl Fn(&str) -> Vec<(usize, String)>) {
    let found = sources().into_iter().flat_map(|(name, text)| {
        find(&text).into_iter().map(move |(line, said)| format!("{name}:{line}: {said}"))
    });
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn a_doc_sentence_names_its_subject() {
    let cure = "say who does what with nouns, with one pronoun at most (CONTRIBUTING.md, Rules)";
    check(cure, riddles);
    // The controls.
    let riddle = "/// What it takes of those that it has, as\n/// they are when this is what they want.";
    assert_eq!(riddles(riddle).len(), 1);
    assert_eq!(riddles(&riddle.replace("///", "//")), []);
    assert_eq!(riddles(&format!("/// ```text\n{riddle}\n/// ```")), []);
    assert_eq!(
        riddles("/// The worker gives its turn back once the last call of the turn has an answer."),
        []
    );
    assert_eq!(riddles("/// What it is. Who has it. What they want. Which one this is."), []);
}

#[test]
fn the_doc_of_a_bool_says_when_it_is_true() {
    check("begin the doc of a bool with \"True if\" (CONTRIBUTING.md, Rules)", silent_bools);
    // The controls.
    let silent = "/// Whether it is there.\n#[must_use]\npub(super) fn is_there(\n    &self,\n) -> bool {";
    assert_eq!(silent_bools(silent).len(), 1);
    assert_eq!(silent_bools(&silent.replace("Whether", "True if")), []);
    assert_eq!(silent_bools(&silent.replace("-> bool", "-> Result<bool>")), []);
    assert_eq!(silent_bools("/// Waits.\nfn until(holds: impl Fn() -> bool) {"), []);
}
