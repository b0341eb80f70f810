use super::*;
use std::io;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_repeats_nothing() {
    let lines = LogBuffer::default();
    let to = lines.clone();
    let log = tracing_subscriber::fmt().fmt_fields(Fields).with_ansi(false).with_target(false);
    let log = log.without_time().with_writer(move || to.clone()).finish();
    tracing::subscriber::with_default(log, || {
        let (reason, hint) = ("no answer", "check \"sink.brokers\"");
        tracing::warn!(
            event = "broker_down",
            pipeline = "orders",
            seconds = 720,
            tries = 41,
            reason,
            hint,
            "still waiting for broker, 12 min, 41 tries, last: {reason}"
        );
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let expected = " WARN still waiting for broker, 12 min, 41 tries, last: no answer pipeline=\"orders\" \
                    hint=\"check \\\"sink.brokers\\\"\"\n";
    assert_eq!(text, expected);
}

#[test]
fn filter_with_a_former_module_shows_the_lines_of_the_present_one() {
    assert_eq!(
        present_targets("warn,postrider::driver=info,postrider::kafka=debug"),
        "warn,postrider::pipeline=info,postrider::kafka=debug"
    );
    let here = env!("CARGO_PKG_NAME");
    let pipeline = std::any::type_name::<crate::pipeline::PipelineSpec>();
    assert!(pipeline.starts_with(&format!("{here}::pipeline")), "{pipeline}");
}
