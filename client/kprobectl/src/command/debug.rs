//! `kprobectl debug bundle`: what a maintainer needs to understand a daemon, in one file.
//!
//! Owns which questions are asked and what is left out: values of events are never in it, and neither
//! are passwords. A question that fails is a file that says why.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kprobed_client::api::AuditFilter;
use kprobed_client::{Client, Error};
use kprobed_document::json::json;
use prost::Name;
use serde_json::Value;

use super::connection::connect;
use super::hits::hits_of_last;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

/// Entries of the audit log that are put in.
const AUDIT_ENTRIES: usize = 1000;

/// Arguments of `debug`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/debug.txt"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Write what a maintainer needs to understand this daemon into a file
    #[command(after_help = include_str!("help/debug-bundle.txt"))]
    Bundle {
        /// The file, which must not exist [default: kprobed-debug-HOST-TIME.tar]
        file: Option<PathBuf>,
    },
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Command::Bundle { file } = arguments.command;
    let client = connect(global).await?;
    let host = client.host_basics().await?.hostname;
    let file = file.unwrap_or_else(|| name_of(&host, Timestamp::now()));
    let (parts, failed) = gather(&client).await;
    save(&file, &parts).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot write `{}`: {error}", file.display()), hint(&error))
    })?;
    if failed > 0 {
        output.note(&format!("{failed} of {} answers are missing: their files say why", parts.len()));
    }
    output.path(&file)?;
    Ok(Exit::Success)
}

fn hint(error: &io::Error) -> Option<String> {
    (error.kind() == io::ErrorKind::AlreadyExists).then(|| "name another file, or remove that one".to_owned())
}

/// A host name can be any text.
fn name_of(host: &str, now: Timestamp) -> PathBuf {
    let host: String = host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    PathBuf::from(format!("kprobed-debug-{host}-{}.tar", now.strftime("%Y%m%dT%H%M%SZ")))
}

/// The files, by name, and how many answers are missing.
async fn gather(client: &Client) -> (Vec<(&'static str, String)>, usize) {
    let rates = hits_of_last(Duration::from_hours(24), 600, "*");
    let audit = client.newest_audit_entries(&AuditFilter::default(), AUDIT_ENTRIES).await;
    let answers = [
        ("host.json", one(client.host().await)),
        ("probes.json", many(client.list_probes("*").await)),
        ("states.json", states(client).await),
        ("foreign.json", many(client.foreign_probes("*").await)),
        ("ledger.json", one(client.ledger().await)),
        ("hits.json", many(client.hits("*").await)),
        ("rates.json", many(client.hits_over_time(rates).await.map(|rates| rates.series))),
        ("aggregations.json", many(client.list_aggregations().await)),
        ("caller.json", one(client.caller().await)),
        ("audit.json", many(audit.map(|(entries, _)| entries.into()))),
    ];
    let failed = answers.iter().filter(|(_, answer)| answer.is_err()).count();
    let version = serde_json::json!({ "kprobectl": env!("CARGO_PKG_VERSION") });
    let mut parts = vec![("kprobectl.json", version.to_string())];
    parts.extend(answers.into_iter().map(|(name, answer)| {
        let answer = answer.unwrap_or_else(|why| serde_json::json!({ "missing": why }));
        (name, without_credentials(&format!("{answer:#}")))
    }));
    (parts, failed)
}

fn one(answer: Result<impl Name, Error>) -> Result<Value, String> {
    json(&answer.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

fn many(answer: Result<Vec<impl Name>, Error>) -> Result<Value, String> {
    let messages = answer.map_err(|error| error.to_string())?;
    messages.iter().map(json).collect::<Result<Value, _>>().map_err(|error| error.to_string())
}

/// The past states of all probes.
async fn states(client: &Client) -> Result<Value, String> {
    let mut states = Vec::new();
    for probe in client.list_probes("*").await.map_err(|error| error.to_string())? {
        // It can be deleted meanwhile.
        if let Ok((_, past)) = client.get_probe_and_states(&probe.name).await {
            states.push(serde_json::json!({ "probe": probe.name, "states": many(Ok(past))? }));
        }
    }
    Ok(states.into())
}

/// Makes the file, for this user alone. One that cannot be written to its end is removed.
fn save(file: &Path, parts: &[(&'static str, String)]) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    write(opened, parts).inspect_err(|_| drop(fs::remove_file(file)))
}

fn write(opened: File, parts: &[(&'static str, String)]) -> io::Result<()> {
    let mut archive = tar::Builder::new(io::BufWriter::new(opened));
    let time = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    for (name, text) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(time);
        archive.append_data(&mut header, format!("kprobed-debug/{name}"), text.as_bytes())?;
    }
    let mut inner = archive.into_inner()?;
    inner.flush()?;
    inner.get_ref().sync_all()
}

/// Characters that end the authority of an address, also in JSON.
const ENDS: &[char] = &['/', '?', '#', '"', '\\', ' ', '\n', '\t', '\'', '<', '>'];

/// The text with `***` in place of `user:password` in addresses: of whatever stands before the `@` in the authority of
/// an address with a scheme. It removes too much rather than too little.
fn without_credentials(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("://") {
        let (before, after) = rest.split_at(begin + 3);
        redacted.push_str(before);
        let authority = after.find(ENDS).unwrap_or(after.len());
        let (authority, behind) = after.split_at(authority);
        match authority.rfind('@') {
            Some(at) => {
                redacted.push_str("***");
                redacted.push_str(authority.get(at..).unwrap_or_default());
            }
            None => redacted.push_str(authority),
        }
        rest = behind;
    }
    redacted.push_str(rest);
    redacted
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_a_file_name_whatever_the_host_is_called() {
        let now = Timestamp::from_second(1_769_860_800).unwrap();
        assert_eq!(
            name_of("../web 1/x", now).to_str().unwrap(),
            "kprobed-debug----web-1-x-20260131T120000Z.tar"
        );
    }

    #[test]
    fn a_file_that_exists_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.tar");
        save(&file, &[("x.json", "{}".to_owned())]).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let before = fs::read(&file).unwrap();
        let error = save(&file, &[("y.json", "[]".to_owned())]).unwrap_err();
        assert_eq!((error.kind(), fs::read(&file).unwrap()), (io::ErrorKind::AlreadyExists, before));
        assert!(hint(&error).is_some());
    }

    #[test]
    fn passwords_go_and_addresses_stay() {
        for (text, expected) in [
            ("nats://me:secret@host:4222/x", "nats://***@host:4222/x"),
            (r#"{"a":"http://u:p@h","b":"https://h/p@th"}"#, r#"{"a":"http://***@h","b":"https://h/p@th"}"#),
            ("nats://token@h, tls://a:b@c@d:1", "nats://***@h, tls://***@d:1"),
            ("spiffe://prod/ns/x", "spiffe://prod/ns/x"),
            ("p:open do_sys_openat2 @jiffies", "p:open do_sys_openat2 @jiffies"),
            ("://", "://"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }

    proptest! {
        #[test]
        fn no_password_stays(before in ".{0,20}", user in "[a-z]{1,5}", password in "[a-z0-9:@%]{1,12}zzz", behind in "(/.{0,20})?") {
            let text = format!("{before} nats://{user}:{password}@host{behind}");
            let secret = [&password, "@"].concat();
            prop_assert!(!without_credentials(&text).contains(&secret));
        }

        #[test]
        fn other_text_stays(text in "[^:]{0,60}") {
            prop_assert_eq!(without_credentials(&text), text);
        }
    }
}
