//! The examples of the format reference are valid.

use crate::compose::{Part, link};
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

#[test]
fn documented_compositions_link() {
    let page = include_str!("../../../docs/compositions.md");
    let blocks = page.split("```json\n").skip(1).map(|block| block.split("```").next().unwrap());
    let blocks: Vec<&str> = blocks.collect();
    let (functions, compositions): (Vec<&str>, Vec<&str>) =
        blocks.into_iter().partition(|block| !crate::compose::is_composition(block.as_bytes()));
    // Those of the page, all over one function: `x` → `y`, of type f32 and shape `[n]`.
    assert_eq!((functions.len(), compositions.len()), (1, 3));
    for composition in compositions {
        let part =
            |_: &str| Some(Part { config: functions[0].into(), modules: vec!["m".into()], weights: vec![] });
        link(composition.as_bytes(), part).unwrap_or_else(|why| panic!("{why} in {composition}"));
    }
}
