//! Launches as they are written, without sizes.

use super::{launch, with_steps};
use crate::parse;

#[test]
fn launches_say_what_they_pass_and_where_they_are_written() {
    let by_value = r#"{"Struct": {"size": 16, "align": 8, "fields": []}}"#;
    let passing = launch(&format!(r#"{{"Ptr": "A"}}, {{"F32": 1}}, {{"Constant": 3}}, {by_value}"#));
    let repeated = format!(r#"{{"Repeat": [{{"Absolute": 2}}, [{}]]}}"#, launch(""));
    let blueprint = parse(with_steps(&format!("{passing}, {repeated}")).as_bytes()).unwrap();
    let launches: Vec<_> = blueprint.launches().collect();
    let [first, second] = launches[..] else { panic!("{launches:?}") };
    let passed: Vec<_> = first.params().map(|param| (param.to_string(), param.align)).collect();
    let expect = [("pointer", 8), ("f32", 4), ("i64", 8), ("struct of 16 bytes", 8)];
    assert_eq!(passed, expect.map(|(name, align)| (name.to_owned(), align)));
    assert_eq!((first.kernel, first.block_threads, second.params().count()), (0, Some(1), 0));
    assert_eq!(first.place(), "blueprint.control_flow[0].ExecKernel");
    assert_eq!(second.place(), "blueprint.control_flow[1].Repeat[1][0].ExecKernel");
}
