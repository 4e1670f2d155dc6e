//! Tests of changes in requests of many, and of those that are not answered in time.

use std::time::Duration;

use insta::assert_snapshot;
use kprobed_client::Client;

use super::fake::{Beginning, Ending, Fake, shown};

#[test]
fn a_change_without_an_answer_may_have_been_made() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["add", "p:slow x", "--timeout", "50ms"]), @"
    exit: 3
    -- stdout
    -- stderr
    error: the daemon did not answer within 50ms
    hint: the daemon may have carried out the request: check before you repeat it
    ");
}

#[test]
fn many_changes_have_the_time_of_many() {
    // It takes two milliseconds for each change.
    let fake = Fake::beginning(Beginning::Late, Ending::Open);
    let lines: Vec<_> = (0..999).map(|number| format!("p:open{number} do_sys_openat2")).collect();
    let added =
        fake.command(&["add", "-f", &fake.file(&lines.join("\n")), "--timeout", "1s"]).output().unwrap();
    assert!(added.status.success(), "{}", shown(&added));
    assert_eq!(fake.changed_at_once(), [999, 999], "checked, and made");
    // A small request has the limit that it is given.
    let limit = |changes| Client::time_for_changes(Duration::from_secs(30), changes).as_secs_f64();
    assert_eq!((limit(0), limit(1), limit(251), limit(1001)), (30.0, 30.0, 60.0, 150.0));
}

#[test]
fn a_long_file_is_checked_as_a_whole_and_defined_in_pieces() {
    let fake = Fake::start(Ending::Open);
    let long = "p:open do_sys_openat2\n".repeat(1000);
    let path = fake.file(&format!("{long}p:late do_sys_openat2\np:open do_sys_openat2\n"));
    let text = fake.run(&["add", "-f", &path]);
    assert_eq!(fake.changed_at_once(), [1000, 2, 1000, 2]);
    let (made, told) = text.split_once("-- stderr\n").unwrap();
    assert_eq!(made.lines().filter(|line| *line == "kprobes/open").count(), 1000);
    assert_snapshot!(format!("{}\n{told}", made.lines().next().unwrap()), @"
    exit: 1
    line 1001:
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:late do_sys_openat2
      |        ^^^^^^^^^^^^^^
    hint: `+5` works
    note: the first 1000 definitions were carried out, and those after them were not
    ");
}

#[test]
fn many_are_deleted_in_few_requests() {
    let fake = Fake::start(Ending::Open);
    let output = fake.command(&[vec!["delete"], vec!["open"; 1150]].concat()).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), stdout.lines().count()), (Some(0), 1150), "{stdout}");
    assert_eq!(fake.changed_at_once(), [1000, 150]);
}
