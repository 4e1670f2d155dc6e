//! `kprobectl audit verify -f FILE`: verifies entries that an exporter has written, without a daemon.
//!
//! Owns reading the files, in which lines of other things are left out. What makes a log whole is
//! [`kprobed_audit::Evidence`]'s.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};

use kprobed_audit::{Evidence, ExportedLine, Head};

use super::super::input::on_a_thread;
use super::super::{Exit, Failure};
use crate::output::{HostEvidence, Output};

/// What was found of each host, and what cannot be read.
#[derive(Default)]
struct Found {
    hosts: BTreeMap<String, HostEvidence>,
    unreadable: Option<String>,
}

impl Found {
    /// Reads a file to its end.
    fn file(&mut self, name: &str, source: impl Read) -> io::Result<()> {
        let mut lines = BufReader::with_capacity(1 << 18, source);
        let mut bytes = Vec::new();
        for number in 1_u64.. {
            bytes.clear();
            if lines.read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
            // Bytes that are no text become other text, which has another digest.
            let text = String::from_utf8_lossy(&bytes);
            let at = |problem: &dyn std::fmt::Display| format!("`{name}`, line {number}: {problem}");
            match ExportedLine::read(&text) {
                Ok(ExportedLine::Other) => {}
                Ok(ExportedLine::Entry { host, entry }) => {
                    self.host(host).take(|evidence| evidence.entry(&entry).map_err(|error| at(&error)));
                }
                Ok(ExportedLine::Head { host, head }) => {
                    self.host(host).take(|evidence| evidence.head(head).map_err(|error| at(&error)));
                }
                // The exporter is writing it.
                Err(_) if !bytes.ends_with(b"\n") => {}
                Err(error) => {
                    self.unreadable.get_or_insert_with(|| at(&error));
                }
            }
        }
        Ok(())
    }

    fn host(&mut self, host: String) -> &mut HostEvidence {
        self.hosts.entry(host).or_default()
    }
}

impl HostEvidence {
    /// Takes something, unless a contradiction was found before.
    fn take(&mut self, take: impl FnOnce(&mut Evidence) -> Result<(), String>) {
        if self.problem.is_none() {
            self.problem = take(&mut self.evidence).err();
        }
    }
}

/// Verifies the entries of all hosts in some files.
pub(super) async fn verify(
    files: Vec<PathBuf>,
    noted: Option<Head>,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let mut found = Found::default();
    for path in files {
        let failed = |source| Failure::File { path: path.clone(), source };
        let name = path.display().to_string();
        let read = {
            let (path, mut found) = (path.clone(), std::mem::take(&mut found));
            on_a_thread(move || {
                let source: Box<dyn Read> =
                    if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
                found.file(&name, source)?;
                Ok(found)
            })
        };
        found = read.await.map_err(failed)?;
    }
    let Found { mut hosts, unreadable } = found;
    if let Some(noted) = noted {
        compare(&mut hosts, noted)?;
    }
    let holds = unreadable.is_none() && !hosts.is_empty() && hosts.values().all(HostEvidence::holds);
    output.audit_evidence(&hosts, unreadable.as_deref())?;
    Ok(if holds { Exit::Success } else { Exit::Refused })
}

/// Compares with a head that was noted: it is of one host.
fn compare(hosts: &mut BTreeMap<String, HostEvidence>, noted: Head) -> Result<(), Failure> {
    let names: Vec<&str> = hosts.keys().map(String::as_str).collect();
    if names.len() > 1 {
        let message = format!("`--head` is of one host, and there are entries of {}", names.join(", "));
        let hint = "take the lines of one host: `grep '\"host\":\"NAME\"' FILE | kprobectl audit verify -f - --head HEAD`";
        return Err(Failure::usage(message, Some(hint.to_owned())));
    }
    for host in hosts.values_mut() {
        host.take(|evidence| {
            evidence.head(noted).map_err(|error| error.to_string())?;
            if evidence.has(noted.sequence) {
                return Ok(());
            }
            Err(format!("entry {} was noted, and is not there", noted.sequence))
        });
    }
    Ok(())
}
