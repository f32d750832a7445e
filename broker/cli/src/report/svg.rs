// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shapes, scales and escaping for pictures in a page. Pure.
//!
//! Every text that goes into the page passes [`escape`].
#![forbid(unsafe_code)]

use std::fmt::Write;

/// A text as HTML and SVG take it, in elements and in quoted attributes. Control characters, and
/// those that turn the direction of writing, become blanks.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter if letter.is_control() || ('\u{2028}'..='\u{202e}').contains(&letter) => escaped.push(' '),
            '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// A coordinate with two decimal places, without trailing zeros.
pub(super) fn at(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.2}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" {
        "0".to_string()
    } else {
        short.to_string()
    }
}

/// A linear scale.
#[derive(Debug, Clone, Copy)]
pub struct AxisScale {
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
}

impl AxisScale {
    /// A scale that maps values `from` to `to` to positions `begin` to `end`.
    pub fn new((from, to): (f64, f64), (begin, end): (f64, f64)) -> AxisScale {
        // Avoids a division by a scale of length 0.
        let to = if to > from { to } else { from + 1.0 };
        AxisScale { from, to, begin, end }
    }

    /// Position of a value, limited to the scale.
    pub fn at(&self, value: f64) -> f64 {
        let part = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        self.begin + part * (self.end - self.begin)
    }

    /// About `count` round values within the scale.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        let raw = (self.to - self.from) / count.max(1) as f64;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| *step >= raw * 0.999).unwrap_or(power);
        self.steps(step)
    }

    /// Multiples of `step` within the scale.
    pub(super) fn steps(&self, step: f64) -> Vec<f64> {
        /// More than any axis has place for.
        const MOST: usize = 100;
        let first = (self.from / step - 1e-9).ceil();
        let ticks = (0..MOST).map(|number| (first + number as f64) * step);
        ticks.take_while(|tick| *tick <= self.to + step * 1e-9).collect()
    }
}

/// A picture.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// An empty one.
    pub(super) fn new(width: f64, height: f64) -> Svg {
        Svg {
            width,
            height,
            body: String::new(),
        }
    }

    /// A box of a CSS class, with a title for the pointer.
    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), title: &str) {
        let (x, y, width, height) = (at(x), at(y), at(width.max(0.0)), at(height.max(0.0)));
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}""#
        );
        self.end("rect", title);
    }

    /// A straight line.
    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let (x1, y1, x2, y2) = (at(x1), at(y1), at(x2), at(y2));
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        );
    }

    /// A line through points, or the area within them.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)], closed: bool, title: &str) {
        if points.is_empty() {
            return;
        }
        let mut way = String::new();
        for (number, (x, y)) in points.iter().enumerate() {
            let letter = if number == 0 { 'M' } else { 'L' };
            let _ = write!(way, "{letter}{} {}", at(*x), at(*y));
        }
        if closed {
            way.push('Z');
        }
        let _ = write!(self.body, r#"<path class="{class}" d="{way}""#);
        self.end("path", title);
    }

    /// A small triangle that points down to a place.
    pub(super) fn mark(&mut self, class: &str, (x, y): (f64, f64), title: &str) {
        let points = [(x, y), (x - 5.0, y - 9.0), (x + 5.0, y - 9.0)];
        self.path(class, &points, true, title);
    }

    /// A text. `anchor`: `start`, `middle` or `end`.
    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{}" y="{}" text-anchor="{anchor}">{}</text>"#,
            at(x),
            at(y),
            escape(text)
        );
    }

    fn end(&mut self, element: &str, title: &str) {
        match title {
            "" => self.body.push_str("/>"),
            title => {
                let _ = write!(self.body, "><title>{}</title></{element}>", escape(title));
            }
        }
    }

    /// The picture as an element of a page. `label`: what it shows, for those who do not see it.
    pub(super) fn into_element(self, label: &str) -> String {
        format!(
            r#"<div class="scroll"><svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg></div>"#,
            at(self.width),
            at(self.height),
            escape(label),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_people_say_ends_an_element_or_an_attribute() {
        let bad = "<script>alert('1')</script> & \"x\" \u{202e}\u{1b}[2J\n";
        let escaped = escape(bad);
        assert_eq!(
            escaped,
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot;   [2J "
        );
        let mut picture = Svg::new(10.0, 10.0);
        picture.text("x", (0.0, 0.0), "start", bad);
        picture.rect("y", (0.0, 0.0), (1.0, f64::NAN), bad);
        let element = picture.into_element(bad);
        assert!(!element.contains("<script") && !element.contains("'1'"), "{element}");
        assert!(element.contains(r#"height="0""#), "{element}");
    }

    #[test]
    fn ticks_are_round_and_within() {
        let scale = AxisScale::new((0.0, 0.034), (0.0, 100.0));
        let ticks: Vec<String> = scale.ticks(4).iter().map(|tick| format!("{tick:.3}")).collect();
        assert_eq!(ticks, ["0.000", "0.010", "0.020", "0.030"]);
        assert_eq!(scale.at(0.017), 50.0);
        assert_eq!((scale.at(-1.0), scale.at(9.0)), (0.0, 100.0));
        let none = AxisScale::new((5.0, 5.0), (0.0, 100.0));
        assert_eq!(none.at(5.0), 0.0);
        assert!(none.ticks(4).len() <= 6);
        assert_eq!(AxisScale::new((0.0, 1e12), (0.0, 1.0)).steps(1.0).len(), 100);
        assert_eq!(
            (at(1.50), at(-0.001), at(f64::INFINITY)),
            ("1.5".into(), "0".into(), "0".into())
        );
    }
}
