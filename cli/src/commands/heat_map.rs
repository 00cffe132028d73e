//! The option of servers and masters that switches key heat on and off.

use ebla_model::heat::HeatOption;
use ebla_runtime::units::HumanDuration;

/// Whether it is collected which keys of tables are used.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct HeatMapArgument {
    /// Whether it is collected which keys of tables are used, for `ebla table hot` and the console: on, off, or the length of a window
    /// instead of a minute; the same for all masters and tablet servers
    #[arg(long, value_name = "on|off", env = "EBLA_HEAT_MAP", value_parser = parse, default_value = "on")]
    pub heat_map: HeatOption,
}

fn parse(text: &str) -> Result<HeatOption, String> {
    match text {
        "on" => Ok(HeatOption::ON),
        "off" => Ok(HeatOption::Off),
        length => {
            let length = length.parse::<HumanDuration>().map_err(|_error| "expected on or off".to_owned())?.get();
            if length < HeatOption::WINDOW_MIN || length.subsec_micros() % 1_000 != 0 {
                return Err("the length of a window is a whole number of milliseconds, at least 100ms".to_owned());
            }
            Ok(HeatOption::Every(length))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_is_on_or_off_or_has_another_window() {
        assert_eq!((parse("on"), parse("off")), (Ok(HeatOption::ON), Ok(HeatOption::Off)));
        assert_eq!(parse("1s"), Ok(HeatOption::Every(Duration::from_secs(1))));
        for wrong in ["", "yes", "10ms", "100100us", "0s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
