//! The verdict of the daemon against that of the kernel, on functions drawn at random: every offset, as an entry probe and as a
//! return probe, and no difference allowed.
//!
//! The draw is the same each time, so that a failure is the change's; `KPROBED_VM_SEED=NUMBER` makes another one.

use std::env;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::Verdict;
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = &[("every_offset_of_random_functions", every_offset_of_random_functions)];

/// Functions that are drawn for each kernel, and the largest that is taken: small ones hold more different things in as many offsets.
const FUNCTIONS: usize = 10;
const LARGEST_BYTES: u64 = 400;

/// Return probes are tried on this many offsets: none can work behind them.
const RETURN_OFFSETS: u64 = 20;

const DEFAULT_SEED: u64 = 654_534_012;

/// A small generator of random numbers (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn from_environment() -> Result<Self> {
        let seed: u64 = match env::var("KPROBED_VM_SEED") {
            Ok(seed) => seed.parse().context("KPROBED_VM_SEED")?,
            Err(_) => DEFAULT_SEED,
        };
        progress::note(format_args!("KPROBED_VM_SEED={seed}"));
        Ok(Self(seed | 1))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or(0) % bound.max(1)
    }
}

/// Code symbols of the guest with their sizes, as far as they are small.
pub(crate) fn functions(guest: &DaemonGuest) -> Result<Vec<(String, u64)>> {
    let text = guest.shell("cat /proc/kallsyms")?;
    let mut symbols: Vec<(u64, &str, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            Some((u64::from_str_radix(address, 16).ok()?, kind, name)).filter(|_| words.next().is_none())
        })
        .collect();
    symbols.sort_by_key(|(address, _, _)| *address);
    let sized = symbols.windows(2).map(|pair| (pair[0].2, pair[0].1, pair[1].0 - pair[0].0));
    let small =
        sized.filter(|(_, kind, size)| matches!(*kind, "t" | "T") && (1..=LARGEST_BYTES).contains(size));
    Ok(small.map(|(name, _, size)| (name.to_owned(), size)).collect())
}

/// What the kernel answers to each line: an errno, 0 for none. Leaves no probe behind.
pub(crate) fn kernel_answers(guest: &DaemonGuest, lines: &[String]) -> Result<Vec<u32>> {
    let mut text = String::new();
    for line in lines {
        writeln!(text, "{line}")?;
    }
    guest.machine.put("/tmp/lines", 0o600, text.as_bytes())?;
    let answers = guest.workload(&["define", &format!("{TRACEFS}/kprobe_events"), "/tmp/lines"])?;
    ensure!(answers.len() == lines.len(), "{} answers to {} lines", answers.len(), lines.len());
    answers.iter().map(|answer| Ok(answer.parse()?)).collect()
}

/// Compares the answers to all lines. Gives back how many there were, accepted ones among them.
pub(crate) fn compare(guest: &DaemonGuest, lines: &[String]) -> Result<(usize, usize)> {
    // Ours first: what the kernel accepts changes what there is.
    let mut ours = Vec::new();
    for line in lines {
        let verdict = guest.wait_for(guest.client.check_probe(line))??;
        ensure!((verdict.verdict() == Verdict::Accepted) == (verdict.errno == 0), "{line}: {verdict:?}");
        ours.push((verdict.errno, verdict.reason));
    }
    let kernel = kernel_answers(guest, lines)?;
    let mut differences = String::new();
    for ((line, errno), (our_errno, reason)) in lines.iter().zip(&kernel).zip(&ours) {
        if errno != our_errno {
            writeln!(differences, "{line}: kernel {errno}, daemon {our_errno} {reason}")?;
        }
    }
    ensure!(differences.is_empty(), "{differences}");
    Ok((lines.len(), kernel.iter().filter(|errno| **errno == 0).count()))
}

fn every_offset_of_random_functions(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let mut random = Random::from_environment()?;
    let candidates = functions(&guest)?;
    ensure!(candidates.len() > 10_000, "only {} functions", candidates.len());
    let (mut compared, mut accepted) = (0, 0);
    for draw in 0..FUNCTIONS {
        let (name, size) = &candidates[random.below(candidates.len())];
        let entry = (0..size + 2).map(|offset| format!("p:v{draw}/e{offset} {name}+{offset}"));
        let returns = (0..RETURN_OFFSETS).map(|offset| format!("r:v{draw}/r{offset} {name}+{offset}"));
        let (lines, good) = compare(&guest, &entry.chain(returns).collect::<Vec<_>>())?;
        compared += lines;
        accepted += good;
    }
    progress::note(format_args!("{compared} offsets compared, {accepted} of them accepted, no difference"));
    ensure!(accepted > 0 && accepted < compared);
    Ok(())
}
