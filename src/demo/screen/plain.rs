//! One line a second, under a head that comes again now and then.

use crate::demo::view::{Quantiles, View};
use crate::demo::words;
use std::io::{self, Write as _};

/// Lines under one head.
const LINES_OF_HEAD: u64 = 20;

#[derive(Default)]
pub(in crate::demo) struct Plain {
    lines: u64,
    /// The second that was written last.
    second: Option<u64>,
}

impl Plain {
    /// Writes a line when a new second has begun.
    pub(super) fn line(&mut self, view: &View) -> io::Result<()> {
        let second = view.elapsed.as_secs();
        if second == 0 || self.second == Some(second) {
            return Ok(());
        }
        self.second = Some(second);
        let mut text = String::new();
        if self.lines.is_multiple_of(LINES_OF_HEAD) {
            text.push_str(HEAD);
        }
        self.lines += 1;
        text.push_str(&render(view));
        write(&text)
    }
}

/// Writes to standard output; a reader that went away, as `head` does, is no error.
pub(in crate::demo) fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{text}").and_then(|()| output.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

const HEAD: &str = "\
               events/s         commit→acked     commit→read             in
 time state    written  read    p50     p99      p50     p99      lag  flight   RSS  kills
";

fn render(view: &View) -> String {
    let quantiles = |quantiles: &Quantiles| {
        let [p50, p99] = [quantiles.p50, quantiles.p99].map(words::duration);
        format!("{p50:<7} {p99:<8}")
    };
    let status = view.look.status.clone().unwrap_or_default();
    let kills = match view.kills_planned {
        0 => String::new(),
        planned => format!("{}/{planned}", view.kills),
    };
    format!(
        "{} {:<10}{:>6}{:>6}    {} {}{:>5.1} s {:>6} {:>6}  {kills}",
        words::clock(view.elapsed),
        view.state(),
        words::rate(view.written),
        words::rate(view.delivered),
        quantiles(&view.acknowledged),
        quantiles(&view.consumed),
        status.lag_seconds,
        words::count(status.in_flight_events),
        words::memory(view.look.memory),
    )
    .trim_end()
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::screen::live::tests::view;
    use expect_test::expect;

    #[test]
    fn a_line_stands_under_its_head() {
        expect![[r#"
            events/s         commit→acked     commit→read             in
             time state    written  read    p50     p99      p50     p99      lag  flight   RSS  kills
            00:12 streaming    498   497    1.9 ms  7.4 ms   4.1 ms  11 ms     0.0 s      2  23 MB  1/2"#]].assert_eq(&format!("{HEAD}{}", render(&view())));
    }
}
