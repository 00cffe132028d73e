//! `gc RULE now=T`, then `cells T...` newest first, in milliseconds: the live versions, and the age floor.

use ebla_model::gc::{age_floor, visible};
use ebla_model::time::Micros;

use crate::notation::{error_text, millis, millis_text, option, rule};
use crate::runner;

#[test]
fn versions_die_by_rule() {
    runner::run("gc", |input| {
        let [head, cells] = input else { panic!("two lines wanted: {input:?}") };
        let now = millis(option(head, "now").unwrap());
        let rule = rule(head.strip_prefix("gc ").unwrap().split(" now=").next().unwrap());
        let versions: Vec<_> = cells.split_whitespace().skip(1).map(millis).collect();
        if let Some(Err(error)) = rule.as_ref().map(ebla_model::GcRule::validate) {
            return vec![error_text(&error)];
        }
        let (kept, dropped) = versions.split_at(visible(rule.as_ref(), now, versions.iter().copied()));
        let mut out = vec![];
        out.extend(line("keep", kept));
        out.extend(line("drop", dropped));
        out.extend(age_floor(rule.as_ref(), now).map(|floor| format!("floor {}", millis_text(floor))));
        out
    });
}

fn line(word: &str, versions: &[Micros]) -> Option<String> {
    let words: Vec<_> = versions.iter().map(|version| millis_text(*version)).collect();
    (!words.is_empty()).then(|| format!("{word} {}", words.join(" ")))
}
