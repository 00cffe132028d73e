//! The page `/config`: the options of this process with their values, and where each comes from.

use ebla_model::error::Error;

use super::{Page, note};
use crate::Context;
use crate::context::Setting;
use crate::html::{element, row, table, text};

/// The page.
///
/// # Errors
/// As [`Context::require_operator_of_process`].
pub async fn page(context: &Context) -> Result<Page, Error> {
    context.require_operator_of_process().await?;
    let config = context.config();
    Ok(render(&config.configuration_command, &config.configuration))
}

fn render(command: &str, settings: &[Setting]) -> Page {
    let line = |setting: &Setting| {
        let key = &setting.key;
        row([
            element("code").text(key),
            element("span").test_id(format!("setting-{key}")).text(if setting.value.is_empty() {
                "-"
            } else {
                &setting.value
            }),
            element("span").test_id(format!("origin-{key}")).text(setting.origin),
            element("code").child(text(setting.variable.as_deref().unwrap_or("-"))),
            element("span").text(if setting.is_reloadable { "yes" } else { "no: restart" }),
        ])
    };
    let heading = ["Option", "Value", "Comes from", "Variable", "SIGHUP changes it"];
    Page::new("Configuration", command)
        .fixed(note("The options of this process as they were at its start."))
        .fixed(element("div").class("scroll").child(table(&heading, settings.iter().map(line))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::golden::check;

    #[test]
    fn settings_are_shown_as_before() {
        let setting = |key: &str, value: &str, origin, variable: Option<&str>| Setting {
            key: key.to_owned(),
            value: value.to_owned(),
            origin,
            variable: variable.map(str::to_owned),
            is_reloadable: key == "log-level",
        };
        let settings = [
            setting("log-level", "warn", "default", Some("EBLA_LOG")),
            setting("split-load", "7", "file", None),
            setting("zone", "", "unset", None),
        ];
        check("configuration", &render("ebla config show up", &settings));
    }
}
