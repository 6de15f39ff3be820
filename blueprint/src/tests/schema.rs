//! The published schema is the one of the types that parse. `UPDATE_SCHEMA=1 cargo test` rewrites it.

use std::fs;

use serde_json::json;

use crate::compose::written::Composition;
use crate::format::Config;

#[test]
fn published_schema_is_fresh() {
    let mut schema = schemars::schema_for!(Config);
    schema.insert("title".into(), "Pappus function".into());
    let one_of = json!([{"required": ["module_path"]}, {"required": ["modules"]}]);
    schema.insert("oneOf".into(), one_of);
    is_fresh("blueprint.schema.json", &schema);
}

#[test]
fn published_schema_of_compositions_is_fresh() {
    let mut schema = schemars::schema_for!(Composition);
    schema.insert("title".into(), "Pappus composition".into());
    is_fresh("composition.schema.json", &schema);
}

fn is_fresh(file: &str, schema: &schemars::Schema) {
    let path = format!("{}/../docs/{file}", env!("CARGO_MANIFEST_DIR"));
    let mut schema = serde_json::to_string_pretty(schema).unwrap();
    schema.push('\n');
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap_or_default();
    assert!(published == schema, "{path} is stale: run the tests once with UPDATE_SCHEMA=1");
}
