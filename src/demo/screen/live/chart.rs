//! The two charts: rates, and latencies of the last minute.

use super::{Paint, STRONG};
use crate::demo::view::{Point, real};
use crate::demo::words;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType};
use std::collections::VecDeque;
use std::time::Duration;

/// The time axis is at least 15 seconds wide; after that the charts show every point that is kept.
const POINTS_MIN: usize = 60;

type Points = Vec<(f64, f64)>;

/// The title of a chart: its name and the newest figures.
struct Head<'h> {
    name: &'h str,
    figures: [(&'h str, String, Color); 2],
}

/// The y axis.
struct Scale {
    bounds: [f64; 2],
    labels: Vec<String>,
}

/// Events per second, written and read.
pub(super) fn rates(frame: &mut Frame<'_>, area: Rect, paint: Paint, points: &VecDeque<Point>) {
    let series = |value: fn(&Point) -> f64| -> Points {
        places(points).map(|(x, point)| (x, value(point))).collect()
    };
    let (written, read) = (series(|point| point.written), series(|point| point.delivered));
    let last = points.back().copied().unwrap_or_default();
    let figures = [
        ("written", words::rate(last.written), Color::Blue),
        ("read", words::rate(last.delivered), Color::Green),
    ];
    let top = round_up(highest(&[&written, &read]));
    let labels = vec!["0".to_owned(), words::rate(top / 2.0), words::rate(top)];
    let scale = Scale { bounds: [0.0, top], labels };
    let head = Head { name: "events/s", figures };
    draw(frame, area, paint, (&head, &scale), &[written, read]);
}

/// Commit to acknowledgement on a logarithmic axis, so that both the usual milliseconds and the second of a restart are
/// visible.
pub(super) fn latencies(frame: &mut Frame<'_>, area: Rect, paint: Paint, points: &VecDeque<Point>) {
    let series = |value: fn(&Point) -> Option<f64>| -> Points {
        let decades = |point: &Point| value(point).map(|millis| millis.max(0.1).log10());
        places(points).filter_map(|(x, point)| Some((x, decades(point)?))).collect()
    };
    let (p50, p99) = (series(|point| point.p50), series(|point| point.p99));
    let last = points.back().copied().unwrap_or_default();
    let figures =
        [("p99", millis(last.p99), Color::Magenta), ("p50", millis(last.p50), Color::Green)];
    // From 0.1 or 1 ms to 100 ms or more.
    let lowest = p50.iter().map(|(_, y)| *y).fold(0.0, f64::min).floor();
    let highest = highest(&[&p50, &p99]).ceil().max(2.0);
    let mut labels = Vec::new();
    let mut decade = lowest;
    while decade <= highest {
        labels.push(millis(Some(10f64.powf(decade))));
        decade += 1.0;
    }
    let scale = Scale { bounds: [lowest, highest], labels };
    let head = Head { name: "commit→acked", figures };
    draw(frame, area, paint, (&head, &scale), &[p99, p50]);
}

fn millis(value: Option<f64>) -> String {
    words::duration(value.map(|millis| Duration::from_secs_f64(millis / 1000.0)))
}

fn highest(lines: &[&Points]) -> f64 {
    lines.iter().flat_map(|points| points.iter()).map(|(_, y)| *y).fold(0.0, f64::max)
}

/// Each point with its position on the time axis.
fn places(points: &VecDeque<Point>) -> impl Iterator<Item = (f64, &Point)> {
    points.iter().enumerate().map(|(at, point)| (real(at as u64), point))
}

fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    paint: Paint,
    (head, scale): (&Head<'_>, &Scale),
    lines: &[Points; 2],
) {
    let mut title = vec![Span::styled(format!(" {} ", head.name), STRONG)];
    for (name, value, color) in &head.figures {
        title.push(Span::styled(format!(" {name} "), paint.dim()));
        title.push(Span::styled(format!("{value} "), paint.fg(*color).patch(STRONG)));
    }
    let data = lines.iter().zip(&head.figures).map(|(points, (_, _, color))| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(paint.fg(*color))
            .data(points)
    });
    let longest = lines.iter().map(Vec::len).max().unwrap_or_default();
    let bounds = [0.0, real(longest.max(POINTS_MIN) as u64 - 1)];
    let labels = scale.labels.clone();
    let chart = Chart::new(data.collect())
        .block(paint.frame().title(Line::from(title)))
        .x_axis(Axis::default().bounds(bounds).style(paint.dim()))
        .y_axis(Axis::default().bounds(scale.bounds).labels(labels).style(paint.dim()))
        .legend_position(None);
    frame.render_widget(chart, area);
}

/// The next 1, 2 or 5 times a power of ten, so that the axis does not change with every point.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= value * 1.02);
    step.unwrap_or(20.0) * power
}

#[cfg(test)]
mod tests {
    use super::round_up;

    #[test]
    fn axes_end_at_round_numbers() {
        let ends = [0.0, 0.9, 3.0, 480.0, 500.0, 990.0].map(round_up);
        assert_eq!(ends.map(|end| format!("{end:.0}")), ["1", "1", "5", "500", "1000", "2000"]);
    }
}
