//! One line per second, with a repeated header.

use crate::demo::chaos::FailureKind;
use crate::demo::view::ScreenView;
use crate::demo::words;
use std::io::{self, Write as _};

/// Lines below one header.
const LINES_OF_HEAD: u64 = 20;

#[derive(Default)]
pub(in crate::demo) struct Plain {
    lines: u64,
    /// The second that was written last.
    second: Option<u64>,
    /// The failure that was printed last; `None` once its end was printed.
    printed: Option<FailureKind>,
}

impl Plain {
    /// Writes a line when a new second has begun.
    pub(super) fn line(&mut self, view: &ScreenView) -> io::Result<()> {
        if view.chaos && view.breaking != self.printed {
            self.printed = view.breaking;
            let what = view.breaking.map_or("events flow again", FailureKind::words);
            write(&format!("{:>5} chaos: {what}", words::clock(view.elapsed)))?;
        }
        let second = view.elapsed.as_secs();
        if second == 0 || self.second == Some(second) {
            return Ok(());
        }
        self.second = Some(second);
        let mut text = String::new();
        if self.lines.is_multiple_of(LINES_OF_HEAD) {
            text.push_str(&head());
        }
        self.lines += 1;
        text.push_str(&render(view));
        write(&text)
    }
}

/// Writes to standard output. A reader that has closed its end, as `head` does, is not an error.
pub(in crate::demo) fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{text}").and_then(|()| output.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn head() -> String {
    let over =
        format!("{:17}{:>15}   {:>13}   {:>13}", "", "events/s", "commit→acked", "commit→read");
    let names = ["time", "state", "written", "read", "p50", "p99", "p50", "p99"];
    format!(
        "{over}\n{}\n",
        row(names.map(str::to_owned), ["lag", "in flight", "memory", "kills"].map(str::to_owned))
    )
}

fn row(first: [String; 8], last: [String; 4]) -> String {
    let [time, state, written, read, acked50, acked99, read50, read99] = first;
    let [lag, in_flight, memory, kills] = last;
    let text = format!(
        "{time:>5} {state:<11} {written:>7} {read:>6}   {acked50:>6} {acked99:>6}   {read50:>6} {read99:>6}  \
         {lag:>6} {in_flight:>9} {memory:>6} {kills:>5}"
    );
    text.trim_end().to_owned()
}

fn render(view: &ScreenView) -> String {
    let [acked50, acked99, read50, read99] =
        [view.acknowledged.p50, view.acknowledged.p99, view.consumed.p50, view.consumed.p99]
            .map(words::duration);
    let status = view.look.status.as_ref();
    let unknown = || "-".to_owned();
    let kills = match view.planned {
        0 => String::new(),
        _ if view.chaos => String::new(),
        planned => format!("{}/{planned}", view.broken),
    };
    let (written, read) = (words::rate(view.written), words::rate(view.delivered));
    let (time, state) = (words::clock(view.elapsed), view.state().to_owned());
    row(
        [time, state, written, read, acked50, acked99, read50, read99],
        [
            status.map_or_else(unknown, |status| format!("{:.1} s", status.lag_seconds)),
            status.map_or_else(unknown, |status| words::count(status.in_flight_events)),
            words::memory(view.look.memory),
            kills,
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::screen::live::tests::view;
    use expect_test::expect;

    #[test]
    fn columns_are_aligned_with_the_header() {
        let lines = format!("{}{}", head(), render(&view()));
        expect![[r#"
                                    events/s    commit→acked     commit→read
             time state       written   read      p50    p99      p50    p99     lag in flight memory kills
            00:12 streaming       498    497   1.9 ms 7.4 ms   4.1 ms  11 ms   0.0 s         2  23 MB   1/2"#]]
        .assert_eq(&lines);
    }
}
