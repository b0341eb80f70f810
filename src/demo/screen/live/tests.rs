use super::*;
use crate::demo::ledger::Totals;
use crate::demo::probe::{Observation, RelayStatus};
use crate::demo::view::Quantiles;
use expect_test::expect;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// A run in its twelfth second, killed once.
pub(in crate::demo) fn view() -> ScreenView {
    let quantiles = |p50, p99| Quantiles {
        p50: Some(Duration::from_micros(p50)),
        p99: Some(Duration::from_micros(p99)),
    };
    let status = RelayStatus {
        state: "streaming".to_owned(),
        reason: None,
        in_flight_events: 2,
        lag_seconds: 0.0,
        lag_bytes: 1_208,
    };
    ScreenView {
        phase: Phase::Writing,
        elapsed: Duration::from_secs(12),
        limit: Some(Duration::from_secs(15)),
        written: 498.2,
        delivered: 497.0,
        acknowledged: quantiles(1_900, 7_400),
        consumed: quantiles(4_100, 11_000),
        totals: Totals { committed: 5_981, delivered: 5_979, outstanding: 2, ..Totals::default() },
        look: Observation {
            status: Some(status),
            memory: Some(23_000_000),
            memory_peak: Some(25_000_000),
            ..Observation::default()
        },
        breaking: None,
        broken: 1,
        planned: 2,
        chaos: false,
        trouble: None,
    }
}

fn screen(width: u16, height: u16, color: bool) -> Terminal<TestBackend> {
    screen_of(&view(), width, height, color)
}

fn screen_of(view: &ScreenView, width: u16, height: u16, color: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let parts = [("database", "PostgreSQL 15.18, temporary"), ("broker", "a mock at 127.0.0.1:1")];
    let parts = parts.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let points: VecDeque<Point> = (0..48)
        .map(|at| {
            let killed = (20..24).contains(&at);
            let latency = (!killed).then_some(2.0);
            Point {
                written: 500.0,
                delivered: if killed { 0.0 } else { 500.0 },
                p50: latency,
                p99: latency.map(|latency| latency * 4.0),
            }
        })
        .collect();
    terminal.draw(|frame| render(frame, Paint { color }, &parts, view, &points)).unwrap();
    terminal
}

#[test]
fn the_screen_fits_80_by_24() {
    expect![[r#"
        " postrider demo   ● streaming   00:12 of 00:15                                  "
        " database PostgreSQL 15.18, temporary                                           "
        " broker   a mock at 127.0.0.1:1                                                 "
        "╭ events/s  written 500  read 500 ─────╮╭ commit→acked  p99 8.0 ms  p50 2.0 ms ╮"
        "│ 1,000│                               ││ 100 ms│                              │"
        "│      │                               ││       │                              │"
        "│      │                               ││       │                              │"
        "│      │                               ││       │                              │"
        "│      │                               ││       │                              │"
        "│ 500  │⠉⠉⠉⠉⠉⠉⠉⠉⠉⢹⠉⠉⡏⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉       ││ 10 ms │⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒       │"
        "│      │         ⢸  ⡇                  ││       │                              │"
        "│      │         ⠘⡄⢠⠃                  ││       │                              │"
        "│      │          ⡇⢸                   ││       │⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒       │"
        "│ 0    │          ⣇⣸                   ││ 1.0 ms│                              │"
        "╰──────────────────────────────────────╯╰──────────────────────────────────────╯"
        "╭ relay ───────────────────────────────╮╭ ledger ──────────────────────────────╮"
        "│ acknowledged p50 1.9 ms  p99 7.4 ms  ││ committed    5,981                   │"
        "│ consumed     p50 4.1 ms  p99 11 ms   ││ delivered    5,979                   │"
        "│ lag          0.0 s, 1.2 kB of WAL    ││ outstanding  2                       │"
        "│ in flight    2                       ││ out of order 0                       │"
        "│ memory       23 MB (peak 25 MB)      ││ invented     0                       │"
        "│ kill -9      1 of 2                  ││ duplicated   0                       │"
        "╰──────────────────────────────────────╯╰──────────────────────────────────────╯"
        " q or Ctrl-C: stop writing, deliver the rest, print the ledger                  "
    "#]]
    .assert_eq(&screen(80, 24, true).backend().to_string());
}

#[test]
fn what_is_broken_at_the_moment_stands_at_the_foot() {
    let breaking = Some(crate::demo::chaos::FailureKind::FreezeBroker);
    let chaos = ScreenView { chaos: true, breaking, broken: 2, planned: 3, ..view() };
    let text = screen_of(&chaos, 80, 24, false).backend().to_string();
    assert!(text.contains(" chaos: broker frozen for 4 s "), "{text}");
    assert!(text.contains("broken       2 times (--chaos)"), "{text}");
}

#[test]
fn a_small_terminal_is_no_panic() {
    for (width, height) in [(1, 1), (20, 5), (40, 12), (300, 100)] {
        screen(width, height, false);
    }
}

#[test]
fn without_colours_there_is_none() {
    let cells = |color| screen(80, 24, color).backend().buffer().content.clone();
    assert!(cells(false).iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert!(cells(true).iter().any(|cell| cell.fg == Color::Green));
}
