//! Tests of calls in `trace` and `observe`: an entry joined with its return.

use serde_json::{Value, json};

use super::fake::{Ending, Fake};

const OPEN: &str = "do_sys_openat2(filename:ustring) -> fd:s32";

/// What the command prints on both streams.
fn printed(fake: &Fake, arguments: &[&str]) -> (String, String) {
    let output = fake.command(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// Whether all of these are in a text.
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

const HEADINGS: &str = "TIME [CPU] COMM-TID FUNCTION FIELDS -> VALUE DURATION\n";

#[test]
fn a_call_is_one_line_at_its_return() {
    let fake = Fake::start(Ending::Open);
    let (stdout, stderr) = printed(&fake, &["trace", OPEN, "-n", "3"]);
    let lines = "12:00:00.001005 [001] sh-133 do_sys_openat2 (no entry) -> fd=9\n\
                 12:00:00.001022 [001] cat-131 do_sys_openat2 filename=\"/etc/nothere\" -> fd=-2 12.0us\n\
                 12:00:00.001035 [001] ls-132  do_sys_openat2 filename=\"/etc/ld.so\" -> fd=4 5.0us\n";
    assert_eq!(stdout, format!("{HEADINGS}{lines}"));
    let note = "` is `p do_sys_openat2 filename:ustring` and `r4096 do_sys_openat2 fd=$retval:s32`\n";
    assert_has(
        &stderr,
        &[note, ", 3 shown, 0 lost\n", "\n  2 calls with both ends\n  1 call without an entry: "],
    );
    let log = fake.log_of_holds();
    let made: Vec<_> = log.iter().filter(|change| change.starts_with("create")).collect();
    // The return probe first: it records before the entry probe.
    assert_eq!(
        made,
        [
            "create r4096 do_sys_openat2 fd=$retval:s32, enabled: false, held by: h-1",
            "create p do_sys_openat2 filename:ustring, enabled: false, held by: h-1"
        ]
    );
    assert_eq!(fake.asked().selection.unwrap().probes, ["kprobes/opened", "kprobes/opening"]);
}

#[test]
fn what_lacks_an_end_is_named_and_is_no_loss() {
    let fake = Fake::start(Ending::Ended);
    let (stdout, stderr) = printed(&fake, &["trace", OPEN]);
    let lines = "12:00:00.003045 [001] ls-132  do_sys_openat2 filename=\"/etc/passwd\" -> fd=3 2.02ms\n\
                 12:00:00.001040 [000] sh-133  do_sys_openat2 filename=\"/dev/tty\" -> (gap)\n\
                 12:00:00.006001 [000] cat-131 do_sys_openat2 filename=\"/etc/hosts\" -> fd=3 1.0us\n";
    assert!(stdout.ends_with(lines), "{stdout}");
    let counts = "\n  4 calls with both ends\n  1 call without an entry: begun before the first event, or skipped by \
                  the kernel (NMISSED)\n  1 call beside lost events\n";
    assert_has(&stderr, &["lost: 12 events of CPU 0", "6 shown, at least 12 lost\n", counts]);
    assert!(!stderr.contains("not shown"), "two events are one call: {stderr}");
}

#[test]
fn a_filter_sees_both_ends() {
    let fake = Fake::start(Ending::Ended);
    let (stdout, stderr) =
        printed(&fake, &["trace", OPEN, "--filter", "fd < 0 && filename ~ \"/etc/*\"", "--comm", "c*"]);
    let line = "12:00:00.001022 [001] cat-131 do_sys_openat2 filename=\"/etc/nothere\" -> fd=-2 12.0us\n";
    assert_eq!(stdout, format!("{HEADINGS}{line}"));
    assert_has(&stderr, &["1 shown, ", "\n  4 calls with both ends\n"]);
    // The daemon must not leave out one of the ends.
    assert_eq!(fake.asked().selection.unwrap().filter, "");
    // A value that is missing is neither so nor otherwise.
    let shown = fake.run(&["trace", OPEN, "--filter", "!(fd == 3) || fd == 3", "-q"]);
    assert_eq!(shown.matches("do_sys_openat2").count(), 5, "{shown}");
}

#[test]
fn programs_get_one_object_for_a_call() {
    let fake = Fake::start(Ending::Ended);
    let output = fake.command(&["trace", OPEN, "-o", "json"]).output().unwrap();
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let calls: Vec<_> = lines.iter().filter(|line| line["type"] == "call").collect();
    let whole = calls.iter().find(|call| call["fields"]["fd"] == -2).unwrap();
    let expected = json!({
        "type": "call",
        "time": "2026-01-31T12:00:00.001022000Z",
        "timestamp_ns": 1_022_000,
        "function": "do_sys_openat2",
        "cpu": 1,
        "tid": 131,
        "tgid": 131,
        "comm": "cat",
        "duration_ns": 12_000,
        "incomplete": null,
        "fields": { "filename": "/etc/nothere", "fd": -2 },
        "faults": [],
        "unproven": [],
    });
    assert_eq!(**whole, expected);
    let lacking: Vec<_> = calls.iter().filter_map(|call| call["incomplete"].as_str()).collect();
    assert_eq!(lacking, ["no_entry", "gap"]);
    assert!(calls.iter().all(|call| call["duration_ns"].is_null() == call["incomplete"].is_string()));
    assert_eq!(lines.iter().filter(|line| line["type"] == "loss").count(), 1);
}

#[test]
fn observe_has_calls_too() {
    let fake = Fake::start(Ending::Open);
    let (stdout, _) = printed(&fake, &["observe", "-p", OPEN, "-n", "2", "-q", "--time", "trace"]);
    let lines = "0.001005 [001] sh-133 do_sys_openat2 (no entry) -> fd=9\n\
                 0.001022 [001] cat-131 do_sys_openat2 filename=\"/etc/nothere\" -> fd=-2 12.0us\n";
    assert_eq!(stdout, format!("{HEADINGS}{lines}"));
}

#[test]
fn what_cannot_be_said_of_calls_is_refused() {
    let fake = Fake::start(Ending::Open);
    for (arguments, said) in [
        (
            &["trace", "do_sys_openat2(filename:ustring) ->"][..],
            "error: the name of the return value is expected behind `->`",
        ),
        (&["trace", "do_sys_openat2(int dfd) -> fd"], "error: `int dfd` is not an argument of a call"),
        (&["trace", OPEN, "--filter", "fdd < 0"], "hint: did you mean `fd`? there are filename, fd, "),
        (&["trace", OPEN, "--filter", "common_flags == 1"], "`common_flags` is known to the daemon only"),
        (&["trace", OPEN, "--filter", "fd <"], "expected a value to compare the field with"),
        (&["trace", OPEN, "--sample", "3"], "error: `--sample` takes single events"),
        (&["trace", OPEN, "--fields", "fd"], "error: `--fields` selects fields of single events"),
    ] {
        let (stdout, stderr) = printed(&fake, arguments);
        assert!(stdout.is_empty() && stderr.contains(said), "{arguments:?}: {stdout}{stderr}");
    }
}
