//! The daemon's own log: level, format and destination of its lines.
//!
//! Owns that a line is one line of printable text, whatever is in it: names in certificates, texts of clients and of
//! the kernel. No place that logs need think of it.

use std::fmt;
use std::io::IsTerminal as _;

use kprobed_event::{Escaped, is_unprintable};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, FormatFields, Writer};
use tracing_subscriber::fmt::{SubscriberBuilder, fmt};

/// Logs to standard error, where systemd and container runtimes pick it up. `RUST_LOG` overrides
/// the configured level.
pub fn init(level: &str) {
    let environment = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.is_empty());
    let wished = environment.as_deref().map(EnvFilter::try_new);
    let (filter, refused) = match wished {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(level), Some(error)),
        None => (EnvFilter::new(level), None),
    };
    let subscriber = lines()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // systemd stamps every line by itself.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        subscriber.without_time().init();
    } else {
        subscriber.init();
    }
    if let Some(error) = refused {
        tracing::warn!(%error, level, "ignored RUST_LOG: it is not a filter");
    }
}

/// The form of all lines.
fn lines() -> SubscriberBuilder<PrintableFields> {
    fmt().fmt_fields(PrintableFields).with_target(false)
}

/// Fields of spans and events, messages too, without a character that a terminal or a reader of lines would obey.
#[derive(Debug)]
struct PrintableFields;

impl<'writer> FormatFields<'writer> for PrintableFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        for piece in text.split_inclusive(is_unprintable) {
            match piece.chars().next_back() {
                Some(last) if is_unprintable(last) => {
                    let (plain, last) = piece.split_at(piece.len() - last.len_utf8());
                    write!(writer, "{plain}{}", Escaped(last.as_bytes()))?;
                }
                _ => writer.write_str(piece)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What was logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Clears a terminal, forges a line, turns the direction of text, and ends with a control character of eight bits.
    const HOSTILE: &str = "x\x1b[2J\x1b]0;title\x07\n2026-11-26T00:00:00Z forged\r\u{202e}txet\u{9b}31m";

    #[test]
    fn no_text_of_a_client_makes_a_line_or_moves_a_cursor() {
        let log = Log::default();
        let written = log.clone();
        let subscriber = lines().with_ansi(false).with_writer(move || written.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("call", principal = %HOSTILE, operation = tracing::field::Empty);
            span.record("operation", HOSTILE);
            let _entered = span.enter();
            tracing::info!(shown = %HOSTILE, quoted = ?HOSTILE, text = HOSTILE, "the client says {HOSTILE}");
            tracing::info!("é and \\0x10 stay");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines.iter().all(|line| !line.contains(is_unprintable)), "{text:?}");
        assert_eq!(lines[0].matches("forged").count(), 6, "nothing is lost: {text}");
        assert!(
            lines[0].contains("\\x1b[2J") && lines[0].contains("\\x0a") | lines[0].contains("\\n"),
            "{text}"
        );
        assert!(lines[1].contains("é and \\0x10 stay"), "{text}");
    }
}
