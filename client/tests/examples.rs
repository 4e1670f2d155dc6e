//! The examples of the library, as programs, against the fake daemon of `kprobectl`'s tests.

#[expect(clippy::disallowed_methods, reason = "a daemon of canned answers makes statuses of its own")]
#[allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "the tests of kprobectl need more of it"
)]
#[cfg(test)]
#[path = "../kprobectl/tests/kprobectl/fake/mod.rs"]
mod fake;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use fake::{Ending, Fake, interrupt, shown};
use kprobed_client::api::stream_start::Start;
use serde_json::Value;

/// The program of an example, which cargo builds beside the programs of tests, in an environment
/// that is the same everywhere.
#[cfg(test)]
fn example(name: &str) -> Command {
    let mut directory: PathBuf = std::env::current_exe().unwrap();
    directory.pop();
    assert!(directory.ends_with("deps"), "{}", directory.display());
    let program = directory.with_file_name("examples").join(name);
    assert!(
        program.is_file(),
        "there is no {}: `cargo test -p kprobed-client` builds it, and so does `cargo build -p kprobed-client --examples`",
        program.display()
    );
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null());
    command
}

#[cfg(test)]
fn at(fake: &Fake, name: &str) -> Command {
    let mut command = example(name);
    command.env("KPROBED_SERVER", fake.socket());
    command
}

#[test]
fn observe_prints_events_and_gaps_until_the_daemon_ends_the_stream() {
    let fake = Fake::start(Ending::Ended);
    let output = at(&fake, "observe").arg("kprobes/*").output().unwrap();
    assert_eq!(
        shown(&output),
        "exit: 0\n\
         -- stdout\n\
         -- 12 events are missing here (overrun)\n\
         1000000 [001] cat kprobes/open dfd=-100 filename=\"/etc/passwd\"\n\
         2000000 [001] ls kprobes/open dfd=3 filename=\"/tmp/\\xff\"\n\
         3000000 [001] cat kprobes/open dfd=-100 filename=(fault)\n\
         -- stderr\n\
         3 events, 12 known to be lost\n"
    );
    assert_eq!(fake.asked().selection.unwrap().probes, ["kprobes/*"]);
}

#[test]
fn observe_ends_with_an_interrupt() {
    let fake = Fake::start(Ending::Open);
    let mut child = at(&fake, "observe").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(4);
    assert_eq!(lines.map(Result::unwrap).count(), 4);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "3 events, 12 known to be lost\n");
}

#[test]
fn define_checks_defines_lists_and_deletes() {
    let fake = Fake::start(Ending::Open);
    assert_eq!(
        shown(&at(&fake, "define").output().unwrap()),
        "exit: 0\n\
         -- stdout\n\
         defined kprobes/open at do_sys_openat2+0x0\n\
         refused `p:kprobes/open_later do_sys_openat2+3`: BAD_INSN_BNDRY (EILSEQ)\n  \
         `do_sys_openat2+3`: probe point is not an instruction boundary\n  \
         hint: `+5` works\n  \
         offsets that work: +0, +5\n\
         kprobes/open: Armed\n\
         kprobes/waiting: HeldBack\n\
         deleted kprobes/open: it was hit 7 times\n\
         -- stderr\n"
    );
}

#[test]
fn pipeline_goes_on_where_it_ended() {
    let fake = Fake::start(Ending::Open);
    let file = fake.directory().join("events.cursor");
    let run = || {
        let output = at(&fake, "pipeline").arg(&file).arg("--until-now").output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "b0:2:5\n");
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = run();
    assert_eq!(fake.asked().start.unwrap().start, Some(Start::Oldest(true)));
    let kinds: Vec<_> = lines.lines().map(kind).collect();
    assert_eq!(kinds, ["epoch", "loss", "event", "event", "event", "account"]);
    run();
    let Some(Start::Cursor(cursor)) = fake.asked().start.unwrap().start else { panic!() };
    assert_eq!((cursor.boot_id.as_str(), cursor.epoch, cursor.sequence), ("b0", 2, 5));
}

#[test]
fn pipeline_ends_with_an_interrupt_and_its_account() {
    let fake = Fake::start(Ending::Open);
    let file = fake.directory().join("events.cursor");
    let mut child = at(&fake, "pipeline").arg(&file).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let kinds: Vec<_> = lines.by_ref().take(5).map(|line| kind(&line)).collect();
    assert_eq!(kinds, ["epoch", "loss", "event", "event", "event"]);
    interrupt(&child);
    let account: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert_eq!(account["daemon"]["closes"], true, "{account}");
    assert_eq!((&account["events"], &account["lost"]), (&Value::from(3), &Value::from(12)));
    assert!(lines.next().is_none() && child.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "b0:2:3\n");
}

#[cfg(test)]
fn kind(line: &str) -> String {
    let object: Value = serde_json::from_str(line).unwrap();
    object["type"].as_str().unwrap().to_owned()
}

#[test]
fn examples_say_what_to_do_when_there_is_no_daemon() {
    for (name, arguments) in [("observe", &[][..]), ("define", &[]), ("pipeline", &["/nonexistent/cursor"])] {
        let output =
            example(name).args(arguments).env("KPROBED_SERVER", "/nonexistent/kprobed.sock").output();
        let output = shown(&output.unwrap());
        assert!(output.starts_with("exit: 1\n"), "{name}: {output}");
        assert!(output.contains("hint: is the daemon running?"), "{name}: {output}");
    }
    let output = example("pipeline").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
