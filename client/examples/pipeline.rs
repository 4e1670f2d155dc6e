//! Events as JSON Lines on standard output, resumed at the cursor of the previous run.
//!
//! ```sh
//! cargo run -p kprobed-client --example pipeline -- events.cursor | your-program
//! cargo run -p kprobed-client --example pipeline -- events.cursor --until-now > events.jsonl
//! ```
//!
//! The file has the cursor: the position in the daemon's log after everything that was written.
//! Without a file, the oldest event of the history is the first one. The cursor is saved after the
//! lines are written, so that a kill repeats events and never leaves one out. Gaps are lines of the
//! type `loss`; the last line is the account of the stream. `KPROBED_SERVER` says where the daemon
//! is.
#![expect(clippy::print_stderr, reason = "a program for a terminal")]

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kprobed_client::api::SubscriberLedger;
use kprobed_client::event::format::JsonLines;
use kprobed_client::event::{Cursor, ResumingItem, ResumingStream, StreamItem, StreamRequest};
use kprobed_client::{Client, ConnectOptions, Target};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), option) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: pipeline CURSOR_FILE [--until-now]");
        return ExitCode::from(2);
    };
    let until_now = option.is_some_and(|option| option == "--until-now");
    let Err(error) = run(&PathBuf::from(file), until_now).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    if let Some(error) = error.downcast_ref::<kprobed_client::Error>() {
        for hint in error.hints() {
            eprintln!("hint: {hint}");
        }
    }
    ExitCode::FAILURE
}

async fn run(file: &Path, until_now: bool) -> Result<(), Box<dyn Error>> {
    let target: Target = match std::env::var("KPROBED_SERVER") {
        Ok(text) => text.parse()?,
        Err(_not_set) => Target::default(),
    };
    let client = Client::connect(target, ConnectOptions::default()).await?;
    let request = match saved(file)? {
        Some(cursor) => StreamRequest::new().after(cursor),
        None => StreamRequest::new().oldest(),
    };
    let request = if until_now { request.until_now() } else { request };
    let mut stream = ResumingStream::open(&client, request).await?;
    let mut subscriber = None;
    let (mut lines, mut buffer) = (JsonLines::new(), Vec::new());
    let (mut events, mut lost) = (0, 0);
    // It is listened for from here on; `ctrl_c` would begin with its first poll, which may be late.
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            _ = interrupt.recv() => break,
        };
        match item {
            Some(ResumingItem::Item(StreamItem::Started(started))) => {
                subscriber = Some(started.subscriber_id);
            }
            Some(ResumingItem::Item(StreamItem::Batch(batch))) => {
                batch.rows().for_each(|row| lines.push(&mut buffer, &row));
                events += batch.len();
            }
            Some(ResumingItem::Item(StreamItem::Loss(loss))) => {
                lines.push_loss(&mut buffer, &loss);
                lost += loss.count.unwrap_or(0);
            }
            // A run of the daemon that was killed, for one: what it had not stored is missing, and
            // not counted.
            Some(ResumingItem::Item(StreamItem::Epoch(epoch))) => {
                lines.push_epoch(&mut buffer, &epoch.cursor, epoch.may_miss);
            }
            Some(ResumingItem::Item(_)) => {}
            Some(ResumingItem::Interrupted(interruption)) => {
                let why =
                    interruption.error.map_or("the daemon stopped".to_owned(), |error| error.to_string());
                eprintln!("{why}: trying again in {:?}", interruption.retry_in);
            }
            None => break,
        }
        write(&mut buffer)?;
        // After each batch: whoever has many small ones saves it once in a second.
        save(file, stream.cursor())?;
    }
    let account = account(&client, subscriber).await?;
    serde_json::to_writer(
        &mut buffer,
        &json!({"type": "account", "events": events, "lost": lost, "daemon": account}),
    )?;
    buffer.push(b'\n');
    Ok(write(&mut buffer)?)
}

/// What the daemon says of this stream: `read = delivered + queued + dropped + limited + sampled
/// out + filtered + not selected`, and, apart, how much came from the history. `None` if the stream
/// is closed already, as the daemon closes one that ends by itself.
async fn account(
    client: &Client,
    subscriber: Option<u64>,
) -> Result<Option<serde_json::Value>, kprobed_client::Error> {
    let of_this_stream = |row: &SubscriberLedger| Some(row.subscriber_id) == subscriber;
    Ok(client.ledger().await?.subscribers.into_iter().find(of_this_stream).map(|row| {
        let elsewhere =
            row.queued + row.dropped + row.limited + row.sampled_out + row.filtered + row.not_selected;
        json!({
            "read": row.read,
            "delivered": row.delivered,
            "dropped": row.dropped,
            "replayed": row.replayed,
            "expired": row.expired,
            "closes": row.read == row.delivered + elsewhere,
        })
    }))
}

fn write(buffer: &mut Vec<u8>) -> io::Result<()> {
    if !buffer.is_empty() {
        let mut output = io::stdout().lock();
        output.write_all(buffer)?;
        output.flush()?;
        buffer.clear();
    }
    Ok(())
}

fn saved(file: &Path) -> Result<Option<Cursor>, Box<dyn Error>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim_end().parse()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces the file as a whole: whoever is killed here leaves the cursor before.
fn save(file: &Path, cursor: Option<&Cursor>) -> io::Result<()> {
    let Some(cursor) = cursor else { return Ok(()) };
    let new = file.with_extension("new");
    fs::write(&new, format!("{cursor}\n"))?;
    fs::rename(new, file)
}
