//! The kernel in memory, over which tests of the host run, answers as real ones: a script of changes of tracefs is
//! carried out over the real tracefs, and gets the answers that are stored beside it. The test of the host that
//! compares the kernel in memory with the same answers is `server/fixtures/fake_kernel/tests/truth.rs`.
//!
//! With `KPROBED_RENEW=1` the answers are stored anew.

use std::path::Path;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};

use crate::Test;
use crate::daemon::TRACEFS;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        the_script_gets_the_stored_answers,
    }
};

const SCRIPT: &str = include_str!("../../../../server/fixtures/fake_kernel/script.txt");

/// A message as kernels of a series have it from some update on: a word was misspelt.
fn corrected(line: &str) -> String {
    line.replace("$-valiable", "$-variable")
}

fn the_script_gets_the_stored_answers(fixture: &Fixture) -> Result<()> {
    // The kernel in memory answers as these two builds; updates of a series correct messages.
    let release = fixture.kernel()?.release.clone();
    if !["6.1.0-48-cloud-amd64", "6.12.118+deb13-cloud-amd64"].contains(&release.as_str()) {
        return Ok(());
    }
    let guest = fixture.daemon()?;
    guest.machine.put("/tmp/script.txt", 0o644, SCRIPT.as_bytes())?;
    let said = guest.shell(&format!("workload files {TRACEFS} /tmp/script.txt"))?;
    let stored = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../server/fixtures/fake_kernel")
        .join(format!("answers-{}.txt", fixture.series()));
    if env::var_os("KPROBED_RENEW").is_some() {
        return Ok(fs::write(&stored, said)?);
    }
    let answers = fs::read_to_string(&stored)
        .with_context(|| format!("{}: no answers of this kernel are stored", stored.display()))?;
    let mut pairs = said.lines().zip(answers.lines()).enumerate();
    let differs = pairs.find(|(_, (said, answer))| corrected(said) != corrected(answer));
    if let Some((at, (said, answer))) = differs {
        let before: Vec<_> = answers.lines().skip(at.saturating_sub(10)).take(10.min(at)).collect();
        anyhow::bail!("{}\nthis kernel: {said}\nstored:      {answer}", before.join("\n"));
    }
    ensure!(said.lines().count() == answers.lines().count(), "one of them ends before the other");
    Ok(())
}
