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

/// The time axis is at least 15 seconds wide; from then on the charts show all that is kept.
const POINTS_MIN: usize = 60;

type Points = Vec<(f64, f64)>;

/// Events a second: written, and read.
pub(super) fn rates(frame: &mut Frame<'_>, area: Rect, paint: Paint, points: &VecDeque<Point>) {
    let series = |value: fn(&Point) -> f64| -> Points {
        places(points).map(|(x, point)| (x, value(point))).collect()
    };
    let (written, read) = (series(|point| point.written), series(|point| point.delivered));
    let last = points.back().copied().unwrap_or_default();
    let title = [
        ("written", words::rate(last.written), Color::Blue),
        ("read", words::rate(last.delivered), Color::Green),
    ];
    let labels = |top: f64| words::rate(top);
    let lines = [(written, Color::Blue), (read, Color::Green)];
    draw(frame, area, paint, (points.len(), "events/s", &title), &lines, &labels);
}

/// Commit to acknowledgement in milliseconds.
pub(super) fn latencies(frame: &mut Frame<'_>, area: Rect, paint: Paint, points: &VecDeque<Point>) {
    let series = |value: fn(&Point) -> Option<f64>| -> Points {
        places(points).filter_map(|(x, point)| Some((x, value(point)?))).collect()
    };
    let (p50, p99) = (series(|point| point.p50), series(|point| point.p99));
    let last = points.back().copied().unwrap_or_default();
    let title =
        [("p50", millis(last.p50), Color::Green), ("p99", millis(last.p99), Color::Magenta)];
    let labels = |top: f64| millis(Some(top));
    let lines = [(p99, Color::Magenta), (p50, Color::Green)];
    draw(frame, area, paint, (points.len(), "commit→acked", &title), &lines, &labels);
}

fn millis(value: Option<f64>) -> String {
    words::duration(value.map(|millis| Duration::from_secs_f64(millis / 1000.0)))
}

/// Each point with its place on the time axis.
fn places(points: &VecDeque<Point>) -> impl Iterator<Item = (f64, &Point)> {
    points.iter().enumerate().map(|(at, point)| (real(at as u64), point))
}

fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    paint: Paint,
    (width, name, figures): (usize, &str, &[(&str, String, Color)]),
    lines: &[(Points, Color)],
    label: &dyn Fn(f64) -> String,
) {
    let mut title = vec![Span::styled(format!(" {name} "), STRONG)];
    for (name, value, color) in figures {
        title.push(Span::styled(format!(" {name} "), paint.dim()));
        title.push(Span::styled(format!("{value} "), paint.fg(*color).patch(STRONG)));
    }
    let top = lines.iter().flat_map(|(points, _)| points).map(|(_, y)| *y).fold(0.0, f64::max);
    let top = round_up(top);
    let data = lines.iter().map(|(points, color)| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(paint.fg(*color))
            .data(points)
    });
    let bounds = [0.0, real(width.max(POINTS_MIN) as u64 - 1)];
    let y_labels = ["0".to_owned(), label(top / 2.0), label(top)];
    let chart = Chart::new(data.collect())
        .block(paint.frame().title(Line::from(title)))
        .x_axis(Axis::default().bounds(bounds).style(paint.dim()))
        .y_axis(Axis::default().bounds([0.0, top]).labels(y_labels).style(paint.dim()))
        .legend_position(None);
    frame.render_widget(chart, area);
}

/// The next 1, 2, 5 times a power of ten: an axis that does not twitch.
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
