//! Tests of daemons that cannot be reached.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use insta::assert_snapshot;

use super::command::kprobectl;
use super::fake::{Ending, Fake, await_handler, interrupt, shown};

#[test]
fn a_daemon_that_is_not_there() {
    let fake = Fake::start(Ending::Open);
    let run = |server: &str| {
        let output = kprobectl(&["list", "--server", server]).output().unwrap();
        shown(&output).replace(fake.directory().to_str().unwrap(), "DIRECTORY")
    };
    let missing = fake.directory().join("missing.sock");
    assert_snapshot!(run(missing.to_str().unwrap()), @"
    exit: 3
    -- stdout
    -- stderr
    error: cannot connect to `unix:DIRECTORY/missing.sock`: No such file or directory (os error 2)
    hint: is the daemon running? `systemctl status kprobed`
    hint: the default socket is `/run/kprobed/kprobed.sock`
    ");
    // A socket whose listener has gone.
    let dead = fake.directory().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert_snapshot!(run(dead.to_str().unwrap()), @"
    exit: 3
    -- stdout
    -- stderr
    error: cannot connect to `unix:DIRECTORY/dead.sock`: Connection refused (os error 111)
    hint: is the daemon running? `systemctl status kprobed`
    ");
    assert_snapshot!(run("https://localhost:1"), @"
    exit: 3
    -- stdout
    -- stderr
    error: cannot connect to `https://localhost:1`: no certificate authority to verify the daemon's certificate
    hint: add `--ca FILE`, `--cert FILE` and `--key FILE`
    ");
    assert_snapshot!(run("localhost"), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'localhost' for '--server <TARGET>': `localhost` is not an address of a daemon: write `HOST:PORT`, `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT`

    For more information, try '--help'.
    ");
}

#[test]
fn a_socket_that_others_own() {
    let fake = Fake::start(Ending::Open);
    std::fs::set_permissions(fake.socket(), Permissions::from_mode(0o600)).unwrap();
    // Another user must be able to run it, wherever it was built. `cp` writes it: a file that this
    // process had open for writing cannot be run as long as a child of another test, forked in
    // between, has its descriptor (ETXTBSY).
    let copy = fake.directory().join("kprobectl");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_kprobectl")).arg(&copy).status().unwrap().success());
    let mut command = Command::new(copy);
    command.args(["list", "--server"]).arg(fake.socket()).env_clear();
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    if is_root {
        command.uid(65_534).gid(65_534);
    } else {
        std::fs::set_permissions(fake.socket(), Permissions::from_mode(0o000)).unwrap();
    }
    let output = shown(&command.output().unwrap());
    assert_snapshot!(output.replace(fake.directory().to_str().unwrap(), "DIRECTORY"), @"
    exit: 3
    -- stdout
    -- stderr
    error: cannot connect to `unix:DIRECTORY/kprobed.sock`: Permission denied (os error 13)
    hint: members of the group `kprobed` may use the socket: `sudo usermod -aG kprobed $USER`, then log in again
    ");
}

#[test]
fn what_changes_nothing_is_never_said_to_be_carried_out() {
    // It takes connections, and never answers.
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("silent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let run = |arguments: &[&str]| {
        let arguments = [arguments, &["--timeout", "300ms", "--server", socket.to_str().unwrap()]].concat();
        let output = kprobectl(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (read, change) = ("nothing was changed: repeat", "the daemon may have carried out the request");
    for arguments in [
        &["list"][..],
        &["get", "kprobes/open"],
        &["ledger"],
        &["check", "p vfs_read"],
        &["add", "p vfs_read", "--dry-run"],
        &["observe", "--last", "1"],
        &["hist", "open", "--for", "1s"],
        &["trace", "p vfs_read", "--for", "1ms"],
    ] {
        let said = run(arguments);
        assert!(said.contains(read) && !said.contains(change), "{arguments:?}: {said}");
    }
    // `add` asks first what its definition stands for.
    for arguments in [&["delete", "kprobes/open"][..], &["aggregations", "delete", "one"]] {
        let said = run(arguments);
        assert!(said.contains(change) && !said.contains(read), "{arguments:?}: {said}");
    }
}

#[test]
fn an_interrupted_look_changed_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("silent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (arguments, left) in [
        (&["list"][..], ""),
        (&["add", "sched/sched_switch"], "hint: the daemon may have carried out the request"),
        (
            &["trace", "p vfs_read"],
            "hint: the daemon deletes the probes that it has defined for this command",
        ),
        (&["aggregations", "read", "one", "--interval", "1s", "--for", "1ms"], ""),
    ] {
        let mut command = kprobectl(&[arguments, &["--server", socket.to_str().unwrap()]].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It listens to signals before it asks anything, but not before it connects.
        let _connection = listener.accept().unwrap();
        await_handler(&child);
        interrupt(&child);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {said}");
        assert!(said.starts_with(&format!("error: interrupted\n{left}")), "{arguments:?}: {said}");
        assert_eq!(said.contains("hint"), !left.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn closed_pipes_are_no_error_in_any_form() {
    let fake = Fake::start(Ending::Endless);
    for form in ["table", "json", "yaml"] {
        let mut command = fake.command(&["observe", "-o", form]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{form}");
    }
}

#[test]
fn input_that_never_comes_can_be_interrupted() {
    let fake = Fake::start(Ending::Open);
    let mut child = fake.command(&["add", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    // Waiting for a child closes its input, unless the test holds the input.
    let _input = child.stdin.take();
    await_handler(&child);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(4));
}
