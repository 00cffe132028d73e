//! `create NAME RULE`, `update NAME RULE`, `drop NAME`: each `apply` takes the changes above it at once. A name may say how
//! its family aggregates: `NAME:sum`. `protect` and `unprotect` are updates of the table.

use ebla_model::cell::FamilyName;
use ebla_model::schema::{FamilyChange, Protection, TableSchema, TableUpdate};

use crate::notation::{error_text, new_family, rule, table};
use crate::runner;

#[test]
fn families_change() {
    runner::run("schema", |input| {
        let mut schema = table("f");
        let mut changes = Vec::new();
        let mut out = Vec::new();
        for line in input {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("protect", _) => schema = schema.update(TableUpdate::DeletionProtection(Protection::On)),
                ("unprotect", _) => schema = schema.update(TableUpdate::DeletionProtection(Protection::Off)),
                ("apply", _) => {
                    match schema.apply(&std::mem::take(&mut changes)) {
                        Ok(next) => schema = next,
                        Err(error) => out.push(error_text(&error)),
                    }
                    out.push(schema_text(&schema));
                }
                (word, rest) => changes.push(change(word, rest)),
            }
        }
        out
    });
}

fn change(word: &str, rest: &str) -> FamilyChange {
    let (name, gc) = rest.split_once(' ').unwrap_or((rest, "none"));
    let family = new_family(name, rule(gc));
    match word {
        "create" => FamilyChange::Create(family),
        "update" => FamilyChange::Update { name: family.name, gc: family.gc, aggregator: family.aggregator },
        "drop" => FamilyChange::Drop { name: FamilyName::new(name).unwrap() },
        _ => panic!("not a line of a schema script: {word}"),
    }
}

fn schema_text(schema: &TableSchema) -> String {
    let families: Vec<_> = schema
        .families
        .iter()
        .map(|family| {
            let gc = family.gc.as_ref().map_or("keep all".into(), ToString::to_string);
            let aggregates = family.aggregator.map(|aggregator| format!(" ({aggregator})")).unwrap_or_default();
            format!("{} {}{aggregates}: {gc}", family.id, family.name)
        })
        .collect();
    format!("version {} next {} [{}]", schema.version, schema.next_family, families.join(", "))
}
