//! A line plot as SVG text: numbers of servers on a linear axis, rates on a logarithmic one.
//!
//! On a logarithmic axis lines of very different rates fit into one picture, and all that grow equally well are parallel. A
//! dashed line shows a growth that is proportional to the number of servers.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 480.0;
/// The area of the lines: left, right, top and bottom edge.
const LEFT: f64 = 75.0;
const RIGHT: f64 = 590.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 420.0;
/// The least distance of two labels.
const LABEL_GAP: f64 = 16.0;
/// Distinguishable also with the usual deficiencies of color vision (palette of Okabe and Ito, without yellow).
const COLORS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line<'a> {
    /// Its label: text without markup characters.
    pub name: &'a str,
    /// Pairs of a number of servers and a rate, ascending; rates that are not above 0 are omitted.
    pub points: Vec<(u64, f64)>,
}

/// A line with its color, and without the points that have no place.
struct Curve<'a> {
    name: &'a str,
    color: &'static str,
    points: Vec<(u64, f64)>,
}

/// Maps numbers to places.
struct Scale {
    first: f64,
    last: f64,
    /// Exponents of 10.
    low: f64,
    high: f64,
}

impl Scale {
    #[expect(clippy::cast_precision_loss, reason = "numbers of servers are small")]
    fn new(points: &[(u64, f64)]) -> Self {
        let ends = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| (low.min(one), high.max(one)))
        };
        let (first, last) = ends(&mut points.iter().map(|(servers, _)| *servers as f64));
        let (low, high) = ends(&mut points.iter().map(|(_, rate)| *rate));
        let steps = steps(low.log10().floor(), high.log10().floor() + 1.0);
        // All rates are between the first and the last step.
        let low = steps.iter().copied().filter(|step| *step <= low).fold(f64::MIN_POSITIVE, f64::max);
        let high = steps.iter().copied().filter(|step| *step > high).fold(f64::MAX, f64::min);
        Self { first, last: last.max(first + 1.0), low: low.log10(), high: high.log10() }
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of servers are small")]
    fn x(&self, servers: u64) -> f64 {
        LEFT + (servers as f64 - self.first) / (self.last - self.first) * (RIGHT - LEFT)
    }

    fn y(&self, rate: f64) -> f64 {
        BOTTOM - (rate.log10() - self.low) / (self.high - self.low) * (BOTTOM - TOP)
    }

    /// The rates of grid lines.
    fn grid(&self) -> Vec<f64> {
        let is_inside = |rate: &f64| (self.low - 1e-9..=self.high + 1e-9).contains(&rate.log10());
        steps(self.low.floor(), self.high.ceil()).into_iter().filter(is_inside).collect()
    }
}

/// 1, 2 and 5 in each decade of these exponents of 10.
fn steps(first: f64, last: f64) -> Vec<f64> {
    let exponents = std::iter::successors(Some(first), |exponent| Some(exponent + 1.0));
    let exponents = exponents.take_while(|exponent| *exponent <= last);
    exponents.flat_map(|exponent| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powf(exponent))).collect()
}

/// The picture. Without any point it has a title only.
#[must_use]
pub fn svg(title: &str, x_label: &str, lines: &[Line<'_>]) -> String {
    let is_shown = |point: &&(u64, f64)| point.1 > 0.0 && point.1.is_finite();
    let curves = lines.iter().zip(COLORS.into_iter().cycle()).map(|(line, color)| Curve {
        name: line.name,
        color,
        points: line.points.iter().filter(is_shown).copied().collect(),
    });
    let curves: Vec<_> = curves.filter(|curve| !curve.points.is_empty()).collect();
    let all: Vec<_> = curves.iter().flat_map(|one| [one.points.clone(), proportional(&one.points)].concat()).collect();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"15\">{title}</text>\n"
    );
    if !all.is_empty() {
        let scale = Scale::new(&all);
        axes(&mut text, &scale, x_label, &all);
        curves.iter().for_each(|curve| draw(&mut text, &scale, curve));
        labels(&mut text, &scale, &curves);
    }
    text + "</svg>\n"
}

fn axes(text: &mut String, scale: &Scale, x_label: &str, all: &[(u64, f64)]) {
    for rate in scale.grid() {
        let (y, end) = (scale.y(rate), LEFT - 8.0);
        add(text, &format!("<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#ddd\"/>"));
        add(text, &format!("<text x=\"{end}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>", y + 4.0));
    }
    let mut servers: Vec<_> = all.iter().map(|(servers, _)| *servers).collect();
    servers.sort_unstable();
    servers.dedup();
    for servers in servers {
        let (x, y) = (scale.x(servers), BOTTOM + 20.0);
        add(text, &format!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{servers}</text>"));
    }
    let (middle, y) = (f64::midpoint(LEFT, RIGHT), BOTTOM + 42.0);
    add(text, &format!("<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">{x_label}</text>"));
}

/// The rates of a growth that is proportional to the number of servers, from the first point on.
#[expect(clippy::cast_precision_loss, reason = "numbers of servers are small")]
fn proportional(points: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let Some((first, rate)) = points.first() else { return Vec::new() };
    points.iter().map(|(servers, _)| (*servers, rate * *servers as f64 / *first as f64)).collect()
}

/// The measured points, and a dashed line of the proportional growth.
fn draw(text: &mut String, scale: &Scale, Curve { color, points, .. }: &Curve<'_>) {
    let place = |(servers, rate): (u64, f64)| format!("{:.1},{:.1}", scale.x(servers), scale.y(rate));
    let path = |points: &[(u64, f64)]| points.iter().copied().map(place).collect::<Vec<_>>().join(" ");
    let growth = path(&proportional(points));
    // Not a polyline, so that those are the measured lines.
    add(text, &format!("<path d=\"M{growth}\" fill=\"none\" stroke=\"{color}\" stroke-dasharray=\"2 4\"/>"));
    let measured = path(points);
    add(text, &format!("<polyline points=\"{measured}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>"));
    for (servers, rate) in points {
        let (x, y) = (scale.x(*servers), scale.y(*rate));
        add(text, &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{color}\"/>"));
    }
}

/// The names at the ends of their lines, moved down where they would overlap.
fn labels(text: &mut String, scale: &Scale, curves: &[Curve<'_>]) {
    let end = |curve: &Curve<'_>| curve.points.last().map(|(_, rate)| scale.y(*rate));
    let mut ends: Vec<_> = curves.iter().filter_map(|curve| Some((end(curve)?, curve.name, curve.color))).collect();
    ends.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut free = f64::NEG_INFINITY;
    for (y, name, color) in ends {
        let y = y.max(free);
        free = y + LABEL_GAP;
        let x = RIGHT + 10.0;
        add(text, &format!("<text x=\"{x}\" y=\"{:.1}\" fill=\"{color}\">{name}</text>", y + 4.0));
    }
}

fn add(text: &mut String, element: &str) {
    // Writing into a string does not fail.
    let _written = writeln!(text, "{element}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &'static str, points: &[(u64, f64)]) -> Line<'static> {
        Line { name, points: points.to_vec() }
    }

    #[test]
    fn points_are_placed_by_number_and_by_the_logarithm_of_the_rate() {
        let scale = Scale::new(&[(1, 150.0), (5, 9_000.0)]);
        assert_eq!((scale.x(1), scale.x(5)), (LEFT, RIGHT));
        assert_eq!((scale.y(100.0), scale.y(10_000.0)), (BOTTOM, TOP));
        assert_eq!(scale.y(1_000.0), f64::midpoint(TOP, BOTTOM));
        assert_eq!(
            scale.grid().iter().map(|rate| rate.round()).collect::<Vec<_>>(),
            [100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0]
        );
    }

    #[test]
    fn close_labels_do_not_overlap() {
        let text = svg("t", "x", &[line("one", &[(1, 100.0), (2, 200.0)]), line("two", &[(1, 101.0), (2, 201.0)])]);
        let place = |name: &str| {
            let label = text.lines().find(|line| line.ends_with(&format!(">{name}</text>"))).unwrap();
            label.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!((place("one") - place("two")).abs() >= LABEL_GAP - 0.1);
    }

    #[test]
    fn rates_without_a_logarithm_and_empty_lines_are_omitted() {
        let text = svg("t", "x", &[line("one", &[(1, 0.0), (2, f64::NAN)]), line("two", &[(3, 10.0)])]);
        assert_eq!((text.matches("<polyline").count(), text.matches("<circle").count()), (1, 1));
        assert!(!text.contains("NaN") && !text.contains(">one<"));
        assert!(svg("t", "x", &[]).ends_with("</svg>\n"));
    }
}
