//! Tests of `trace` on many hosts.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::command::kprobectl_in;
use super::fake::{Beginning, Scripted, Way, interrupt, shown, wait_until};
use super::merging::{DEADLINE, Observer, account, assert_closed, context, let_time_pass, numbers, of_type};

const DEFINITION: &str = "p:open do_sys_openat2";
const MADE: &str = "create p:open do_sys_openat2, enabled: false, held by: h-1";
const ENABLED: &str = "update open, enabled: Some(true)";

/// A probe there, from its beginning to its end in order.
const WHOLE: [&str; 6] = ["hold", MADE, "subscribed open", ENABLED, "delete open", "hold ended"];

/// Daemons called `a`, `b` and so on.
fn fakes<const N: usize>() -> ([Scripted; N], TempDir) {
    let base = Instant::now();
    let names = ["a", "b", "c"];
    let fakes: [Scripted; N] = std::array::from_fn(|number| {
        let way = if number == 0 { Way::Unix } else { Way::Tcp };
        Scripted::start(way, base, Duration::from_secs(100 * number as u64))
    });
    let hosts: Vec<_> = names.into_iter().zip(fakes.iter().map(Scripted::address)).collect();
    let context = context(&hosts);
    (fakes, context)
}

/// Holds, changes and subscriptions, when the last hold has ended.
fn log(fake: &Scripted) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let log = fake.log();
        if log.last().is_some_and(|last| last == "hold ended") {
            return log;
        }
        assert!(begun.elapsed() < DEADLINE, "{log:?}");
        std::thread::yield_now();
    }
}

#[test]
fn probes_are_on_all_hosts_for_their_events_alone_and_one_that_refuses_is_told() {
    let ([a, b, c], context) = fakes();
    c.kept().change(|habits| habits.refuses = Some("do_sys".to_owned()));
    let mut observer = Observer::run(context.path(), &["trace", DEFINITION, "-o", "json"]);
    assert_eq!(observer.observing(), "observing 2 of 3 hosts");
    a.record([0]);
    let_time_pass();
    b.record([1]);
    observer.until_number(1);
    // What was recorded before the end is shown, however late it was.
    let_time_pass();
    b.record([2]);
    let_time_pass();
    a.record([3]);
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 1, "one of them refused: {messages}");
    assert_closed(&objects, 3);
    assert_eq!(numbers(&objects), [0, 1, 2, 3]);
    let outcomes = ["a", "b", "c"].map(|host| account(&objects, host)["outcome"].clone());
    assert_eq!(outcomes, ["answered", "answered", "refused"]);
    assert_eq!(account(&objects, "c")["reason"], "probe point is not an instruction boundary");
    let states = of_type(&objects, "host_state");
    let refused = states.iter().find(|one| one["host"] == "c").unwrap();
    assert_eq!(refused["state"], "given_up");
    for fake in [&a, &b] {
        assert_eq!(log(fake), WHOLE);
        assert_eq!(fake.kept().shown(), Vec::<String>::new());
    }
    assert_eq!(log(&c), ["hold", MADE, "hold ended"]);
}

#[test]
fn a_host_that_dies_is_accounted_for_and_the_others_go_on() {
    let ([a, mut b], context) = fakes();
    let mut observer = Observer::run(context.path(), &["trace", DEFINITION, "-o", "json"]);
    assert_eq!(observer.observing(), "observing 2 of 2 hosts");
    b.record([0]);
    observer.until_number(0);
    b.kill();
    // Its probes have gone with the connection: it is not tried again.
    observer.until_state("b", "given_up");
    a.record([1]);
    observer.until_number(1);
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 4, "{messages}");
    assert_closed(&objects, 2);
    assert_eq!(numbers(&objects), [0, 1]);
    let outcomes = ["a", "b"].map(|host| account(&objects, host)["outcome"].clone());
    assert_eq!(outcomes, ["answered", "failed"]);
    assert_eq!(log(&a), WHOLE);
    assert_eq!(log(&b), [&WHOLE[..4], &WHOLE[5..]].concat(), "no request reached it any more");
}

#[test]
fn it_ends_with_a_count_a_time_and_a_command() {
    for (arguments, is_counted) in
        [(&["-n", "2"][..], true), (&["--for", "100ms"], false), (&["--", "true"], false)]
    {
        let ([a, b], context) = fakes();
        let mut observer =
            Observer::run(context.path(), &[&["trace", DEFINITION, "-o", "json"], arguments].concat());
        observer.observing();
        if is_counted {
            a.record([0]);
            let_time_pass();
            b.record([1]);
        }
        let (code, objects, messages) = observer.end();
        assert_eq!(code, 0, "{arguments:?}: {messages}");
        assert_closed(&objects, 2);
        assert_eq!(numbers(&objects).len(), if is_counted { 2 } else { 0 });
        for fake in [&a, &b] {
            assert_eq!(log(fake), WHOLE);
        }
    }
}

#[test]
fn observe_defines_probes_on_all_hosts_too() {
    let ([a, b], context) = fakes();
    let arguments = ["observe", "-p", DEFINITION, "--for", "100ms", "-o", "json"];
    let (code, objects, messages) = Observer::run(context.path(), &arguments).end();
    assert_eq!(code, 0, "{messages}");
    assert_closed(&objects, 2);
    for fake in [&a, &b] {
        assert_eq!(log(fake), WHOLE);
    }
}

#[test]
fn streams_do_not_end_before_they_have_begun() {
    let ([a, b], context) = fakes();
    b.set_beginning(Beginning::Late);
    // The command runs when all hosts record.
    let ran = context.path().join("ran");
    let ended = context.path().join("ended");
    let script =
        format!("touch '{}'; until [ -e '{}' ]; do sleep 0.01; done", ran.display(), ended.display());
    let observer =
        Observer::run(context.path(), &["trace", DEFINITION, "-o", "json", "--", "/bin/sh", "-c", &script]);
    wait_until("the command runs", || ran.exists());
    for fake in [&a, &b] {
        assert!(fake.log().iter().any(|entry| entry == ENABLED), "{:?}", fake.log());
    }
    a.record([0]);
    let_time_pass();
    b.record([1]);
    std::fs::write(&ended, "").unwrap();
    let (code, objects, messages) = observer.end();
    assert_eq!((code, numbers(&objects)), (0, vec![0, 1]), "{messages}");
    assert_closed(&objects, 2);
    assert!(messages.ends_with("2 shown, 0 lost"), "{messages}");

    for arguments in [&["--for", "1ms"][..], &["-n", "5", "--", "true"]] {
        let ([a, b], context) = fakes();
        b.set_beginning(Beginning::Late);
        let arguments = [&["trace", DEFINITION, "-o", "json"], arguments].concat();
        let (code, objects, messages) = Observer::run(context.path(), &arguments).end();
        assert_eq!(code, 0, "{arguments:?}: {messages}");
        assert_closed(&objects, 2);
        for fake in [&a, &b] {
            assert_eq!(log(fake), WHOLE);
        }
    }
}

#[test]
fn an_interrupt_before_a_stream_begins_leaves_nothing() {
    let ([a, b], context) = fakes();
    b.set_beginning(Beginning::Late);
    let observer = Observer::run(context.path(), &["trace", DEFINITION, "-o", "json"]);
    let is_asked = |fake: &Scripted| fake.log().iter().any(|entry| entry.starts_with("subscribed"));
    wait_until("both are asked", || is_asked(&a) && is_asked(&b));
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 0, "{messages}");
    assert_closed(&objects, 2);
    assert!(messages.ends_with("0 shown, 0 lost"), "{messages}");
    for fake in [&a, &b] {
        let log = log(fake);
        assert!(log.ends_with(&[WHOLE[4].to_owned(), WHOLE[5].to_owned()]), "{log:?}");
        assert_eq!(fake.kept().shown(), Vec::<String>::new());
    }
    assert!(!b.log().iter().any(|entry| entry == ENABLED), "{:?}", b.log());
}

#[test]
fn what_a_host_does_not_send_at_the_end_is_not_called_nothing() {
    let ([a, b], context) = fakes();
    let mut observer = Observer::run(context.path(), &["trace", DEFINITION, "-o", "json"]);
    observer.observing();
    b.set_silent(true);
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 0, "{messages}");
    assert_closed(&objects, 2);
    let told = "0 shown, at least 0 lost\n  the last events may be missing: b did not send them";
    assert!(messages.ends_with(told), "{messages}");
    for fake in [&a, &b] {
        assert_eq!(log(fake), WHOLE);
    }
}

#[test]
fn one_that_is_killed_leaves_the_probes_to_the_holds() {
    let ([a, b], context) = fakes();
    let mut observer = Observer::run(context.path(), &["trace", DEFINITION, "-o", "json"]);
    observer.observing();
    observer.child.kill().unwrap();
    for fake in [&a, &b] {
        assert_eq!(log(fake), [&WHOLE[..4], &WHOLE[5..]].concat());
    }
}

#[test]
fn fail_fast_records_nothing_when_one_refuses() {
    let ([a, b], context) = fakes();
    b.kept().change(|habits| habits.refuses = Some("do_sys".to_owned()));
    let observer = Observer::run(context.path(), &["trace", DEFINITION, "-o", "json", "--fail-fast"]);
    let (code, objects, messages) = observer.end();
    assert!(code == 1 || code == 4, "{code}: {messages}");
    assert_closed(&objects, 2);
    assert_eq!(account(&objects, "b")["outcome"], "refused");
    assert!(!a.log().iter().any(|entry| entry == ENABLED), "{:?}", a.log());
    assert_eq!(a.kept().shown(), Vec::<String>::new());
}

#[test]
fn more_hosts_than_is_usual_need_a_confirmation() {
    let ([a, b, c], context) = fakes();
    let config = context.path().join("config.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("    hosts:", "    confirm_above: 2\n    hosts:")).unwrap();
    c.kept().change(|habits| habits.refuses = Some("do_sys".to_owned()));
    let run = |arguments: &[&str]| {
        let arguments = [&["trace", DEFINITION, "--hosts", "all", "--for", "50ms"], arguments].concat();
        shown(&kprobectl_in(context.path(), &arguments).output().unwrap())
    };
    insta::assert_snapshot!(run(&[]), @"
    exit: 2
    -- stdout
    a,b (2 hosts, kernel 6.12.1):
    open
    -- stderr
    note: nothing was changed
    c (1 host, kernel 6.12.1): refused
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2
      |        ^^^^^^^^^^^^^^
    hint: `+5` works
    note: nothing was changed
    hosts: 3 targeted = 2 answered + 1 refused + 0 failed + 0 timed out + 0 unreachable + 0 not tried
    error: this would change 3 hosts, and more than 2 need a confirmation
    hint: add `--yes`
    ");
    for fake in [&a, &b, &c] {
        assert!(!fake.log().iter().any(|entry| entry == "hold"), "{:?}", fake.log());
    }
    let confirmed = run(&["--yes"]);
    assert!(confirmed.starts_with("exit: 1\n"), "{confirmed}");
    // People read all of a refusal at once, and its reason again at the end.
    let refusal = "c (1 host, kernel 6.12.1): refused\nerror: probe point is not an instruction boundary [";
    let last = "c (1 host): refused: probe point is not an instruction boundary\nhosts: 3 targeted = 2 answered + 1 refused";
    let (before, after) = confirmed.split_once("observing 2 of 3 hosts\n").unwrap();
    assert!(before.contains(refusal) && after.contains(last), "{confirmed}");
    assert!(log(&a).ends_with(&WHOLE.map(ToOwned::to_owned)), "{:?}", a.log());
}
