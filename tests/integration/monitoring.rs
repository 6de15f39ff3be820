//! What stands in `deploy` and in the run book about metrics, alerts and lines of the log is about what there is, and
//! nothing is left out.

use std::collections::BTreeSet;

use crate::fixture::until;
use crate::kit;
use crate::metrics::{address, scrape, with_gpu};
use crate::programs::workspace;
use crate::tidy;

const RULES: &str = "deploy/prometheus/pappus.rules.yaml";
const RULE_TESTS: &str = "deploy/prometheus/pappus.rules.test.yaml";
const DASHBOARD: &str = "deploy/grafana/pappus.json";
/// The heading of the run book's list of lines of the log.
const LOG_LINES: &str = "### Lines that ask for action";

fn file(path: &str) -> String {
    std::fs::read_to_string(workspace().join(path)).unwrap()
}

/// A metric as a query names it, and what it demands of labels with `=`.
type Selector = (String, Vec<(String, String)>);

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Metrics that a text of queries names.
fn selectors(text: &str) -> BTreeSet<Selector> {
    let text = text.replace("\\\"", "\"");
    let starts = ["pappus_", "process_"].into_iter().flat_map(|start| text.match_indices(start));
    let named = starts.filter(|(at, _)| !text[..*at].ends_with(|c: char| is_name(c) || c == '/'));
    named
        .map(|(at, _)| {
            let end = text[at..].find(|c| !is_name(c)).map_or(text.len(), |length| at + length);
            let labels = text[end..].strip_prefix('{').and_then(|rest| rest.split('}').next());
            let labels = labels.unwrap_or_default().split(',').filter_map(|label| {
                let (name, value) = label.split_once("=\"")?;
                Some((name.trim().to_owned(), value.trim_end_matches('"').to_owned()))
            });
            // `name!="…"` and `name=~"…"` demand no value.
            let labels = labels.filter(|(name, _)| name.chars().all(is_name)).collect();
            (text[at..end].to_owned(), labels)
        })
        .collect()
}

/// True if an answer of the endpoint has such a series.
fn is_there(answer: &str, (name, labels): &Selector) -> bool {
    answer.lines().any(|line| {
        let rest = line.strip_prefix(name.as_str()).unwrap_or("-");
        let series = rest.starts_with(['{', ' ']);
        series && labels.iter().all(|(name, value)| rest.contains(&format!("{name}=\"{value}\"")))
    })
}

#[test]
fn selectors_are_read_as_prometheus_reads_them() {
    let text = r#"sum(rate(pappus_a{x="1",y=~"2",z!="3"}[5m])) / process_b > 0 and on (i) not_pappus_c docs/pappus_d"#;
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let found = selectors(text);
    let wanted = [("pappus_a".to_owned(), vec![label("x", "1")]), ("process_b".to_owned(), vec![])];
    assert_eq!(found, BTreeSet::from(wanted.clone()));
    let answer = "# HELP pappus_a no\npappus_a{w=\"0\",x=\"1\"} 5\nprocess_bc 1\n";
    assert!(is_there(answer, &wanted[0]));
    assert!(!is_there(answer, &wanted[1]));
    assert!(!is_there(answer, &("pappus_a".to_owned(), vec![label("x", "2")])));
}

#[test]
fn dashboard_and_alerts_name_metrics_that_a_supervisor_serves() {
    let address = address(9474);
    let supervisor = with_gpu(&address, "hello\nawait read\nreadings 1 2 3 4\nsilence");
    // What names tenants is there once one used a device, what names GPUs once one was asked.
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    let named: BTreeSet<_> = [RULES, DASHBOARD].iter().flat_map(|path| selectors(&file(path))).collect();
    assert!(named.len() > 40, "{named:?}");
    let mut missing = Vec::new();
    // Gauges are there after the first look.
    until("all are there", || {
        let answer = scrape(&address);
        missing = named.iter().filter(|selector| !is_there(&answer, selector)).cloned().collect();
        let there = ["pappus_tenant_device_seconds{", "pappus_functions ", "pappus_device_power_watts{"];
        there.iter().all(|name| answer.contains(name))
    });
    assert!(missing.is_empty(), "no such series: {missing:?}");
    // And the dashboard leaves none out.
    let shown: BTreeSet<_> = selectors(&file(DASHBOARD)).into_iter().map(|(name, _)| name).collect();
    let answer = scrape(&address);
    let served = answer.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let unseen: Vec<_> = served
        .filter(|name| {
            !shown.iter().any(|shown| shown.trim_end_matches("_bucket").trim_end_matches("_count") == *name)
        })
        .collect();
    assert_eq!(unseen, ["process_max_fds"], "left: metrics that the dashboard does not show");
}

/// The alerts that a file of rules has.
fn alerts(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect()
}

#[test]
fn every_alert_has_its_two_tests_and_its_page_in_the_run_book() {
    let (rules, tests, page) = (file(RULES), file(RULE_TESTS), file("docs/runbook.md"));
    let alerts = alerts(&rules);
    assert!(alerts.len() > 15, "{alerts:?}");
    for alert in &alerts {
        let case =
            |how: &str| tests.split("  - name: ").find(|case| case.starts_with(&format!("{alert} {how}\n")));
        let fires = case("fires").unwrap_or_else(|| panic!("no test in which {alert} fires"));
        assert!(fires.contains(&format!("alertname: {alert}\n")) && fires.contains("exp_labels"), "{fires}");
        let quiet = case("is quiet").unwrap_or_else(|| panic!("no test in which {alert} is quiet"));
        assert!(
            quiet.contains(&format!("alertname: {alert}\n")) && quiet.contains("exp_alerts: []"),
            "{quiet}"
        );
    }
    let headings =
        page.lines().filter_map(|line| line.strip_prefix("#### ")).filter(|line| line.starts_with("Pappus"));
    assert_eq!(headings.collect::<BTreeSet<_>>(), alerts.iter().copied().collect(), "left: docs/runbook.md");
}

/// The messages of `warn!` and `error!` in a source, without what is filled in: `…` stands for that.
fn messages(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let places = ["tracing::warn!(", "tracing::error!("]
        .into_iter()
        .flat_map(|call| code.match_indices(call).map(move |(at, _)| at + call.len()));
    places
        .map(|at| {
            // The message is the string behind the fields: the first one, since fields have no strings.
            let start = at + code[at..].find('"').unwrap() + 1;
            let mut message = String::new();
            let mut rest = code[start..].chars();
            loop {
                match rest.next().unwrap() {
                    '"' => return message,
                    // A line that goes on behind its indentation.
                    '\\' => {
                        rest.next();
                        rest = rest.as_str().trim_start().chars();
                    }
                    '{' => {
                        let filled = rest.as_str().find('}').unwrap();
                        rest = rest.as_str()[filled + 1..].chars();
                        message.push('…');
                    }
                    c => message.push(c),
                }
            }
        })
        .collect()
}

#[test]
fn messages_are_read_from_the_source() {
    let text = concat!(
        "tracing::warn!(\n    worker = pid.get(),\n    ?peer,\n    \"one {why:?} \\\n     two\"\n);",
        "tracing::error!(\"{}: three\", path);tracing::info!(\"no\");\n#[cfg(test)]\nmod tests { tracing::warn!(\"no\") }"
    );
    assert_eq!(messages(text), ["one … two", "…: three"]);
}

#[test]
fn the_run_book_explains_every_line_of_the_log_that_warns() {
    let sources = tidy::sources()
        .into_iter()
        .filter(|(name, _)| name.starts_with("supervisor/src/") && !name.ends_with("_tests.rs"));
    let logged: BTreeSet<String> = sources.flat_map(|(_, text)| messages(&text)).collect();
    assert!(logged.len() > 40, "{logged:?}");
    let page = file("docs/runbook.md");
    let (_, list) = page.split_once(LOG_LINES).expect("the list is gone");
    let list = list.split("\n## ").next().unwrap();
    let rows = list.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let explained: BTreeSet<String> = rows.map(|(message, _)| message.to_owned()).collect();
    assert_eq!(explained, logged, "left: docs/runbook.md, right: the sources");
}
