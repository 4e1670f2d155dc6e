//! `cargo vm compare`: what creations cost this daemon, and one of another revision, in turns in one guest.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::machine::{Command, Machine};
use kprobed_vm::progress::Step;
use kprobed_vm::workspace::{self, Profile, Programs};

use super::guest::{GuestArguments, post_mortem};

/// Memory for both daemons and their databases, which lie in memory.
const LEAST_MEMORY_MIB: u32 = 1024;

/// What both daemons are configured with.
const CONFIG: &str = "[listen]\nunix = \"/tmp/compare.sock\"\n[state]\ndirectory = \"/tmp/compare\"\n";

/// Makes the probes with one daemon, prints its processor time and the time that passed, in hundredths of a second,
/// and leaves the kernel as it was. Arguments: the daemon, its configuration, and the number of probes.
const ROUND: &str = r#"
daemon=$1 config=$2 probes=$3
rm -rf /tmp/compare /tmp/compare.sock
"$daemon" --config "$config" > /tmp/daemon.log 2>&1 & pid=$!
for i in $(seq 600); do
    kprobectl --server unix:/tmp/compare.sock list > /dev/null 2>&1 && break
    kill -0 $pid || { cat /tmp/daemon.log >&2; exit 1; }
    sleep 0.1
done
# The daemon has mounted tracefs.
if [ ! -s /tmp/lines ]; then
    awk -v most="$probes" '/^__x64_sys_/ && n < 250 { names[n++] = $1 }
        END { for (i = 0; i < most; i++) { name = names[i % n]; print "p:many/" substr(name, 11) "_" int(i / n) " " name } }' \
        /sys/kernel/tracing/available_filter_functions > /tmp/lines
fi
ticks() { awk '{ print $14 + $15 }' /proc/$pid/stat; }
now() { awk '{ print int($1 * 100) }' /proc/uptime; }
cpu=$(ticks) wall=$(now)
kprobectl --server unix:/tmp/compare.sock add -f /tmp/lines > /tmp/added 2>&1 || { tail -n 3 /tmp/added >&2; exit 1; }
cpu=$(($(ticks) - cpu)) wall=$(($(now) - wall))
made=$(grep -c many/ /sys/kernel/tracing/kprobe_events)
kill $pid && wait $pid
[ "$made" = "$probes" ] || { echo "$made probes and not $probes" >&2; exit 1; }
echo "$cpu $wall"
"#;

/// Compare what creating probes costs this daemon, and the one of another revision, in one guest
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm compare --base HEAD~1
  cargo vm compare --base cff526dd --config server/benches/rights.toml --rounds 10

Both daemons are built as packages have them, and make the same probes in turns, each with an empty database. The figures
are the processor time of the daemon, and the time that passed. The guest is emulated: the ratio counts, not the seconds.")]
pub(crate) struct Compare {
    #[command(flatten)]
    guest: GuestArguments,
    /// The other revision, as git knows it
    #[arg(long, value_name = "REV")]
    base: String,
    /// How often each of them makes the probes
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Probes of a round
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    probes: u32,
    /// More of a configuration, for the daemon of this source alone
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What one round took.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Round {
    /// Processor time of the daemon.
    cpu_s: f64,
    wall_s: f64,
}

impl Round {
    /// As the script prints it.
    fn parse(text: &str) -> Option<Self> {
        let (cpu, wall) = text.trim().split_once(' ')?;
        let seconds = |hundredths: &str| Some(f64::from(hundredths.parse::<u32>().ok()?) / 100.0);
        Some(Self { cpu_s: seconds(cpu)?, wall_s: seconds(wall)? })
    }
}

impl Compare {
    pub(crate) fn run(self, cache: Cache) -> Result<ExitCode> {
        let config = match &self.config {
            Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string())?,
            None => String::new(),
        };
        let root = workspace::root().context("run this in the source directory, through `cargo vm`")?;
        let (revision, base) = daemon_of(&root, &self.base)?;
        let copies = [GuestFile { host: base, guest: "/usr/bin/kprobed-base".to_owned() }];
        let guest = self.guest.start_bare(cache, LEAST_MEMORY_MIB, &copies)?;
        let measured = self.measure(&guest, &config).inspect_err(|_| post_mortem(&guest))?;
        guest.power_off()?;
        io::stdout().write_all(table(&revision, &measured).as_bytes()).context("passing the output on")?;
        Ok(ExitCode::SUCCESS)
    }

    /// The rounds of both.
    fn measure(&self, guest: &Machine, config: &str) -> Result<[Vec<Round>; 2]> {
        guest.put("/tmp/base.toml", 0o600, CONFIG.as_bytes())?;
        guest.put("/tmp/this.toml", 0o600, format!("{config}\n{CONFIG}").as_bytes())?;
        guest.put("/tmp/round", 0o700, ROUND.as_bytes())?;
        let sides = [("/usr/bin/kprobed-base", "/tmp/base.toml"), ("/usr/bin/kprobed", "/tmp/this.toml")];
        let mut measured = [Vec::new(), Vec::new()];
        for round in 1..=self.rounds {
            let step = Step::start(format!("round {round} of {}", self.rounds));
            for ((daemon, config), rounds) in sides.into_iter().zip(&mut measured) {
                let probes = self.probes.to_string();
                let command = Command::new("sh").args(["/tmp/round", daemon, config, &probes]);
                let output = guest.exec(&command.limit(Duration::from_mins(10)))?;
                ensure!(output.status.success(), "{daemon}: {}", output.stderr_text());
                rounds.push(Round::parse(&output.stdout_text()).context("the script printed no figures")?);
            }
            step.done();
        }
        Ok(measured)
    }
}

/// The release build of the daemon of a revision, and the revision's short name. It is kept beside the other builds.
fn daemon_of(root: &Path, revision: &str) -> Result<(String, PathBuf)> {
    let commit = format!("{revision}^{{commit}}");
    let asked = Process::new("git").current_dir(root).args(["rev-parse", "--short", &commit]).output();
    let output = asked.context("git rev-parse")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let revision = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let place = target(root).join("compare");
    let kept = place.join(format!("kprobed-{revision}"));
    if !kept.exists() {
        let source = place.join(format!("source-{revision}"));
        unpack(root, &revision, &source)?;
        let built = Programs::build_daemon(&source, Profile::Release)?;
        // The build of this source takes its place.
        fs::copy(&built, &kept).with_context(|| kept.display().to_string())?;
        remove(&source)?;
    }
    Ok((revision, kept))
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| directory.display().to_string())
        }
        _ => Ok(()),
    }
}

/// The files of a revision.
fn unpack(root: &Path, revision: &str, to: &Path) -> Result<()> {
    remove(to)?;
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let status = Process::new("git")
        .current_dir(root)
        .arg(format!("--work-tree={}", to.display()))
        .args(["checkout", "--quiet", revision, "--", "."])
        // That of the repository stays as it is.
        .env("GIT_INDEX_FILE", to.with_extension("index"))
        .status();
    ensure!(status.context("git checkout")?.success(), "git cannot unpack {revision}");
    Ok(())
}

/// Both sides, side by side.
fn table(revision: &str, [base, this]: &[Vec<Round>; 2]) -> String {
    let cpu = |rounds: &[Round]| Times::of(rounds.iter().map(|round| round.cpu_s));
    let wall = |rounds: &[Round]| Times::of(rounds.iter().map(|round| round.wall_s));
    let row = |label: &str, was: f64, is: f64| {
        let change = 100.0 * (is / was - 1.0);
        format!("{label:<22}{was:>10.2} s{is:>12.2} s   {change:+.1} %\n")
    };
    let rows =
        [("daemon CPU", cpu(base), cpu(this)), ("wall", wall(base), wall(this))].map(|(of, was, is)| {
            row(&format!("{of}, mean"), was.mean, is.mean)
                + &row(&format!("{of}, median"), was.median, is.median)
        });
    format!("{:<22}{revision:>12}{:>14}\n{}", "", "this source", rows.concat())
}

/// Of the times of rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    mean: f64,
    median: f64,
}

impl Times {
    fn of(times: impl Iterator<Item = f64>) -> Self {
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        let half = times.len() / 2;
        let median = if times.len().is_multiple_of(2) {
            f64::midpoint(times[half - 1], times[half])
        } else {
            times[half]
        };
        Self { mean: times.iter().sum::<f64>() / times.len() as f64, median }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_compared() {
        let round = |text| Round::parse(text).unwrap();
        let base = vec![round("480 590\n"), round("500 600\n"), round("490 640\n")];
        let this = vec![round("490 600\n"), round("515 610\n"), round("510 650\n")];
        let text = table("cff526dd", &[base, this]);
        assert!(text.contains("daemon CPU, median          4.90 s        5.10 s   +4.1 %\n"), "{text}");
        assert!(text.contains("wall, mean                  6.10 s        6.20 s   +1.6 %\n"), "{text}");
        assert_eq!(Round::parse("4"), None);
        assert_eq!(Times::of([3.0, 1.0].into_iter()), Times { mean: 2.0, median: 2.0 });
    }
}
