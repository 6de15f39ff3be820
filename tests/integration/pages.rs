//! Pages of `docs` that list parts of the sources: each list is complete, and has no entry that is gone. Links between
//! pages lead somewhere.

use std::collections::BTreeSet;
use std::path::Path;

use crate::programs::{files_below, workspace};
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
    let errors = page("errors.md");
    let (_, behind) = errors.split_once("## Codes").unwrap();
    let (table, _) = behind.split_once("Outputs are undefined").unwrap();
    let codes = (1..).map_while(|number| pappus_client::Code::try_from(number).ok());
    let codes: BTreeSet<_> = codes.map(|code| code.as_str_name().to_owned()).collect();
    assert_eq!(listed(table), codes);
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split(" | ").collect();
        assert!(cells.len() == 5 && !cells[3].is_empty(), "{row}");
    }
    for name in ["cli.md", "python.md"] {
        assert!(page(name).contains("](errors.md#codes)"), "{name}");
    }
}

/// What the packaged configuration says of each setting: its section, its name, its default, and whether it changes while
/// the supervisor serves.
fn packaged() -> Vec<(String, String, String, bool)> {
    let text = std::fs::read_to_string(workspace().join("deploy/pappus.toml")).unwrap();
    let (mut section, mut is_live, mut settings) = (String::new(), false, Vec::new());
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            is_live = comment.starts_with("* ");
        } else if let Some(name) = line.trim_start_matches('#').strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((name, value)) = line.trim_start_matches('#').split_once(" = ") {
            settings.push((section.clone(), name.to_owned(), value.replace('"', ""), is_live));
        }
    }
    settings
}

/// A row of a page, by the name that it begins with; whether a `*` marks it, and its cells.
fn row<'p>(page: &'p str, name: &str) -> (bool, Vec<&'p str>) {
    let begin = format!("| `{name}`");
    let mut rows = page.lines().filter(|line| line.starts_with(&begin));
    let row = rows.next().unwrap_or_else(|| panic!("{name} has no row"));
    assert_eq!(rows.next(), None, "{name} has two rows");
    let cells: Vec<_> = row.split(" | ").collect();
    (cells[0].ends_with(" *"), cells)
}

#[test]
fn every_setting_and_every_quota_has_a_row_with_its_default() {
    let (install, tenants) = (page("operations/install.md"), page("operations/tenants.md"));
    // Who is a tenant, and what share each has, is explained by an example.
    let by_example = ["unknown-tenants", "gateways", "weight", "class"];
    let (mut settings, mut quotas) = (BTreeSet::from(["log".to_owned()]), BTreeSet::new());
    let mut compared = 0;
    for (section, name, default, is_live) in packaged() {
        if by_example.contains(&name.as_str()) || section == "tenants.example" {
            assert!(tenants.contains(&format!("{name} = ")), "{name}");
            continue;
        }
        let page = if section.is_empty() { &install } else { &tenants };
        let (is_marked, cells) = row(page, &name);
        // An address that is given there is an example.
        let is_default = default.starts_with(|c: char| c.is_ascii_digit()) && name != "metrics";
        if is_default || default == "unlimited" {
            assert_eq!(cells[1], default, "the default of {name}");
            compared += 1;
        }
        if section.is_empty() {
            assert_eq!(is_marked, is_live, "whether {name} changes while the supervisor serves");
            settings.insert(name);
        } else {
            quotas.insert(name);
        }
    }
    assert_eq!(listed(&install), settings, "left: install.md, right: deploy/pappus.toml");
    assert_eq!(listed(&tenants), quotas, "left: tenants.md, right: deploy/pappus.toml");
    assert!(compared > 25, "{compared}");
}

#[test]
fn settings_of_devices_that_change_while_they_serve_are_marked() {
    let devices = page("operations/devices.md");
    let (_, behind) = devices.split_once("## Settings").unwrap();
    let (table, _) = behind.split_once("## Memory").unwrap();
    let marked = listed(table).into_iter().filter(|name| row(table, name).0);
    let live = pappus_supervisor::config::live::LIVE.map(str::to_owned);
    assert_eq!(marked.collect::<BTreeSet<_>>(), BTreeSet::from(live));
}

/// What pages can be linked to: their headings, as renderers name them, and anchors.
fn anchors(page: &str) -> BTreeSet<String> {
    let named =
        page.split("<a id=\"").skip(1).filter_map(|behind| Some(behind.split_once('"')?.0.to_owned()));
    let text = page.split("\n```").step_by(2).flat_map(str::lines);
    let headings = text.filter(|line| line.starts_with('#')).map(|line| {
        let kept = line.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c)).collect()
    });
    named.chain(headings).collect()
}

/// Links of a page that lead nowhere in this repository.
fn broken(folder: &Path, page: &str) -> Vec<String> {
    let links = page.split("](").skip(1).filter_map(|behind| Some(behind.split_once(')')?.0));
    let ours = links.filter(|link| !link.contains("://") && !link.contains([' ', '*']));
    let is_broken = |link: &&str| {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let path = folder.join(path);
        let text = if link.starts_with('#') { Ok(page.to_owned()) } else { std::fs::read_to_string(&path) };
        match anchor {
            "" => !path.exists(),
            anchor => !text.is_ok_and(|text| anchors(&text).contains(anchor)),
        }
    };
    ours.filter(is_broken).map(str::to_owned).collect()
}

#[test]
fn every_experiment_is_in_the_report_with_its_picture() {
    let report = page("evaluation.md");
    let folder = workspace().join("evaluation/experiments");
    let files = files_below(&folder);
    assert!(files.len() > 5, "{files:?}");
    for path in files {
        let experiment: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let title = experiment["title"].as_str().unwrap();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let name = stem.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('-');
        if experiment.contains_key("only") {
            // A machine with a GPU measures it; until then the page says that nobody did.
            let is_named = [format!("\n## On a GPU: {title}\n"), format!("{title} (GPU)")];
            assert!(
                is_named.iter().any(|words| report.contains(words)),
                "{name}: run scripts/evaluate cpu --report"
            );
            continue;
        }
        assert!(report.contains(&format!("\n## {title}\n")), "{title}: run scripts/evaluate cpu {name}");
        assert!(report.contains(&format!("](pictures/evaluation/{name}.svg)")), "{name}");
        assert!(
            report.contains(experiment["question"].as_str().unwrap()),
            "{name}: run scripts/evaluate cpu --report"
        );
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let root = workspace();
    let own = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "kernels/README.md"];
    let docs = files_below(&root.join("docs"));
    let pages = own.map(|name| root.join(name)).into_iter().chain(docs);
    let mut read = 0;
    for path in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let broken = broken(path.parent().unwrap(), &text);
        assert!(broken.is_empty(), "{}: {broken:?}", path.display());
        read += 1;
    }
    assert!(read > 20, "{read}");
    // The control.
    let wrong =
        "# One\n[a](#two) [b](absent.md) [c](#one) [d](docs/operations.md#absent) [e](docs/operations.md)";
    assert_eq!(broken(root, wrong), ["#two", "absent.md", "docs/operations.md#absent"]);
}

#[test]
fn the_pages_for_operators_are_in_their_index_and_in_the_package() {
    let index = page("operations.md");
    let package = std::fs::read_to_string(workspace().join("scripts/package/2-debian")).unwrap();
    let (_, behind) = package.split_once("operations/{").unwrap();
    let packaged: BTreeSet<_> = behind.split_once('}').unwrap().0.split(',').map(str::to_owned).collect();
    let files = files_below(&workspace().join("docs/operations"));
    let names = files.iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let names: BTreeSet<_> = names.collect();
    assert_eq!(names, packaged, "left: docs/operations, right: scripts/package/2-debian");
    assert!(names.iter().all(|name| index.contains(&format!("](operations/{name}.md)"))), "{index}");
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
