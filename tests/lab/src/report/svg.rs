//! Small plots: points and lines over two axes, no more.
#![forbid(unsafe_code)]

use std::fmt::Write;

/// Points of one name.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Joined by a line, in their order.
    pub(crate) line: bool,
}

/// A plot.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// The horizontal axis is logarithmic; what is not above 0 stands at its left end.
    pub(crate) log_x: bool,
    pub(crate) series: Vec<Series>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 48.0;
const COLOURS: [&str; 16] = [
    "#1b6ca8", "#c8553d", "#4a8f3c", "#8e5ea2", "#b8860b", "#3cbac8", "#777777", "#d1495b", "#0b3c5d", "#f0a202",
    "#7fb069", "#e07be0", "#5c4033", "#00635d", "#000000", "#b0b0b0",
];

/// Characters that mean something in SVG and HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

struct Axis {
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone, log: bool) -> Axis {
        let positive = values.clone().filter(|value| !log || *value > 0.0);
        let (from, to) = positive.fold((f64::MAX, f64::MIN), |(from, to), value| {
            (from.min(value), to.max(value))
        });
        if from > to {
            return Axis {
                from: if log { 1.0 } else { 0.0 },
                to: 10.0,
                log,
            };
        }
        if log {
            let (from, to) = (10f64.powf(from.log10().floor()), 10f64.powf(to.log10().ceil()));
            return Axis {
                from,
                to: to.max(from * 10.0),
                log,
            };
        }
        Axis {
            from: from.min(0.0),
            to: if to > 0.0 { to * 1.05 } else { 1.0 },
            log,
        }
    }

    fn part(&self, value: f64) -> f64 {
        if self.log {
            let value = value.max(self.from);
            return (value / self.from).log10() / (self.to / self.from).log10();
        }
        (value - self.from) / (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.to / self.from).log10().round() as i32;
            return (0..=decades).map(|decade| self.from * 10f64.powi(decade)).collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * magnitude)
            .into_iter()
            .find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|at| at as f64 * step).collect()
    }
}

fn label(value: f64) -> String {
    if value.abs() >= 1_000.0 {
        format!("{:.0}k", value / 1e3)
    } else if value.abs() >= 10.0 || value == value.round() {
        format!("{value:.0}")
    } else {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    }
}

impl Plot {
    /// As an SVG element.
    pub(crate) fn draw(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x = Axis::of(points().map(|point| point.0), self.log_x);
        let y = Axis::of(points().map(|point| point.1), false);
        let to_x = |value: f64| LEFT + x.part(value) * (WIDTH - LEFT - RIGHT);
        let to_y = |value: f64| HEIGHT - BOTTOM - y.part(value) * (HEIGHT - TOP - BOTTOM);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <text x=\"{LEFT}\" y=\"16\" font-size=\"13\" font-weight=\"bold\">{}</text>\n",
            escape(&self.title)
        );
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in x.ticks() {
            let at = to_x(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 15.0,
                label(tick)
            );
        }
        for tick in y.ticks() {
            let at = to_y(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                label(tick)
            );
        }
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            right - LEFT,
            bottom - TOP,
            (LEFT + right) / 2.0,
            HEIGHT - 12.0,
            escape(&self.x),
            (TOP + bottom) / 2.0,
            escape(&self.y)
        );
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let place = |point: &(f64, f64)| format!("{:.1},{:.1}", to_x(point.0), to_y(point.1));
            if series.line && series.points.len() > 1 {
                let path: Vec<String> = series.points.iter().map(place).collect();
                let _ = writeln!(
                    out,
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
                    path.join(" ")
                );
            }
            for point in &series.points {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.2\" fill=\"{colour}\" fill-opacity=\"0.75\"/>",
                    to_x(point.0),
                    to_y(point.1)
                );
            }
            let at = TOP + 12.0 + 17.0 * number as f64;
            let _ = writeln!(
                out,
                "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{}</text>",
                right + 14.0,
                at - 4.0,
                right + 24.0,
                at,
                escape(&series.name)
            );
        }
        out.push_str("</svg>\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_lies_inside_the_frame() {
        for log_x in [false, true] {
            let plot = Plot {
                title: "a < b".into(),
                x: "x".into(),
                y: "y".into(),
                log_x,
                series: vec![Series {
                    name: "s".into(),
                    points: vec![(0.0, 0.0), (0.3, 5.0), (7_000.0, 1.0)],
                    line: true,
                }],
            };
            let svg = plot.draw();
            assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
            let xs = svg.split("<circle cx=\"").skip(1).take(3);
            for x in xs.filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok()) {
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{x}");
            }
        }
    }

    #[test]
    fn nothing_to_plot_is_an_empty_plot() {
        let plot = Plot {
            title: String::new(),
            x: String::new(),
            y: String::new(),
            log_x: true,
            series: Vec::new(),
        };
        assert!(plot.draw().ends_with("</svg>\n"));
    }
}
