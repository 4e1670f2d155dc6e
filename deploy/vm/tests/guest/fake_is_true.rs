//! The kernel in memory, over which tests of the host run, answers as real ones: a script of changes of tracefs is
//! carried out over the real tracefs, and gets the answers that are stored beside it. The test of the host that
//! compares the kernel in memory with the same answers is `server/fixtures/fake_kernel/tests/truth.rs`.
//!
//! With `KPROBED_RENEW=1` the answers are stored anew: those of the builds in [`BUILDS`] under their series, those of
//! another build under its release.

use std::path::Path;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};

use kprobed_vm::progress;

use crate::Test;
use crate::daemon::TRACEFS;
use crate::differential::random::is_ci;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        the_script_gets_the_stored_answers,
    }
};

const SCRIPT: &str = include_str!("../../../../server/fixtures/fake_kernel/script.txt");

/// The builds that the kernel in memory answers as. Updates of a series change answers: 6.1.0-48 takes a filter that
/// ends in `&&`, compares 63 bytes of an argument in a deletion, and misspells a message. What another
/// build answers otherwise is the difference of its file to that of its series.
const BUILDS: [&str; 3] =
    ["6.1.0-56-cloud-amd64", "6.12.117+deb12-cloud-amd64", "6.12.118+deb13-cloud-amd64"];

fn the_script_gets_the_stored_answers(fixture: &Fixture) -> Result<()> {
    let (release, series) = (fixture.kernel()?.release, fixture.series());
    let stored = |name: &str| {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../server/fixtures/fake_kernel");
        directory.join(format!("answers-{name}.txt"))
    };
    let of_series = stored(series);
    let is_renewed = env::var_os("KPROBED_RENEW").is_some();
    let stored = if BUILDS.contains(&release.as_str()) { of_series.clone() } else { stored(&release) };
    if !is_renewed && !stored.exists() {
        let how = format!("`KPROBED_RENEW=1 cargo vm test fake_is_true --kernels {series}` stores them");
        // The kernel in memory answers as kernels of some series only.
        ensure!(!is_ci() || !of_series.exists(), "{release}: no answers of this build are stored: {how}");
        progress::note(format_args!(
            "{release}: no answers of this build are stored, and nothing is compared: {how}"
        ));
        return Ok(());
    }
    let guest = fixture.daemon()?;
    guest.machine.put("/tmp/script.txt", 0o644, SCRIPT.as_bytes())?;
    let said = guest.shell(&format!("workload files {TRACEFS} /tmp/script.txt"))?;
    if is_renewed {
        return Ok(fs::write(&stored, said)?);
    }
    let answers = fs::read_to_string(&stored)
        .with_context(|| format!("{}: no answers of this kernel are stored", stored.display()))?;
    let differs = said.lines().zip(answers.lines()).enumerate().find(|(_, (said, answer))| said != answer);
    if let Some((at, (said, answer))) = differs {
        let before: Vec<_> = answers.lines().skip(at.saturating_sub(10)).take(10.min(at)).collect();
        anyhow::bail!("{}\nthis kernel: {said}\nstored:      {answer}", before.join("\n"));
    }
    ensure!(said.lines().count() == answers.lines().count(), "one of them ends before the other");
    Ok(())
}
