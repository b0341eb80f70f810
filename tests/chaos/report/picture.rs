//! The picture: faults by what they affect, the relays' states, and how many events were committed and not delivered.

use crate::plan::Lane;
use crate::run::{Outcome, Sample};
use std::fmt::Write as _;
use std::time::Duration;

const WIDTH: f64 = 1180.0;
/// Where the time axis begins, and how wide it is.
const LEFT: f64 = 90.0;
const SPAN: f64 = WIDTH - LEFT - 20.0;
const ROW: f64 = 20.0;
const LAG_HEIGHT: f64 = 130.0;
/// Ticks of the time axis at most.
const TICKS: u64 = 12;

/// The SVG, for light and dark pages.
pub(super) fn draw(outcome: &Outcome) -> String {
    let total = outcome.took.as_secs_f64().max(1.0);
    let x = |at: Duration| LEFT + SPAN * (at.as_secs_f64() / total).min(1.0);
    let mut body = String::new();
    let mut top = 30.0;
    for lane in Lane::ALL {
        row(&mut body, top, lane.words());
        for deed in outcome.deeds.iter().filter(|deed| deed.lane == lane) {
            let width = (x(deed.to) - x(deed.from)).max(2.0);
            bar(
                &mut body,
                (x(deed.from), top, width),
                colour_of(lane),
                &format!("{:.0} s: {}{}", deed.from.as_secs_f64(), deed.act.words(), deed.note),
            );
        }
        top += ROW;
    }
    top += 8.0;
    let relays = outcome.samples.first().map_or(0, |sample| sample.states.len());
    for relay in 0..relays {
        row(&mut body, top, &format!("relay {}", relay + 1));
        for (from, to, state) in bands(&outcome.samples, relay) {
            let words = if state.is_empty() { "no answer" } else { state };
            bar(&mut body, (x(from), top, x(to) - x(from) + 0.5), colour(state), words);
        }
        top += ROW;
    }
    legend(&mut body, top + 14.0);
    top += 34.0;
    lag(&mut body, outcome, top, x);
    top += LAG_HEIGHT;
    let minute = (outcome.took.as_secs() / TICKS).max(1).div_ceil(15) * 15;
    for tick in (0..=outcome.took.as_secs()).step_by(usize::try_from(minute).unwrap_or(60)) {
        let at = x(Duration::from_secs(tick));
        line(&mut body, (at, 26.0), (at, top), "#88888840");
        text(&mut body, at, top + 14.0, "middle", &format!("{}:{:02}", tick / 60, tick % 60));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"16\" font-size=\"13\" fill=\"#222\">{} faults, seed {}</text>\n{body}</svg>\n",
        top + 24.0,
        outcome.deeds.len(),
        outcome.seed,
    )
}

fn lag(body: &mut String, outcome: &Outcome, top: f64, x: impl Fn(Duration) -> f64) {
    let behind = |sample: &Sample| sample.committed.saturating_sub(sample.delivered);
    let most = outcome.samples.iter().map(behind).max().unwrap_or(0).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a picture")]
    let y = |events: usize| top + LAG_HEIGHT - (LAG_HEIGHT - 10.0) * events as f64 / most as f64;
    let mut points = format!("{:.1},{:.1}", LEFT, y(0));
    for sample in &outcome.samples {
        write!(points, " {:.1},{:.1}", x(sample.at), y(behind(sample)))
            .expect("a string takes all");
    }
    let last = outcome.samples.last().map_or(LEFT, |sample| x(sample.at));
    write!(points, " {last:.1},{:.1}", y(0)).expect("a string takes all");
    writeln!(body, "<polygon points=\"{points}\" fill=\"#4c78a8\" fill-opacity=\"0.55\"/>")
        .expect("a string takes all");
    line(body, (LEFT, y(0)), (LEFT + SPAN, y(0)), "#888");
    text(body, LEFT - 6.0, y(most) + 4.0, "end", &most.to_string());
    text(body, LEFT - 6.0, y(0), "end", "0");
    text(body, LEFT + 4.0, top + 2.0, "start", "events committed and not read by the consumer");
}

/// Intervals of the same state.
fn bands(samples: &[Sample], relay: usize) -> Vec<(Duration, Duration, &str)> {
    let mut bands: Vec<(Duration, Duration, &str)> = Vec::new();
    for sample in samples {
        let state = sample.states[relay].as_str();
        match bands.last_mut() {
            Some((_, to, last)) if *last == state => *to = sample.at,
            last => {
                if let Some((_, to, _)) = last {
                    *to = sample.at;
                }
                bands.push((sample.at, sample.at, state));
            }
        }
    }
    bands
}

const STATES: [(&str, &str); 8] = [
    ("streaming", "#59a14f"),
    ("catching_up", "#b6d7a8"),
    ("standing_by", "#bab0ac"),
    ("source_down", "#4e79a7"),
    ("broker_down", "#f28e2b"),
    ("draining", "#9c755f"),
    ("halted", "#e15759"),
    ("", "#222222"),
];

fn colour(state: &str) -> &'static str {
    STATES.iter().find(|(name, _)| *name == state).map_or("#eeca3b", |(_, colour)| colour)
}

const fn colour_of(lane: Lane) -> &'static str {
    match lane {
        Lane::Relays => "#e15759",
        Lane::Database => "#4e79a7",
        Lane::Brokers => "#f28e2b",
        Lane::Network => "#b07aa1",
        Lane::Data => "#9c755f",
    }
}

fn legend(body: &mut String, top: f64) {
    let mut left = LEFT;
    for (state, colour) in STATES {
        let words = if state.is_empty() { "no answer" } else { state };
        bar(body, (left, top - 12.0, 12.0), colour, words);
        text(body, left + 16.0, top, "start", words);
        left += 110.0;
    }
}

fn row(body: &mut String, top: f64, words: &str) {
    text(body, LEFT - 6.0, top + 13.0, "end", words);
    line(body, (LEFT, top + ROW - 2.0), (LEFT + SPAN, top + ROW - 2.0), "#88888840");
}

fn bar(body: &mut String, (left, top, width): (f64, f64, f64), colour: &str, title: &str) {
    writeln!(
        body,
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\">\
         <title>{title}</title></rect>",
        ROW - 4.0
    )
    .expect("a string takes all");
}

fn line(body: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let (from, to) =
        (format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\""), format!("x2=\"{x2:.1}\" y2=\"{y2:.1}\""));
    writeln!(body, "<line {from} {to} stroke=\"{colour}\"/>").expect("a string takes all");
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222\">{words}</text>"
    )
    .expect("a string takes all");
}
