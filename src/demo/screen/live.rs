//! The live screen: two charts, the state of the relay, and the ledger. For terminals of 80 by 24 and larger.

mod chart;

use crate::demo::view::{Meter, Phase, Point, ScreenView};
use crate::demo::words;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Padding, Paragraph, Wrap};
use ratatui::{DefaultTerminal, Frame};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// The live screen. The terminal is restored when the value is dropped, and by a hook before the message of a panic.
pub(in crate::demo) struct Live {
    terminal: DefaultTerminal,
    paint: Paint,
    parts: Vec<(String, String)>,
}

/// The style of emphasized text.
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// Styles, all plain without colours.
#[derive(Clone, Copy, Debug)]
struct Paint {
    color: bool,
}

impl Paint {
    fn fg(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    fn dim(self) -> Style {
        self.fg(Color::DarkGray)
    }

    fn block(self, title: &str) -> Block<'static> {
        self.frame().title(Span::styled(format!(" {title} "), STRONG))
    }

    fn frame(self) -> Block<'static> {
        Block::bordered()
            .border_type(BorderType::Rounded)
            .border_style(self.dim())
            .padding(Padding::horizontal(1))
    }
}

impl Live {
    pub(super) fn open(color: bool, parts: &[(&str, String)]) -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| drop(ratatui::try_restore()))?;
        let parts = parts.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect();
        Ok(Self { terminal, paint: Paint { color }, parts })
    }

    pub(super) fn draw(&mut self, view: &ScreenView, meter: &Meter) -> io::Result<()> {
        let Self { terminal, paint, parts } = self;
        terminal.draw(|frame| render(frame, *paint, parts, view, &meter.points)).map(|_| ())
    }

    pub(super) fn asked_to_stop() -> io::Result<bool> {
        let mut asked = false;
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                asked |= matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
                asked |= control && matches!(key.code, KeyCode::Char('c' | 'd'));
            }
        }
        Ok(asked)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // A terminal that was closed needs no restoring.
        drop(ratatui::try_restore());
    }
}

fn render(
    frame: &mut Frame<'_>,
    paint: Paint,
    parts: &[(String, String)],
    view: &ScreenView,
    points: &VecDeque<Point>,
) {
    let rows = [
        Constraint::Length(1),
        Constraint::Length(u16::try_from(parts.len()).unwrap_or(0)),
        Constraint::Min(6),
        Constraint::Length(8),
        Constraint::Length(1),
    ];
    let [head, about, charts, figures, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(headline(paint, view), head);
    frame.render_widget(Paragraph::new(about_lines(paint, parts)), about);
    let halves = [Constraint::Percentage(50), Constraint::Percentage(50)];
    let [left, right] = Layout::horizontal(halves).areas(charts);
    chart::rates(frame, left, paint, points);
    chart::latencies(frame, right, paint, points);
    let [left, right] = Layout::horizontal(halves).areas(figures);
    relay(frame, left, paint, view);
    ledger(frame, right, paint, view);
    frame.render_widget(footer(paint, view), foot);
}

fn headline(paint: Paint, view: &ScreenView) -> Paragraph<'static> {
    let state = view.state().to_owned();
    let good = state == "streaming" || state == "draining";
    let style = paint.fg(if good { Color::Green } else { Color::Yellow });
    let time = match view.limit {
        Some(limit) => format!("{} of {}", words::clock(view.elapsed), words::clock(limit)),
        None => words::clock(view.elapsed),
    };
    Paragraph::new(Line::from(vec![
        Span::styled(" postrider demo", STRONG.patch(paint.fg(Color::Cyan))),
        Span::raw("   "),
        Span::styled(format!("● {}", state.replace('_', " ")), style.patch(STRONG)),
        Span::styled(format!("   {time}"), paint.dim()),
    ]))
}

fn about_lines(paint: Paint, parts: &[(String, String)]) -> Vec<Line<'static>> {
    let line = |(name, text): &(String, String)| {
        Line::from(vec![Span::styled(format!(" {name:<9}"), paint.dim()), Span::raw(text.clone())])
    };
    parts.iter().map(line).collect()
}

/// A name and its figure.
fn figure(paint: Paint, name: &str, value: String, style: Style) -> Line<'static> {
    let name = Span::styled(format!("{name:<13}"), paint.dim());
    Line::from(vec![name, Span::styled(value, style.patch(STRONG))])
}

fn relay(frame: &mut Frame<'_>, area: Rect, paint: Paint, view: &ScreenView) {
    let status = view.look.status.as_ref();
    let unknown = || "-".to_owned();
    let plain = Style::new();
    let pair = |quantiles: &crate::demo::view::Quantiles| {
        let [p50, p99] = [quantiles.p50, quantiles.p99].map(words::duration);
        format!("p50 {p50}  p99 {p99}")
    };
    let (label, broken) = match (view.chaos, view.planned) {
        (true, _) => ("broken", format!("{} times (--chaos)", view.broken)),
        (false, 0) => ("kill -9", "none planned (--kill N)".to_owned()),
        (false, planned) => ("kill -9", format!("{} of {planned}", view.broken)),
    };
    let memory = format!(
        "{} (peak {})",
        words::memory(view.look.memory),
        words::memory(view.look.memory_peak)
    );
    let lag = status.map_or_else(unknown, |status| {
        format!("{:.1} s, {} of WAL", status.lag_seconds, words::bytes(status.lag_bytes))
    });
    let in_flight = status.map_or_else(unknown, |status| words::count(status.in_flight_events));
    let hurt = if view.broken > 0 { paint.fg(Color::Red) } else { plain };
    let lines = vec![
        figure(paint, "acknowledged", pair(&view.acknowledged), paint.fg(Color::Green)),
        figure(paint, "consumed", pair(&view.consumed), plain),
        figure(paint, "lag", lag, plain),
        figure(paint, "in flight", in_flight, plain),
        figure(paint, "memory", memory, plain),
        figure(paint, label, broken, hurt),
    ];
    frame.render_widget(Paragraph::new(lines).block(paint.block("relay")), area);
}

fn ledger(frame: &mut Frame<'_>, area: Rect, paint: Paint, view: &ScreenView) {
    let totals = &view.totals;
    let wrong = |count: u64| paint.fg(if count == 0 { Color::Green } else { Color::Red });
    let plain = Style::new();
    let lines = vec![
        figure(paint, "committed", words::count(totals.committed), plain),
        figure(paint, "delivered", words::count(totals.delivered), plain),
        figure(paint, "outstanding", words::count(totals.outstanding), plain),
        figure(
            paint,
            "out of order",
            words::count(totals.out_of_order),
            wrong(totals.out_of_order),
        ),
        figure(paint, "invented", words::count(totals.invented), wrong(totals.invented)),
        figure(paint, "duplicated", words::count(totals.duplicated), plain),
    ];
    frame.render_widget(Paragraph::new(lines).block(paint.block("ledger")), area);
}

/// The present problem if there is one, else the keys.
fn footer(paint: Paint, view: &ScreenView) -> Paragraph<'static> {
    let reason = view.look.status.as_ref().and_then(|status| status.reason.clone());
    let breaking = view.breaking.map(|failure| format!(" chaos: {}", failure.words()));
    let text = match (&view.trouble, reason, view.phase) {
        _ if let Some(failure) = breaking => {
            Span::styled(failure, paint.fg(Color::Red).patch(STRONG))
        }
        (Some(trouble), _, _) => Span::styled(format!(" writer: {trouble}"), paint.fg(Color::Red)),
        (None, Some(reason), _) => Span::styled(format!(" {reason}"), paint.fg(Color::Yellow)),
        (None, None, Phase::Writing) => Span::styled(
            " q or Ctrl-C: stop writing, deliver the rest, print the ledger",
            paint.dim(),
        ),
        (None, None, Phase::Draining) => {
            Span::styled(" delivering the rest; Ctrl-C again: exit immediately", paint.dim())
        }
    };
    Paragraph::new(text).wrap(Wrap { trim: false })
}

#[cfg(test)]
pub(in crate::demo) mod tests;
