//! Plain SVG: bars, and curves on logarithmic axes.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const COLORS: [&str; 6] = ["#7f8c8d", "#2e86c1", "#1b4f72", "#ca6f1e", "#8e44ad", "#27ae60"];

fn open(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"15\">{title}</text>\n"
    )
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>")
        .expect("a string");
}

/// One bar per line, from zero.
pub(crate) fn bars(title: &str, bars: &[(String, f64)]) -> String {
    let height = 44.0 + 34.0 * bars.len() as f64;
    let mut svg = open(title, height);
    let most = bars.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    for (index, (label, value)) in bars.iter().enumerate() {
        let y = 36.0 + 34.0 * index as f64;
        let width = value / most * 470.0;
        let color = COLORS[index % COLORS.len()];
        text(&mut svg, (190.0, y + 17.0), "end", label);
        writeln!(
            svg,
            "<rect x=\"200\" y=\"{y}\" width=\"{width:.1}\" height=\"24\" fill=\"{color}\"/>"
        )
        .expect("a string");
        text(&mut svg, (206.0 + width, y + 17.0), "start", &crate::phases::thousands(*value));
    }
    svg + "</svg>\n"
}

/// Curves over time, the values on a logarithmic axis.
pub(crate) fn curves(title: &str, unit: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let most_x = points(curves).map(|(x, _)| x).fold(1.0, f64::max);
    let ticks: Vec<(f64, String)> = (0..=4)
        .map(|part| f64::from(part) / 4.0)
        .map(|part| (part, format!("{:.0} {unit}", part * most_x)))
        .collect();
    let scaled: Vec<(String, Vec<(f64, f64)>)> = curves
        .iter()
        .map(|(label, points)| {
            (label.clone(), points.iter().map(|(x, y)| (x / most_x, *y)).collect())
        })
        .collect();
    lines(title, &ticks, &scaled)
}

/// Values at named positions, on a logarithmic axis.
pub(crate) fn steps(title: &str, places: &[&str], curves: &[(String, Vec<f64>)]) -> String {
    let last = (places.len() - 1) as f64;
    let place = |index: usize| index as f64 / last;
    let ticks: Vec<(f64, String)> =
        places.iter().enumerate().map(|(index, name)| (place(index), (*name).to_owned())).collect();
    let scaled: Vec<(String, Vec<(f64, f64)>)> = curves
        .iter()
        .map(|(label, values)| {
            (
                label.clone(),
                values.iter().enumerate().map(|(index, y)| (place(index), *y)).collect(),
            )
        })
        .collect();
    lines(title, &ticks, &scaled)
}

fn points(curves: &[(String, Vec<(f64, f64)>)]) -> impl Iterator<Item = (f64, f64)> + use<'_> {
    curves.iter().flat_map(|(_, points)| points.iter().copied())
}

/// `x` is from 0 to 1 already.
fn lines(title: &str, ticks: &[(f64, String)], curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let (left, top, wide, tall) = (60.0, 40.0, WIDTH - 90.0, 260.0);
    let mut svg = open(title, 380.0);
    let positive = || points(curves).map(|(_, y)| y).filter(|y| *y > 0.0);
    let low = positive().fold(f64::INFINITY, f64::min).min(1e6).log10().floor();
    let high = positive().fold(0.0, f64::max).max(1e-3).log10().ceil().max(low + 1.0);
    let y_of =
        |value: f64| top + tall - (value.max(1e-9).log10().max(low) - low) / (high - low) * tall;
    let mut power = low;
    while power <= high {
        let y = y_of(10_f64.powf(power));
        writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            left + wide
        )
        .expect("a string");
        text(&mut svg, (left - 6.0, y + 4.0), "end", &format!("{}", 10_f64.powf(power)));
        power += 1.0;
    }
    for (x, label) in ticks {
        text(&mut svg, (left + x * wide, top + tall + 20.0), "middle", label);
    }
    for (index, (label, points)) in curves.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let path: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", left + x * wide, y_of(*y))).collect();
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            path.join(" ")
        )
        .expect("a string");
        let x = left + 172.0 * (index % 4) as f64;
        let y = 348.0 + 20.0 * (index / 4) as f64;
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{color}\"/>",
            y - 10.0
        )
        .expect("a string");
        text(&mut svg, (x + 17.0, y), "start", label);
    }
    svg + "</svg>\n"
}
