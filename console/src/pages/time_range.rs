//! The range of time that pages share: the heat map, events and slow operations. Pure.
//!
//! It is the parameter `time` of the address, so a page can be loaded again and sent to others. Every link of a page keeps it.

use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::time::Micros;

use crate::html::{Element, element};
use crate::request::PageRequest;

/// The parameter with its name.
pub(crate) const PARAMETER: &str = "time";
/// The ranges: a name, and how far back.
const RANGES: [TimeRange; 5] = [
    TimeRange { name: "15m", length: Duration::from_secs(15 * 60) },
    TimeRange::HOUR,
    TimeRange { name: "6h", length: Duration::from_secs(6 * 3_600) },
    TimeRange { name: "4d", length: Duration::from_secs(4 * 24 * 3_600) },
    TimeRange { name: "28d", length: Duration::from_secs(28 * 24 * 3_600) },
];

/// A range of time that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeRange {
    /// Its name in addresses, and in options of commands.
    pub(crate) name: &'static str,
    length: Duration,
}

impl TimeRange {
    /// The last hour.
    pub(crate) const HOUR: Self = Self { name: "1h", length: Duration::from_secs(3_600) };

    /// The range that a request names; `None`: none.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown name.
    pub(crate) fn of(request: &PageRequest) -> Result<Option<Self>, Error> {
        let Some(wanted) = request.get(PARAMETER) else { return Ok(None) };
        let unknown = || {
            let names = RANGES.map(|range| range.name).join(", ");
            Error::invalid(format!("unknown time: expected one of {names}"))
        };
        RANGES.into_iter().find(|range| range.name == wanted).map(Some).ok_or_else(unknown)
    }

    /// Where the range begins.
    pub(crate) fn begins(self, now: Micros) -> Micros {
        now.minus(self.length)
    }
}

/// The field of a form. `all`: what it says for no range, if the page has such a choice.
pub(crate) fn field(chosen: Option<TimeRange>, all: Option<&'static str>) -> Element {
    let option = |value: &'static str, shown: &'static str, is_chosen: bool| {
        let option = element("option").attr("value", value).text(shown);
        if is_chosen { option.flag("selected") } else { option }
    };
    let ranges = RANGES.map(|range| option(range.name, range.name, chosen == Some(range)));
    let all = all.map(|all| option("", all, chosen.is_none()));
    let select = element("select").attr("name", PARAMETER).test_id("time-range").children(all).children(ranges);
    element("label").text("Time").child(select)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::Html;

    fn of(target: &str) -> Result<Option<TimeRange>, Error> {
        TimeRange::of(&PageRequest::parse(target, "").unwrap())
    }

    #[test]
    fn a_range_has_a_known_name() {
        assert_eq!(of("/events"), Ok(None));
        assert_eq!(of("/events?time="), Ok(None));
        assert_eq!(of("/events?time=1h"), Ok(Some(TimeRange::HOUR)));
        assert!(of("/events?time=2h").is_err());
        let day = of("/?time=4d").unwrap().unwrap();
        assert_eq!(day.begins(Micros::new(5 * 86_400_000_000)), Micros::new(86_400_000_000));
        for range in RANGES {
            assert_eq!(of(&format!("/?time={}", range.name)), Ok(Some(range)));
        }
    }

    #[test]
    fn the_field_shows_the_choice() {
        let shown = |chosen, all| Html::from(field(chosen, all)).as_str().to_owned();
        assert!(shown(Some(TimeRange::HOUR), None).contains("<option value=\"1h\" selected>"));
        let all = shown(None, Some("all"));
        assert!(all.contains("<option value=\"\" selected>all</option>") && all.matches("selected").count() == 1);
        assert!(!shown(Some(TimeRange::HOUR), Some("all")).contains("<option value=\"\" selected>"));
    }
}
