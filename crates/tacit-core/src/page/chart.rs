//! Draws charts as SVG.
//!
//! The colours are CSS variables, which the HTML page around the chart defines. Axes begin at zero,
//! and the vertical axis ends at a round number.

use std::fmt::Write;

use super::markup::escaped;
use super::number::{grouped, number};
use crate::statistics::Point;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 316.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 44.0;
/// The number of colours that the page defines. Further series use the colours again.
const COLOURS: usize = 4;
/// The space for the names of bars, for their values, and between two bars.
const BARS_LEFT: f64 = 150.0;
const BARS_RIGHT: f64 = 70.0;
const BARS_TOP: f64 = 28.0;
const BAR_STEP: f64 = 21.0;
/// The approximate number of grid lines.
const TICKS: f64 = 5.0;

/// Points in a plane, in one or more series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// The points.
    pub series: Vec<Series>,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesMark {
    /// Each point is connected with the next one.
    Line,
    /// Separate points.
    Dots,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub mark: SeriesMark,
    /// Its points.
    pub points: Vec<Point>,
}

/// A bar chart of named values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// The title.
    pub title: String,
    /// The unit of the values.
    pub unit: String,
    /// The bars from the top.
    pub bars: Vec<Bar>,
}

/// One named value.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its label.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its colour, by number.
    pub colour: usize,
}

impl Series {
    /// A series by its name.
    #[must_use]
    pub fn new(name: &str, mark: SeriesMark, points: Vec<Point>) -> Self {
        Self { name: name.to_owned(), mark, points }
    }
}

impl Chart {
    /// Whether there is too little to draw.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.len() < 2)
    }

    /// Draws the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let right = points().map(|point| point.x).fold(0.0, f64::max);
        let up = points().map(|point| point.y).fold(0.0, f64::max);
        let x_step = step(right);
        let y_step = step(up);
        // The vertical axis ends at the next grid line; the horizontal axis ends at the last point.
        let x_end = if right > 0.0 { right } else { x_step };
        let y_end = (up / y_step).ceil().max(1.0) * y_step;
        let axes = Axes { x_end, y_end };
        let title = escaped(&self.title);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"16\">{title}</text>\n"
        );
        grid(&mut out, &axes, x_step, y_step);
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" class=\"end\">{}</text>\n<text x=\"8\" y=\"{}\">{}</text>\n",
            WIDTH - RIGHT,
            HEIGHT - 8.0,
            escaped(&self.x),
            TOP - 14.0,
            escaped(&self.y)
        );
        for (number, series) in self.series.iter().enumerate() {
            series.draw(&mut out, &axes, number % COLOURS);
        }
        self.legend(&mut out);
        out.push_str("</svg>\n");
        out
    }

    /// Writes the names of the series; the first is leftmost.
    fn legend(&self, out: &mut String) {
        let mut right = WIDTH - RIGHT;
        for (number, series) in self.series.iter().enumerate().rev() {
            let _ = writeln!(
                out,
                "<text class=\"end s{} name\" x=\"{right}\" y=\"16\">{}</text>",
                number % COLOURS,
                escaped(&series.name)
            );
            // The width of text is unknown. This is the approximate width of a letter.
            right -= 7.0 * series.name.chars().count() as f64 + 18.0;
        }
    }
}

impl Series {
    fn draw(&self, out: &mut String, axes: &Axes, colour: usize) {
        let points = self.points.iter().map(|point| axes.of(*point));
        match self.mark {
            SeriesMark::Line => {
                let pairs: Vec<_> = points.map(|Point { x, y }| format!("{x:.1},{y:.1}")).collect();
                let line = pairs.join(" ");
                let _ = writeln!(out, "<polyline class=\"s{colour}\" points=\"{line}\"/>");
            }
            SeriesMark::Dots => points.for_each(|Point { x, y }| {
                let _ = writeln!(
                    out,
                    "<circle class=\"s{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
                );
            }),
        }
    }
}

impl Bars {
    /// Draws the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let values = self.bars.iter().map(|bar| bar.value).filter(|value| value.is_finite());
        let largest = values.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let height = BARS_TOP + BAR_STEP * self.bars.len() as f64 + 6.0;
        let title = escaped(&self.title);
        let unit = escaped(&self.unit);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
             <text class=\"title\" x=\"0\" y=\"16\">{title}</text>\n\
             <text class=\"end\" x=\"{}\" y=\"16\">{unit}</text>\n",
            WIDTH - RIGHT
        );
        for (row, bar) in self.bars.iter().enumerate() {
            let y = BARS_TOP + BAR_STEP * row as f64;
            let width = (bar.value / largest).clamp(0.0, 1.0) * (WIDTH - BARS_LEFT - BARS_RIGHT);
            let _ = writeln!(
                out,
                "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
                 <rect class=\"s{}\" x=\"{BARS_LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                 height=\"{}\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                BARS_LEFT - 8.0,
                y + 12.0,
                escaped(&bar.name),
                bar.colour % COLOURS,
                BAR_STEP - 5.0,
                BARS_LEFT + width + 6.0,
                y + 12.0,
                number(bar.value)
            );
        }
        out.push_str("</svg>\n");
        out
    }
}

/// The position of points in the picture.
struct Axes {
    x_end: f64,
    y_end: f64,
}

impl Axes {
    /// Returns the coordinates from the upper left corner, as in SVG.
    fn of(&self, point: Point) -> Point {
        let share = |value: f64, end: f64| (value / end).clamp(0.0, 1.0);
        Point {
            x: LEFT + share(point.x, self.x_end) * (WIDTH - LEFT - RIGHT),
            y: HEIGHT - BOTTOM - share(point.y, self.y_end) * (HEIGHT - TOP - BOTTOM),
        }
    }
}

fn grid(out: &mut String, axes: &Axes, x_step: f64, y_step: f64) {
    let Point { x: left, y: bottom } = axes.of(Point { x: 0.0, y: 0.0 });
    let Point { x: right, y: top } = axes.of(Point { x: axes.x_end, y: axes.y_end });
    for at in multiples(y_step, axes.y_end) {
        let Point { y, .. } = axes.of(Point { x: 0.0, y: at });
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\n\
             <text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>\n",
            left - 6.0,
            y + 4.0,
            tick(at, y_step)
        );
    }
    for at in multiples(x_step, axes.x_end) {
        let Point { x, .. } = axes.of(Point { x: at, y: 0.0 });
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\n\
             <text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{}</text>\n",
            bottom + 16.0,
            tick(at, x_step)
        );
    }
}

fn multiples(step: f64, end: f64) -> impl Iterator<Item = f64> {
    (0..=10).map(move |count| f64::from(count) * step).take_while(move |at| *at <= end * 1.001)
}

/// Returns the distance between grid lines: 1, 2 or 5 times a power of ten.
fn step(end: f64) -> f64 {
    if end <= 0.0 || !end.is_finite() {
        return 1.0;
    }
    let size = 10_f64.powf((end / TICKS).log10().floor());
    let fits = |step: &f64| end / (step * size) <= TICKS;
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * size
}

/// Formats a multiple of a step, with as many digits as the step needs.
fn tick(at: f64, step: f64) -> String {
    if step >= 1.0 {
        return grouped(at);
    }
    let digits = (1..9).find(|digits| step * 10_f64.powi(*digits) >= 0.999).unwrap_or(9);
    format!("{at:.*}", usize::try_from(digits).unwrap_or(9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_lines_are_round_and_few() {
        for (end, wanted) in [(1.0, 0.2), (9.0, 2.0), (9000.0, 2000.0), (100.0, 20.0), (0.07, 0.02)]
        {
            let found = step(end);
            assert!((found / wanted - 1.0).abs() < 1e-9, "{end}: {found}");
            assert!(multiples(found, end).count() <= 6);
        }
        assert_eq!(step(0.0), 1.0);
    }

    #[test]
    fn grid_lines_have_the_digits_that_tell_them_apart() {
        for (at, step, wanted) in
            [(40.0, 20.0, "40"), (1500.0, 500.0, "1,500"), (0.4, 0.2, "0.4"), (0.06, 0.02, "0.06")]
        {
            assert_eq!(tick(at, step), wanted);
        }
    }

    #[test]
    fn the_largest_point_is_inside_and_zero_is_the_corner() {
        let axes = Axes { x_end: 10.0, y_end: 100.0 };
        let of = |x, y| axes.of(Point { x, y });
        assert_eq!(of(0.0, 0.0), Point { x: LEFT, y: HEIGHT - BOTTOM });
        assert_eq!(of(10.0, 100.0), Point { x: WIDTH - RIGHT, y: TOP });
        assert_eq!(of(20.0, -5.0), Point { x: WIDTH - RIGHT, y: HEIGHT - BOTTOM });
    }

    #[test]
    fn names_cannot_break_out_of_the_picture() {
        let points = vec![Point { x: 0.0, y: 1.0 }, Point { x: 1.0, y: 2.0 }];
        let chart = Chart {
            title: "<script>".to_owned(),
            series: vec![Series::new("a\"&b", SeriesMark::Dots, points)],
            ..Chart::default()
        };
        let svg = chart.svg();
        assert!(!svg.contains("<script") && svg.contains("a&quot;&amp;b"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn names_stand_in_the_order_of_their_series() {
        let series =
            ["first", "second"].map(|name| Series::new(name, SeriesMark::Line, Vec::new()));
        let svg = Chart { series: series.to_vec(), ..Chart::default() }.svg();
        let at = |name: &str| {
            let before = svg.split_once(&format!(">{name}<")).unwrap().0;
            let x = before.rsplit_once(" x=\"").unwrap().1.split_once('"').unwrap().0;
            x.parse::<f64>().unwrap()
        };
        assert!(at("first") < at("second"), "{svg}");
    }

    #[test]
    fn the_longest_bar_fills_the_picture_and_the_others_are_to_scale() {
        let bar = |name: &str, value| Bar { name: name.to_owned(), value, colour: 0 };
        let bars = vec![bar("a<b", 50.0), bar("c", 100.0), bar("none", f64::NAN)];
        let svg = Bars { title: "t".to_owned(), unit: "us".to_owned(), bars }.svg();
        assert!(svg.contains("width=\"250.0\"") && svg.contains("width=\"500.0\""), "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"), "{svg}");
    }
}
