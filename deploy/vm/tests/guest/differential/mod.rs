//! Differential tests: the daemon's verdicts beside the kernel's answers to the same lines.

pub(crate) mod generator;
pub(crate) mod random;

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{CheckProbeResponse, RefusedBy, Verdict};

pub(crate) use random::{Random, seeds};

use crate::daemon::{DaemonGuest, TRACEFS};

/// What the kernel says to a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0 when it takes it.
    pub(crate) errno: u32,
    /// Message and position of the caret, if it left any.
    pub(crate) said: Option<(String, usize)>,
}

/// A line with both answers.
pub(crate) struct Compared {
    pub(crate) line: String,
    pub(crate) ours: CheckProbeResponse,
    pub(crate) kernel: Answer,
}

impl Compared {
    /// The errno that the daemon says the kernel would give: none if only the daemon refuses.
    pub(crate) fn expected_errno(&self) -> u32 {
        if self.ours.by() == RefusedBy::Kprobed { 0 } else { self.ours.errno }
    }

    /// Whether this is the kernel's message.
    pub(crate) fn kernel_said(&self, text: &str) -> bool {
        self.kernel.said.as_ref().is_some_and(|(said, _)| said == text)
    }
}

/// What the kernel answers to each line. Leaves no probe in the kernel.
pub(crate) fn kernel_answers(guest: &DaemonGuest, lines: &[String]) -> Result<Vec<Answer>> {
    let mut text = String::new();
    for line in lines {
        writeln!(text, "{line}")?;
    }
    guest.machine.put("/tmp/lines", 0o600, text.as_bytes())?;
    let printed = guest.workload(&["define", &format!("{TRACEFS}/kprobe_events"), "/tmp/lines"])?;
    ensure!(printed.len() == lines.len(), "{} answers to {} lines", printed.len(), lines.len());
    printed.iter().map(|answer| parse(answer).with_context(|| answer.clone())).collect()
}

fn parse(answer: &str) -> Option<Answer> {
    let mut words = answer.splitn(3, '\t');
    let (errno, caret, message) = (words.next()?, words.next()?, words.next()?);
    let said = caret.parse().ok().map(|caret| (message.to_owned(), caret));
    Some(Answer { errno: errno.parse().ok()?, said })
}

/// The daemon's verdicts on the lines of a text.
async fn verdicts(guest: &DaemonGuest, text: String) -> Result<Vec<CheckProbeResponse>> {
    let mut stream = guest.client.check_probes(tokio_stream::once(text.into_bytes()), false).await?;
    let mut verdicts = Vec::new();
    while let Some(checked) = stream.next().await? {
        verdicts.push(checked.check.with_context(|| checked.definition)?);
    }
    Ok(verdicts)
}

/// What the daemon answers to each line. The words of 2009, which the kernel refuses, are not meant
/// here.
pub(crate) fn daemon_answers(guest: &DaemonGuest, lines: &[String]) -> Result<Vec<CheckProbeResponse>> {
    let mut text = String::new();
    for line in lines {
        writeln!(text, "{line} # dialect: kernel")?;
    }
    let answers = guest.wait_for(verdicts(guest, text))??;
    ensure!(answers.len() == lines.len(), "{} verdicts on {} lines", answers.len(), lines.len());
    Ok(answers)
}

/// The rule by which the daemon refuses a place where kernels stop as soon as they define a probe. What else it refuses
/// of what kernels take does harm only where it is hit.
const STOPS_THE_KERNEL: &str = "END_OF_MODULE";

/// Asks both about every line, but for those with which the kernel would stop.
pub(crate) fn ask_both(guest: &DaemonGuest, lines: Vec<String>) -> Result<Vec<Compared>> {
    // The daemon is asked first: a probe that the kernel then accepts would be there for its
    // verdict.
    let ours = daemon_answers(guest, &lines)?;
    for (line, verdict) in lines.iter().zip(&ours) {
        let accepted = verdict.verdict() == Verdict::Accepted;
        let by = verdict.by() != RefusedBy::Unspecified;
        ensure!(accepted == (verdict.errno == 0) && accepted != by, "{line}: {verdict:?}");
    }
    let both = lines.into_iter().zip(ours).filter(|(_, ours)| ours.rule != STOPS_THE_KERNEL);
    let (lines, ours): (Vec<_>, Vec<_>) = both.unzip();
    let kernel = kernel_answers(guest, &lines)?;
    let both = lines.into_iter().zip(ours).zip(kernel);
    Ok(both.map(|((line, ours), kernel)| Compared { line, ours, kernel }).collect())
}

/// Compares the errnos of all lines. Gives back how many there were, accepted ones among them.
pub(crate) fn compare_errnos(guest: &DaemonGuest, lines: Vec<String>) -> Result<(usize, usize)> {
    compare_errnos_but(guest, lines, |_| false)
}

/// The same, apart from differences that are known.
pub(crate) fn compare_errnos_but(
    guest: &DaemonGuest,
    lines: Vec<String>,
    is_known: impl Fn(&Compared) -> bool,
) -> Result<(usize, usize)> {
    let compared = ask_both(guest, lines)?;
    let mut differences = String::new();
    for one in &compared {
        let Compared { line, ours, kernel } = one;
        if kernel.errno != one.expected_errno() && !is_known(one) {
            writeln!(differences, "{line}: kernel {}, daemon {} {}", kernel.errno, ours.errno, ours.rule)?;
        }
    }
    ensure!(differences.is_empty(), "{differences}");
    Ok((compared.len(), compared.iter().filter(|one| one.kernel.errno == 0).count()))
}
