//! Pages of `docs` that list parts of the sources: each list is complete, and has no entry that is gone.

use std::collections::BTreeSet;

use crate::programs::workspace;
use crate::tidy;

fn page(name: &str) -> String {
    std::fs::read_to_string(workspace().join("docs").join(name)).unwrap()
}

/// The names that the tables of a page begin their lines with.
fn listed(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_library_is_explained_in_dependencies_md() {
    let mut used = BTreeSet::new();
    for name in tidy::crates() {
        let manifest = tidy::toml(&format!("{name}/Cargo.toml"));
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let names = manifest.get(table).and_then(|table| table.as_table()).into_iter().flatten();
            used.extend(names.map(|(name, _)| name.clone()).filter(|name| !name.starts_with("pappus-")));
        }
    }
    assert!(used.len() > 30, "{used:?}");
    assert_eq!(listed(&page("dependencies.md")), used, "left: docs/dependencies.md, right: the manifests");
}

#[test]
fn every_code_of_an_error_has_one_line_that_says_what_cures_it() {
    let operations = page("operations.md");
    let (_, behind) = operations.split_once("## Failures, as clients see them").unwrap();
    let (table, _) = behind.split_once("Output regions are").unwrap();
    let codes = (1..).map_while(|number| pappus_client::Code::try_from(number).ok());
    let codes: BTreeSet<_> = codes.map(|code| code.as_str_name().to_owned()).collect();
    assert_eq!(listed(table), codes);
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split(" | ").collect();
        assert!(cells.len() == 5 && !cells[3].is_empty(), "{row}");
    }
    for name in ["cli.md", "python.md"] {
        assert!(page(name).contains("](operations.md#failures-as-clients-see-them)"), "{name}");
    }
}

/// The words of a text, in small letters.
fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase).collect()
}

#[test]
fn the_glossary_is_in_order_and_explains_words_in_use() {
    let glossary = page("glossary.md");
    let rows = glossary.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let names: Vec<_> = rows.map(|(name, _)| name).collect();
    assert!(names.len() > 50 && names.is_sorted(), "{names:?}");
    let used: BTreeSet<_> = tidy::sources().iter().flat_map(|(_, text)| words(text)).collect();
    let stale: Vec<_> = names.iter().filter(|name| !used.contains(**name)).collect();
    assert!(stale.is_empty(), "not in the sources any more: {stale:?}");
    assert!(!used.contains(concat!("zeu", "gma")), "the control");
}

#[test]
fn the_calculator_reckons_with_the_supervisors_numbers() {
    let source = |path: &str| std::fs::read_to_string(workspace().join(path)).unwrap();
    let constants = |text: &str| -> BTreeSet<String> {
        let lines =
            text.lines().filter_map(|line| line.trim_start_matches("pub(crate) ").strip_prefix("const "));
        lines.map(str::to_owned).collect()
    };
    let calculator = constants(&source("client/src/capacity.rs"));
    let device = constants(&source("supervisor/src/config/device.rs"));
    for name in ["CONTEXT_BYTES", "MIN_GPU_CALLS_BYTES", "CONTEXTS_SHARE"] {
        let both: Vec<_> = calculator.intersection(&device).filter(|line| line.starts_with(name)).collect();
        assert_eq!(both.len(), 1, "{name}: {calculator:?} {device:?}");
    }
    assert!(calculator.contains("MAX_CONTEXTS: u64 = 64;"));
    assert!(source("protocol/src/kind.rs").contains("max_contexts: Some(64),"));
}
