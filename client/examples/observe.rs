//! Events of probes on a terminal, with every gap, until Ctrl-C.
//!
//! ```sh
//! cargo run -p kprobed-client --example observe -- 'kprobes/*'
//! ```
//!
//! Each argument is a glob over names of probes; without one, all probes are followed.
//! `KPROBED_SERVER` says where the daemon is.
#![expect(clippy::print_stderr, reason = "a program for a terminal")]

use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use kprobed_client::event::{Batch, Loss, StreamItem, StreamRequest, cause_name};
use kprobed_client::{Client, ConnectOptions, Target};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = observe(std::env::args().skip(1)).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    // What a person can do about it, such as to start the daemon.
    if let Some(error) = error.downcast_ref::<kprobed_client::Error>() {
        for hint in error.hints() {
            eprintln!("hint: {hint}");
        }
    }
    ExitCode::FAILURE
}

async fn observe(globs: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let target: Target = match std::env::var("KPROBED_SERVER") {
        Ok(text) => text.parse()?,
        Err(_not_set) => Target::default(),
    };
    let client = Client::connect(target, ConnectOptions::default()).await?;
    let request = globs.fold(StreamRequest::new(), StreamRequest::probe);
    let mut stream = client.stream_events(request).await?;
    let (mut events, mut lost) = (0, 0);
    let mut output = BufWriter::new(io::stdout().lock());
    // It is listened for from here on; `ctrl_c` would begin with its first poll, which may be late.
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            _ = interrupt.recv() => break,
        };
        match item {
            Some(StreamItem::Batch(batch)) => {
                print(&mut output, &batch)?;
                events += batch.len();
            }
            // A gap comes before the first event that follows it.
            Some(StreamItem::Loss(loss)) => {
                writeln!(output, "{}", gap(&loss))?;
                lost += loss.count.unwrap_or(0);
            }
            // The daemon stops, and has sent everything. `ResumingStream` would connect again.
            None => break,
            Some(_) => {}
        }
        output.flush()?;
    }
    output.flush()?;
    eprintln!("{events} events, {lost} known to be lost");
    Ok(())
}

fn print(output: &mut impl Write, batch: &Batch) -> io::Result<()> {
    for row in batch.rows() {
        // The name of a task is bytes, and unknown if the task ended before the daemon read the
        // event.
        let comm = String::from_utf8_lossy(row.comm().unwrap_or(b"?"));
        write!(output, "{} [{:03}] {comm} {}", row.timestamp_ns(), row.cpu(), row.probe())?;
        for (name, value) in row.fields() {
            write!(output, " {name}={value}")?;
        }
        writeln!(output)?;
    }
    Ok(())
}

fn gap(loss: &Loss) -> String {
    let cause = cause_name(loss.cause);
    match loss.count {
        Some(count) => format!("-- {count} events are missing here ({cause})"),
        None => format!("-- events are missing here ({cause}); `kprobectl ledger` has the sum"),
    }
}
