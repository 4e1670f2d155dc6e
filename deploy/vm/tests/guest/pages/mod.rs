//! The console blocks of the README and the book: each command is run as a reader would type it, page by page in the
//! order of the page, and prints what the page shows.
//!
//! Only a kernel has the functions, types, instructions and events that the pages show. [`shape`] says which parts of
//! an output may differ. `server/tests/sources` holds that no other page has such a block, and that each exception is
//! the command of a page.

mod shape;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::daemon::PRODUCT_CONFIG;
use kprobed_vm::machine::{Command, PATIENCE};
use kprobed_vm::workspace;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        other_outputs_are_found,
    }
    Rarely {
        pages_show_what_commands_print,
    }
};

/// Commands that one guest cannot run: the page, how the command begins, and what it lacks.
#[rustfmt::skip]
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("deploy/docs/explain/audit.md", "kprobectl audit verify --head", "the page shortens the digest"),
    ("deploy/docs/explain/fleet-time.md", "kprobectl observe", "a fleet"),
    ("deploy/docs/howto/fleet.md", "kprobectl check", "a fleet"),
    ("deploy/docs/howto/fleet.md", "kprobectl list --hosts", "a fleet"),
    ("deploy/docs/howto/kernel-upgrade-in-ci.md", "kprobectl check --diff", "packages of two kernels"),
    ("deploy/docs/howto/rollout.md", "kprobectl rollout", "a fleet"),
    ("deploy/docs/howto/source-lines.md", "kprobectl", "debug information and sources of the kernel"),
    ("deploy/docs/tutorial/fifty-hosts.md", "kprobectl", "a fleet"),
];

/// What must have happened on a host before a command shows what the page shows: the page, how the command begins, and
/// a script.
const BEFORE: &[(&str, &str, &str)] = &[
    (
        "deploy/docs/explain/audit.md",
        "kprobectl audit --since",
        "kprobectl add 'p:storage/open vfs_open'
         kprobectl observe storage/open -n 1
         kprobectl add 'p:storage/trap do_int3' || true",
    ),
    (
        "deploy/docs/explain/costs.md",
        "kprobectl list",
        // A costly probe, so that a slow guest is over the budget too.
        "read='file->f_path.dentry->d_name.name:string'
         kprobectl add \"p:storm vfs_read a=$read b=$read c=$read\"
         until kprobectl list | grep tripped; do dd if=/dev/zero of=/dev/null bs=1 count=200000; done",
    ),
    (
        "deploy/docs/explain/costs.md",
        "kprobectl hits --cost",
        "kprobectl delete storm; kprobectl add 'p:read vfs_read'; kprobectl add 'r:read_return vfs_read'
         until kprobectl hits --cost | grep read_return; do sleep 2; done",
    ),
];

/// Programs that call the functions that the pages probe, all the time.
const WORK: &str = "while :; do cat /etc/hostname /etc/passwd | wc -c > /dev/null; usleep 50000; done";

/// A command of a console block, and the lines that the page shows below it.
struct Step {
    command: String,
    shown: Vec<String>,
}

/// The commands of all console blocks of a page.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if is_console {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step { command: command.to_owned(), shown: Vec::new() }),
                None => steps.iter_mut().last().into_iter().for_each(|step| step.shown.push(line.to_owned())),
            }
        }
    }
    steps
}

/// The README and all pages of the book, as paths from the root, in the order of their names.
fn pages(root: &Path) -> Result<Vec<String>> {
    let mut found = vec![root.join("README.md")];
    let mut directories = vec![root.join("deploy/docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let path: PathBuf = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found.iter().map(|path| Ok(path.strip_prefix(root)?.to_string_lossy().into_owned())).collect()
}

/// The entry of a list for a command of a page.
fn of<'a>(list: &[(&str, &str, &'a str)], page: &str, command: &str) -> Option<&'a str> {
    list.iter().find(|(of, begin, _)| *of == page && command.starts_with(begin)).map(|(.., what)| *what)
}

/// What a reader types, and then sees. A command that goes on until Ctrl-C ends after two seconds.
fn typed(step: &Step) -> String {
    let Step { command, shown } = step;
    let follows = ["kprobectl trace ", "kprobectl observe "].iter().any(|begin| command.starts_with(begin));
    let is_endless = follows && ![" -n ", " --for ", " --last "].iter().any(|end| command.contains(end));
    // A page that prints a file shows what the reader has written into it.
    let file =
        command.strip_prefix("cat ").map(|file| format!("cat > {file} <<'END'\n{}\nEND\n", shown.join("\n")));
    format!("{}{{ {command}{}\n}} 2>&1", file.unwrap_or_default(), if is_endless { " --for 2s" } else { "" })
}

/// How what the commands of a page print differs from what it shows. Returns how many commands were run.
fn run(guest: &DaemonGuest, page: &str, steps: &[Step], findings: &mut String) -> Result<u32> {
    let home = format!("/tmp/{}", page.replace('/', "-"));
    guest.shell(&format!("mkdir {home}"))?;
    let shell = |script: &str| {
        let command = Command::shell(script).cwd(&home).env("HOME", &home).limit(PATIENCE);
        guest.machine.exec(&command).with_context(|| format!("{page}: {script}"))
    };
    let mut count = 0;
    for step in steps.iter().filter(|step| of(NOT_RUN, page, &step.command).is_none()) {
        if let Some(script) = of(BEFORE, page, &step.command) {
            let prepared = shell(&format!("set -e\n{script}"))?;
            ensure!(prepared.status.success(), "{page}: {script}: {prepared:?}");
        }
        let output = shell(&typed(step))?;
        count += 1;
        let printed = output.stdout_text();
        let difference = if step.shown.is_empty() {
            // The page leaves out what it prints.
            (!output.status.success()).then(|| format!("{:?}", output.status))
        } else {
            let shown: Vec<_> = step.shown.iter().map(String::as_str).collect();
            shape::difference(&shown, &printed.lines().collect::<Vec<_>>())
        };
        if let Some(difference) = difference {
            writeln!(findings, "{page}: $ {}\n{difference}\nit printed:\n{printed}", step.command)?;
        }
    }
    Ok(count)
}

fn pages_show_what_commands_print(fixture: &Fixture) -> Result<()> {
    // The pages show what the kernels of Debian 12 and 13 print: 5.10 counts no events and proves no reads, and 6.18
    // has other names for members.
    if fixture.is_older_than(6, 1) || !fixture.is_older_than(6, 13) {
        return Ok(());
    }
    let root = workspace::root().context("no workspace")?;
    let guest = fixture.daemon_with(PRODUCT_CONFIG)?;
    guest.machine.spawn("work", &Command::shell(WORK))?;
    let (mut findings, mut count) = (String::new(), 0);
    for page in pages(&root)? {
        let steps = steps(&fs::read_to_string(root.join(&page))?);
        if !steps.is_empty() {
            count += run(&guest, &page, &steps, &mut findings)?;
            guest.delete_all()?;
        }
    }
    guest.machine.kill_process("work")?;
    ensure!(findings.is_empty(), "pages do not show what commands print:\n{findings}");
    ensure!(count > 25, "only {count} commands were run");
    Ok(())
}

fn other_outputs_are_found(_: &Fixture) -> Result<()> {
    let lines = |text: &'static str| text.lines().collect::<Vec<_>>();
    let shown = lines(
        "TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS\n\
         05:44:18.233129 [000] cat-273 kprobes/open name=\"busybox\" flags=32800 bad=(fault)\n\
         3 recorded, 3 shown, 0 lost\n  1 more came, not shown",
    );
    let event = "21:00:01.000001 [013] kworker/0:1-9  kprobes/open name=\"a b\" flags=0x8000 bad=(fault)";
    let printed = [shown[0], event, event, "2172 recorded, 3 shown, 9 lost"];
    ensure!(shape::difference(&shown, &printed).is_none(), "{:?}", shape::difference(&shown, &printed));
    for (is, wrong) in [
        ("COMM-TID", "COMM-PID"),
        ("kprobes/open", "kprobes/read"),
        (" flags=", " flag="),
        ("(fault)", "7"),
        ("name=\"a b\" ", ""),
        ("2172 recorded, 3 shown", "3 shown"),
        ("9 lost", "9 lost, 3 late"),
        ("9 lost", "9 lost\nnote: more"),
        ("9 lost", "9 lost\n  1 more came"),
    ] {
        let printed = printed.join("\n").replace(is, wrong);
        let difference = shape::difference(&shown, &printed.lines().collect::<Vec<_>>());
        ensure!(difference.is_some(), "`{wrong}` for `{is}` is not found");
    }
    // Any lines, also none, and the code of another kernel.
    let shown = lines(
        "a hit takes 214±12 ns\n...\n>  +7  49 89 f5            mov %rsi,%r13    +8 is inside of this instruction",
    );
    let code = ">  +5  41 55        push %r13    +6 is inside of this instruction";
    for between in [vec![], vec!["one", "two"]] {
        let printed = [vec!["a hit takes 1014±92 ns"], between, vec![code]].concat();
        ensure!(shape::difference(&shown, &printed).is_none(), "{printed:?}");
    }
    ensure!(shape::difference(&shown, &["a hit takes 1014±92 us", code]).is_some());
    ensure!(
        shape::difference(&shown, &["a hit takes 1014±92 ns", "* +5  41 55  push %r13    +5 works"])
            .is_some()
    );
    let page = "```sh\n$ no\n```\n```console\n$ a b\nc\n\n$ d\n```\n$ e\n";
    let steps: Vec<_> = steps(page).into_iter().map(|step| (step.command, step.shown.join("\n"))).collect();
    ensure!(steps == [("a b".to_owned(), "c\n".to_owned()), ("d".to_owned(), String::new())], "{steps:?}");
    Ok(())
}
