//! The examples of the format reference are valid.

use crate::parse;

#[test]
fn documented_functions_parse() {
    let reference = include_str!("../../../docs/blueprint.md");
    let blocks = reference.split("```json\n").skip(1);
    let examples: Vec<&str> = blocks.map(|block| block.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        if let Err(error) = parse(example.as_bytes()) {
            panic!("{error} in {example}");
        }
    }
}
