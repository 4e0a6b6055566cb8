//! Time against number of leaves and against size, both axes logarithmic.

use std::fmt::Write;

use crate::Result;
use crate::table::{Chart, Kind, Row, Table};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
/// Left, right, top, bottom.
const MARGIN: [f64; 4] = [70.0, 40.0, 40.0, 120.0];
const COLOURS: [&str; 6] = ["#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

pub(crate) fn render(table: &Table) -> Result<String> {
    let charts = [(Chart::Leaves, "leaves of 256 B"), (Chart::Bytes, "bytes, one leaf")];
    let charts = charts.map(|(chart, axis)| (axis, lines_of(table, chart)));
    let charts = charts.into_iter().filter(|(_, lines)| !lines.is_empty()).collect::<Vec<_>>();
    if charts.is_empty() {
        return Err("nothing to draw: none of the rows called sweep was run".into());
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        HEIGHT * charts.len() as f64
    );
    for (index, (axis, lines)) in charts.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", HEIGHT * index as f64);
        Frame::around(lines).draw(&mut svg, axis, lines);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// A way, and its points: how much, and microseconds.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

fn lines_of(table: &Table, chart: Chart) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in table.rows.iter().filter(|row| row.chart == Some(chart)) {
        for line in &row.lines {
            let Some(median) = line.median() else { continue };
            let name = match line.kind {
                Kind::Ours => format!("transship: {}", line.way),
                Kind::Rival | Kind::Limit => line.way.clone(),
            };
            let point = (amount(row, chart), median);
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name, points: vec![point] }),
            }
        }
    }
    curves
}

fn amount(row: &Row, chart: Chart) -> f64 {
    match chart {
        Chart::Leaves => row.leaves as f64,
        Chart::Bytes => row.bytes as f64,
    }
}

/// Powers of ten at the edges.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn around(curves: &[Curve]) -> Self {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        Self { x: decades(points().map(|point| point.0)), y: decades(points().map(|point| point.1)) }
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        let [left, right, top, bottom] = MARGIN;
        let across = (x.log10() - self.x.0) / (self.x.1 - self.x.0);
        let up = (y.log10() - self.y.0) / (self.y.1 - self.y.0);
        (left + across * (WIDTH - left - right), HEIGHT - bottom - up * (HEIGHT - top - bottom))
    }

    fn draw(&self, svg: &mut String, axis: &str, curves: &[Curve]) {
        self.draw_grid(svg, axis);
        for (index, (curve, colour)) in curves.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let points = curve.points.iter().map(|&(x, y)| self.place(x, y));
            let points = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
            let _ = writeln!(
                svg,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
            let y = HEIGHT - MARGIN[3] + 45.0 + 15.0 * index as f64;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{y}\" fill=\"{colour}\">{}</text>",
                MARGIN[0],
                escaped(&curve.name)
            );
        }
    }

    fn draw_grid(&self, svg: &mut String, axis: &str) {
        let mut rule = |(x1, y1): (f64, f64), (x2, y2): (f64, f64)| {
            let _ = writeln!(svg, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#ddd\"/>");
        };
        let (low, high) = (self.y, self.x);
        let ticks = |(from, to): (f64, f64)| (from as i32..=to as i32).map(|power| 10_f64.powi(power));
        ticks(self.x)
            .for_each(|x| rule(self.place(x, 10_f64.powf(low.0)), self.place(x, 10_f64.powf(low.1))));
        ticks(self.y)
            .for_each(|y| rule(self.place(10_f64.powf(high.0), y), self.place(10_f64.powf(high.1), y)));
        for x in ticks(self.x) {
            let (left, bottom) = self.place(x, 10_f64.powf(low.0));
            let _ = writeln!(
                svg,
                "<text x=\"{left:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>",
                bottom + 16.0
            );
        }
        for y in ticks(self.y) {
            let (left, middle) = self.place(10_f64.powf(high.0), y);
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{y}</text>",
                left - 6.0,
                middle + 4.0
            );
        }
        let _ = writeln!(svg, "<text x=\"{}\" y=\"24\">us, median, against {axis}</text>", MARGIN[0]);
    }
}

/// The powers of ten around all values, at least one apart.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let low = low.log10().floor();
    (low, high.log10().ceil().max(low + 1.0))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
