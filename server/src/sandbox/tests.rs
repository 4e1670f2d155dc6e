//! Each test runs in a process of its own, since a sandbox is never taken off: it starts the same test
//! program again, for one test that does nothing elsewhere.

use std::env;
use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::ptrace;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::kill;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{Pid, chown, getpid, setuid};

use super::*;

/// Set in the process that is sandboxed.
const INSIDE: &str = "KPROBED_TEST_SANDBOX";

/// Runs a test of this module inside.
fn inside(test: &str) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads", "1", &format!("sandbox::tests::{test}")])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// A field of the status of each thread.
fn of_all_threads(field: &str) -> Vec<String> {
    let statuses = fs::read_dir("/proc/self/task").unwrap().map(|task| {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().to_owned()
    });
    statuses.collect()
}

#[test]
fn what_a_daemon_never_does_is_refused() {
    if !is_inside() {
        return inside("what_a_daemon_never_does_is_refused");
    }
    let (end, ended) = UnixStream::pair().unwrap();
    let before = thread::spawn(move || (&ended).read(&mut [0]).unwrap());
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    drop_privileges(Mode::Required).unwrap();
    filter_calls(Mode::Required).unwrap();
    // A thread that ran before is filtered as well.
    let filters = of_all_threads("Seccomp:");
    assert!(filters.len() >= 2 && filters.iter().all(|filter| filter == "2"), "{filters:?}");
    assert!(of_all_threads("NoNewPrivs:").iter().all(|set| set == "1"));
    let refused = |error: io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    refused(Command::new("/bin/true").spawn().unwrap_err());
    assert_eq!(ptrace::attach(Pid::parent()), Err(Errno::EPERM));
    assert_eq!(ptrace::traceme(), Err(Errno::EPERM));
    assert_eq!(mount(Some("none"), "/tmp", Some("tmpfs"), MsFlags::empty(), None::<&str>), Err(Errno::EPERM));
    assert_eq!(umount("/proc"), Err(Errno::EPERM));
    assert_eq!(kill(getpid(), None), Err(Errno::EPERM));
    assert_eq!(setuid(nix::unistd::getuid()), Err(Errno::EPERM));
    assert_eq!(chown("/tmp", None, None), Err(Errno::EPERM));
    let packets = |family| socket(family, SockType::Datagram, SockFlag::empty(), None);
    assert_eq!(packets(AddressFamily::Packet).unwrap_err(), Errno::EPERM);
    assert_eq!(packets(AddressFamily::Vsock).unwrap_err(), Errno::EPERM);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert_eq!(setrlimit(Resource::RLIMIT_NOFILE, soft, hard), Err(Errno::EPERM));
    refused(TcpListener::bind("127.0.0.1:0").unwrap_err());
    // What it does goes on: threads, connections, files.
    let mut client = TcpStream::connect(bound.local_addr().unwrap()).unwrap();
    let served = thread::spawn(move || {
        let mut byte = [0];
        bound.accept().unwrap().0.read_exact(&mut byte).unwrap();
        byte
    });
    client.write_all(b"x").unwrap();
    assert_eq!(served.join().unwrap(), *b"x");
    let file = env::temp_dir().join(format!("kprobed-sandbox-{}", std::process::id()));
    fs::write(&file, "1").unwrap();
    fs::rename(&file, file.with_extension("renamed")).unwrap();
    fs::remove_file(file.with_extension("renamed")).unwrap();
    assert!(nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().is_some());
    (&end).write_all(b"x").unwrap();
    assert_eq!(before.join().unwrap(), 1);
}

#[test]
fn only_the_kept_capabilities_are_left() {
    if !is_inside() {
        return inside("only_the_kept_capabilities_are_left");
    }
    drop_privileges(Mode::Required).unwrap();
    let of_a_thread = thread::spawn(|| capabilities(None).unwrap()).join().unwrap();
    for set in [of_a_thread.effective, of_a_thread.permitted, of_a_thread.inheritable] {
        assert!(KEPT.contains(set), "{set:?}");
    }
}

#[test]
fn only_files_with_a_rule_are_opened() {
    if !is_inside() {
        return inside("only_files_with_a_rule_are_opened");
    }
    let [read, written, other] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let all = [read.path(), written.path(), other.path()];
    for path in all {
        fs::write(path.join("a"), "1").unwrap();
    }
    let files = Files { read: vec![read.path().to_owned()], written: vec![written.path().join("later")] };
    match restrict_files(Mode::Required, &files) {
        Ok(()) => {}
        // As in every kernel before 5.13. The kernels of `guest: sandbox` have it.
        Err(error) => {
            assert!(matches!(error, SandboxError::NoLandlock), "{error}");
            assert!(restrict_files(Mode::On, &files).is_ok());
            return;
        }
    }
    let refused =
        |result: io::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    thread::scope(|scope| {
        let work = || {
            refused(fs::read(all[2].join("a")).map(drop));
            refused(fs::write(all[0].join("a"), "2"));
            refused(fs::write(all[0].join("b"), "2"));
            refused(fs::read_dir("/").map(drop));
            assert_eq!(fs::read(all[0].join("a")).unwrap(), b"1");
            fs::write(all[1].join("later"), "2").unwrap();
            fs::rename(all[1].join("later"), all[1].join("b")).unwrap();
            fs::remove_file(all[1].join("b")).unwrap();
        };
        scope.spawn(work).join().unwrap();
    });
    assert!(nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().is_some());
}

#[test]
fn a_daemon_without_a_sandbox_keeps_everything() {
    if !is_inside() {
        return inside("a_daemon_without_a_sandbox_keeps_everything");
    }
    let before = of_all_threads("CapEff:");
    drop_privileges(Mode::Off).unwrap();
    filter_calls(Mode::Off).unwrap();
    assert_eq!(of_all_threads("CapEff:"), before);
    assert!(Command::new("/bin/true").status().unwrap().success());
}

#[test]
fn a_part_that_cannot_be_applied_counts_as_the_mode_says() {
    let failed = || Err(SandboxError::Capabilities(Errno::EPERM.into()));
    apply(Mode::On, failed).unwrap();
    let error = apply(Mode::Required, failed).unwrap_err();
    assert!(error.to_string().starts_with("cannot drop capabilities: "), "{error}");
}
