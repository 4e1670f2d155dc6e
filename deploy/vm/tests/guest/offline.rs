//! Differential test of offline verdicts: from a kernel's package, against the daemon in the same
//! kernel, booted.
//!
//! Functions are drawn anew for each commit; `KPROBED_VM_SEED` repeats a draw. A
//! difference is allowed only at places that the offline verdict itself marks as rewritten by boot,
//! and for names of modules.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::api::Verdict;
use kprobed_host::kernel::{KernelFacts, KernelImage, TraceableFunctions};
use kprobed_verdict::offline::{OfflineKernel, Outcome};
use kprobed_vm::kernels::Kernel;
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::{DaemonGuest, Said, TRACEFS, kprobectl};
use crate::differential::{Random, daemon_answers};
use crate::effort;
use crate::fixture::Fixture;
use crate::verdicts::{Symbol, functions, symbols};

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        the_image_says_what_the_kernel_does,
        names_lead_to_the_call_sites_of_the_image,
    }
    Daemon {
        the_command_judges_a_file_for_a_directory,
        every_offset_of_random_functions,
    }
    Seldom {
        kernels_are_compared,
    }
};

/// Functions that are drawn for each kernel.
fn drawn() -> usize {
    effort::pick(30, 300)
}

/// Functions that are always among them, with their sizes in bytes. The last two have code of a weak function that
/// another one replaced behind them, on 5.10; of these the first has no call site of its own there.
const ALWAYS: &[(&str, u64)] = &[("vfs_read", 120), ("__bpf_tramp_exit", 80), ("do_one_initcall", 480)];

/// Return probes are tried on this many offsets: none can work after them.
const RETURN_OFFSETS: u64 = 8;

/// Symbols, README and release of the image are those of the kernel that was booted from it.
fn the_image_says_what_the_kernel_does(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let image = KernelImage::open(&fixture.kernel()?.image)?;
    ensure!(image.readme == guest.shell(&format!("cat {TRACEFS}/README"))?);
    ensure!(image.release == guest.shell("uname -r")?.trim());
    ensure!(image.version == guest.shell("uname -v")?.trim());
    let listed = guest.shell("cat /proc/kallsyms")?;
    // KASLR moves all of them by the same distance.
    let own = symbols(&listed).filter(|symbol| symbol.module.is_none() && symbol.address >= 1 << 63);
    let mut shifts: BTreeMap<u64, usize> = BTreeMap::new();
    let mut known = 0;
    for Symbol { address, name, .. } in own {
        let in_image: Vec<_> = image.symbols.named(name, None).collect();
        if let [only] = in_image.as_slice() {
            *shifts.entry(address.wrapping_sub(only.address)).or_default() += 1;
            known += 1;
        }
        ensure!(!in_image.is_empty(), "`{name}` is not in the image");
    }
    ensure!(known > 50_000 && shifts.len() == 1, "{known} symbols, moved by {shifts:x?}");
    progress::note(format_args!(
        "{known} symbols of the image are those of the kernel, moved by {shifts:x?}"
    ));
    Ok(())
}

/// The kernel's list of traceable functions has names alone: read as the daemon reads it, it leads to the call sites of
/// the table that the kernel has made it of. Replaced code behind functions of one name may be missing.
fn names_lead_to_the_call_sites_of_the_image(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let facts = KernelFacts::of_image(KernelImage::open(&fixture.kernel()?.image)?)?;
    let listed = guest.shell(&format!("grep -v '\\[' {TRACEFS}/available_filter_functions"))?;
    let mut read = |address| facts.code(address, 9).try_into().ok();
    let found = TraceableFunctions::from_names(&listed, &facts.symbols, &mut read);
    let sites = |of: &TraceableFunctions| of.overlapping(0, u64::MAX).collect::<Vec<_>>();
    let (found, table) = (sites(&found), sites(&facts.traceable));
    let name = |site: &u64| {
        let located = facts.symbols.locate(*site);
        located.map_or_else(String::new, |located| format!("{}+{}", located.symbol.name, located.offset))
    };
    let wrong: Vec<_> = found.iter().filter(|site| !facts.traceable.is_site(**site)).map(name).collect();
    let missing: Vec<_> = table.iter().filter(|site| found.binary_search(site).is_err()).map(name).collect();
    progress::note(format_args!(
        "{} lines, {} call sites found, {} missing",
        listed.lines().count(),
        found.len(),
        missing.len()
    ));
    ensure!(wrong.is_empty(), "{} of {} are none: {wrong:?}", wrong.len(), found.len());
    ensure!(
        missing.len() * 5000 < table.len(),
        "{} of {} are missing: {missing:?}",
        missing.len(),
        table.len()
    );
    Ok(())
}

/// Where the packages of a kernel were unpacked: above `boot/vmlinuz-RELEASE`, or
/// `usr/lib/modules/RELEASE/vmlinuz`.
fn unpacked(kernel: &Kernel) -> Result<PathBuf> {
    let root =
        kernel.image.ancestors().find(|root| root.ends_with(&kernel.release) && root.join("usr").is_dir());
    Ok(root.context("the kernel is not where its packages were unpacked")?.to_owned())
}

/// What `kprobectl check` says to these arguments, in a directory with the files. No daemon is asked.
fn check(directory: &Path, arguments: &str) -> Result<Said> {
    let said = Said::new(&kprobectl(directory, &format!("check {arguments}"))?.output()?)?;
    ensure!(said.stderr.is_empty(), "{arguments}: {said:?}");
    Ok(said)
}

/// What `kprobectl check --diff` says of a directory of documents, for this kernel and another one.
fn kernels_are_compared(fixture: &Fixture) -> Result<()> {
    let (old, new) = (fixture.kernel()?, fixture.other_kernel()?);
    let directory = tempfile::tempdir()?;
    fs::write(
        directory.path().join("probes.yaml"),
        "probe: kprobes/accept\ndefinition: p:kprobes/accept inet_csk_accept flags=%si:s32\n---\n\
         probe: kprobes/clone\ndefinition: p:kprobes/clone kernel_clone\n---\n\
         probe: kprobes/none\ndefinition: p:kprobes/none no_such_function\n",
    )?;
    let [old_path, new_path] = [unpacked(&old)?, unpacked(&new)?].map(|path| path.display().to_string());
    // One of three differs, and both of its prototypes are shown. One that neither kernel takes is no difference.
    let said = check(directory.path(), &format!("--diff {old_path} {new_path} -f . -o json"))?;
    let found = said.objects()?;
    let [first, second] = found.as_slice() else { bail!("{said:?}") };
    ensure!(said.code == 1 && first["verdict"] == "accepted" && first["kernel"] == *old.release, "{said:?}");
    ensure!(second["verdict"] == "changed" && second["kernel"] == *new.release, "{said:?}");
    ensure!(second["file"].as_str().is_some_and(|file| file.ends_with("probes.yaml")), "{said:?}");
    let change = &second["change"]["differences"][0];
    ensure!(change["code"] == "PROTOTYPE_CHANGED" && change["argument"] == "flags", "{said:?}");
    let sides = [&change["before"], &change["after"]].map(|side| side.as_str().unwrap_or_default());
    ensure!(sides[0] != sides[1] && sides.iter().all(|side| side.contains("inet_csk_accept")), "{said:?}");
    // Without the limit all are shown, and a change fails as a refusal does.
    let both = format!("--kernel {old_path} --kernel {new_path} -f probes.yaml --junit report.xml -o json");
    let said = check(directory.path(), &both)?;
    ensure!(said.code == 1 && said.objects()?.len() == 6, "{said:?}");
    let report = fs::read_to_string(directory.path().join("report.xml"))?;
    ensure!(report.contains("<failure type=\"PROTOTYPE_CHANGED\""), "{report}");
    // A kernel does not differ from itself.
    let itself = format!("check --diff {old_path} {old_path} -f .");
    let said = Said::new(&kprobectl(directory.path(), &itself)?.output()?)?;
    let expected = format!("note: no difference between {0} and {0}\n", old.release);
    ensure!(said.code == 0 && said.stdout.is_empty() && said.stderr == expected, "{said:?}");
    Ok(())
}

/// What `kprobectl check --kernel` does, for the kernel as its packages were unpacked.
fn the_command_judges_a_file_for_a_directory(fixture: &Fixture) -> Result<()> {
    let kernel = fixture.kernel()?;
    let root = unpacked(&kernel)?;
    let directory = tempfile::tempdir()?;
    let lines = "# three\np:a vfs_read count=$arg3\np:b vfs_read+1\n\np:c virtio_net:virtnet_open\n";
    fs::write(directory.path().join("probes.txt"), lines)?;
    let said = check(directory.path(), &format!("--kernel {} -f probes.txt -o json", root.display()))?;
    let found = said.objects()?;
    let key = |name: &str| found.iter().map(|one| one[name].as_str().unwrap_or_default()).collect::<Vec<_>>();
    ensure!(said.code == 1 && key("verdict") == ["accepted", "refused", "unknown"], "{said:?}");
    ensure!(found[1]["check"]["rule"] == "BAD_INSN_BNDRY", "{said:?}");
    ensure!(key("prototype")[0].starts_with("ssize_t vfs_read(struct file *file, "), "{said:?}");
    ensure!(key("kernel").iter().all(|release| *release == kernel.release), "{said:?}");
    ensure!(found.iter().map(|one| one["line"].as_u64()).eq([Some(2), Some(3), Some(5)]), "{said:?}");
    let said = check(directory.path(), &format!("--kernel {} 'p:a vfs_read'", root.display()))?;
    let first = format!("{}  accepted kprobes/a at vfs_read+0x0\n", kernel.release);
    ensure!(said.code == 0 && said.stdout.starts_with(&first), "{said:?}");
    Ok(())
}

/// What was compared, and how it came out.
#[derive(Debug, Default)]
struct Tally {
    compared: usize,
    accepted: usize,
    /// Places that boot may rewrite in a way that changes the verdict or its reason, by what makes
    /// boot do it.
    announced: BTreeMap<&'static str, Announced>,
    /// Names that a module of the guest has as well.
    of_modules: usize,
    differences: String,
}

/// Places that the verdict from the package announces.
#[derive(Debug, Default)]
struct Announced {
    places: usize,
    /// Those that boot made another verdict of, or another reason for it, than the likeliest.
    different: usize,
    /// Those that work in one and not in the other.
    opposite: usize,
}

fn every_offset_of_random_functions(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let offline = OfflineKernel::open(&fixture.kernel()?.image)?;
    let mut random = Random::of_theme("offline");
    let candidates = functions(&guest)?;
    ensure!(candidates.len() > 10_000, "only {} functions", candidates.len());
    let mut tally = Tally::default();
    for (draw, (name, size)) in ALWAYS.iter().enumerate() {
        compare(&guest, &offline, draw, &((*name).to_owned(), *size), &mut tally)?;
    }
    for draw in (ALWAYS.len()..).take(drawn()) {
        compare(&guest, &offline, draw, random.pick(&candidates), &mut tally)?;
    }
    let Tally { compared, accepted, announced, of_modules, differences } = &tally;
    progress::note(format_args!(
        "{compared} offsets of {} functions compared, {accepted} of them accepted; {of_modules} have the name of a module's function",
        drawn() + ALWAYS.len()
    ));
    for (kind, Announced { places, different, opposite }) in announced {
        progress::note(format_args!(
            "{places} of them are announced to be in {kind}: {different} differ from the likeliest, {opposite} of these in the verdict"
        ));
    }
    let announced: usize = announced.values().map(|one| one.places).sum();
    ensure!(differences.is_empty(), "{differences}");
    ensure!(*accepted > 0 && accepted < compared);
    // What is announced must stay the exception.
    ensure!(announced * 20 < *compared, "{announced} of {compared} are announced to depend on boot");
    Ok(())
}

fn compare(
    guest: &DaemonGuest,
    offline: &OfflineKernel,
    draw: usize,
    (name, size): &(String, u64),
    tally: &mut Tally,
) -> Result<()> {
    let entry = (0..size + 2).map(|offset| format!("p:o{draw}/e{offset} {name}+{offset}"));
    let returns = (0..RETURN_OFFSETS).map(|offset| format!("r:o{draw}/r{offset} {name}+{offset}"));
    let lines: Vec<String> = entry.chain(returns).collect();
    let online = daemon_answers(guest, &lines)?;
    for (line, booted) in lines.iter().zip(online) {
        let verdict = offline.judge(line)?;
        let ours = &verdict.answer;
        tally.compared += 1;
        tally.accepted += usize::from(booted.verdict() == Verdict::Accepted);
        let same =
            (booted.errno, &booted.rule, booted.by() as i32) == (ours.errno, &ours.rule, ours.by() as i32);
        let agrees = match verdict.outcome {
            Outcome::Accepted => booted.verdict() == Verdict::Accepted,
            Outcome::Refused => booted.verdict() == Verdict::Refused,
            Outcome::DependsOnBoot => true,
            Outcome::OfModule => false,
        };
        match (same, &verdict.boot) {
            (_, Some(boot)) if agrees => {
                let kind = boot.sites.first().map_or("", |site| site.what);
                let announced = tally.announced.entry(kind).or_default();
                announced.places += 1;
                announced.different += usize::from(!same);
                announced.opposite += usize::from((booted.errno == 0) != (ours.errno == 0));
            }
            (true, None) if agrees => {}
            _ if booted.rule == "NON_UNIQ_SYMBOL" && is_of_module(guest, name)? => tally.of_modules += 1,
            _ => writeln!(
                tally.differences,
                "{line}: booted {} {}, offline {} {} ({})",
                booted.errno,
                booted.rule,
                ours.errno,
                ours.rule,
                verdict.outcome.word()
            )?,
        }
    }
    Ok(())
}

/// Whether a loaded module has a function of that name.
fn is_of_module(guest: &DaemonGuest, name: &str) -> Result<bool> {
    let found = guest.shell(&format!("grep -c ' {name}[[:space:]]\\[' /proc/kallsyms || true"))?;
    Ok(found.trim().parse::<usize>()? > 0)
}
