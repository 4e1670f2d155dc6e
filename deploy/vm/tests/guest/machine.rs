//! The test machine itself: commands, files and background processes work, a failing guest is
//! reported as what it is, and no process outlives its owner.

use std::env;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{self, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_vm::daemon;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::{Command, Machine, MachineError, PATIENCE, Signal, Stream, input};
use kprobed_vm::progress;
use kprobed_vm::protocol::{Frame, Size, Status};

use crate::Test;
use crate::daemon::{DaemonGuest, OwnMachine, wait};
use crate::fixture::{Fixture, Kernels};
use crate::report::Running;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        the_kernel_is_the_one_that_was_asked_for,
    }
    Harness {
        commands_report_how_they_ended,
        ten_megabytes_pass_in_both_directions,
        output_arrives_while_the_command_runs,
        a_command_ends_before_its_input,
        a_shell_at_a_terminal_answers,
        the_guest_goes_on_without_its_daemon,
        what_a_command_leaves_behind_does_not_hold_it,
        background_processes_obey,
        a_hang_is_noticed,
        a_guest_that_cannot_start_says_why,
        one_machine_ends_and_another_goes_on,
        a_shared_guest_that_is_not_clean_is_replaced,
        what_a_kernel_reports_is_a_failure_of_the_trial,
        qemu_dies_with_its_owner,
    }
};

fn the_kernel_is_the_one_that_was_asked_for(fixture: &Fixture) -> Result<()> {
    let release = fixture.daemon()?.shell("uname -r")?;
    ensure!(release.trim() == fixture.kernel()?.release, "{release}");
    Ok(())
}

/// What a trial leaves behind does not reach the next one, also if it has failed half-way.
fn a_shared_guest_that_is_not_clean_is_replaced(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.own_daemon("not-clean", daemon::DEFAULT_CONFIG)?;
    guest.reset(daemon::DEFAULT_CONFIG)?;
    for (leave, mend) in [
        ("sleep 1000 > /dev/null 2>&1 &", "killall sleep"),
        ("mkdir /sys/kernel/tracing/instances/theirs", "rmdir /sys/kernel/tracing/instances/theirs"),
        ("echo 0 > /sys/kernel/debug/kprobes/enabled", "echo 1 > /sys/kernel/debug/kprobes/enabled"),
        ("mkdir /tmp/state && mount -t tmpfs tmpfs /tmp/state", "umount /tmp/state"),
    ] {
        guest.shell(leave)?;
        ensure!(guest.reset(daemon::DEFAULT_CONFIG).is_err(), "it is taken for clean after `{leave}`");
        guest.shell(mend)?;
        guest.reset(daemon::DEFAULT_CONFIG).context(mend)?;
    }
    // What is cleaned is no reason.
    guest.add("p:left vfs_read")?;
    guest.shell("echo 'p:theirs/left vfs_read' >> /sys/kernel/tracing/kprobe_events; touch /tmp/left")?;
    guest.reset(daemon::DEFAULT_CONFIG)?;
    ensure!(
        guest.probes()?.is_empty() && guest.tracefs("kprobe_events")?.is_empty(),
        "{:?}",
        guest.probes()?
    );

    let dirty = fixture.daemon()?;
    let before = dirty.machine.qemu_pid();
    dirty.shell("mkdir /sys/kernel/tracing/instances/theirs")?;
    drop(dirty);
    let all = [fixture.daemon()?, fixture.daemon()?];
    ensure!(all.iter().all(|guest| guest.machine.qemu_pid() != before), "the guest goes on");
    Ok(())
}

fn commands_report_how_they_ended(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let machine = &guest.machine;
    let output = machine.exec(&Command::shell("echo out; echo err >&2; exit 42"))?;
    ensure!(output.status == Status::Exited(42), "{output:?}");
    ensure!(output.stdout == b"out\n" && output.stderr == b"err\n", "{output:?}");
    let output = machine.exec(&Command::shell("kill -11 $$"))?;
    ensure!(output.status == Status::Signaled(11), "{output:?}");
    let started = Instant::now();
    let endless = "echo begun; sleep 1234 & until false; do sleep 0.1; done";
    match machine.exec(&Command::shell(endless).limit(Duration::from_secs(1))) {
        Err(MachineError::Other(said)) => {
            ensure!(said.contains("until false") && said.contains("did not end within 1s"), "{said}");
            ensure!(said.ends_with("stdout:\nbegun"), "{said}");
        }
        other => bail!("{other:?}"),
    }
    ensure!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let left = machine.exec(&Command::shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))?.stdout_text();
    ensure!(!left.contains("sleep 1234"), "what it started goes on: {left}");
    let environment = Command::shell("echo $A; pwd").env("A", "b c").cwd("/tmp");
    ensure!(machine.exec(&environment)?.stdout == b"b c\n/tmp\n");
    match machine.exec(&Command::new("no-such-program").stdin(vec![0; 1 << 20])) {
        Err(MachineError::Refused { errno: 2, .. }) => Ok(()),
        other => bail!("{other:?}"),
    }
}

fn ten_megabytes_pass_in_both_directions(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let machine = &guest.machine;
    let bytes: Vec<u8> =
        (0..10_000_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    // The echo is on its way back while the rest is still being sent.
    let output = machine.exec(&Command::new("cat").stdin(bytes.clone()))?;
    ensure!(output.status.success() && output.stdout == bytes, "{} bytes", output.stdout.len());
    // A command need not read what it is given.
    let output = machine.exec(&Command::new("true").stdin(bytes.clone()))?;
    ensure!(output.status.success(), "{output:?}");
    machine.put("/tmp/new/directory/file", 0o750, &bytes)?;
    ensure!(machine.get("/tmp/new/directory/file")? == bytes);
    let mode = machine.exec(&Command::shell("stat -c %a /tmp/new/directory/file"))?;
    ensure!(mode.stdout == b"750\n", "{mode:?}");
    match (machine.get("/no/such/file"), machine.put("/proc/no", 0o644, &bytes)) {
        (Err(MachineError::Refused { errno: 2, .. }), Err(MachineError::Refused { .. })) => Ok(()),
        other => bail!("{other:?}"),
    }
}

fn output_arrives_while_the_command_runs(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let mut seen = Vec::new();
    let start = Instant::now();
    let command = Command::shell("echo first; sleep 1; echo second >&2");
    let status = guest.machine.exec_streaming(&command, |stream, bytes| {
        seen.push((stream, bytes.to_vec(), start.elapsed()));
    })?;
    ensure!(status.success());
    let [(Stream::Stdout, first, early), (Stream::Stderr, second, late)] = seen.as_slice() else {
        bail!("{seen:?}");
    };
    ensure!(first == b"first\n" && second == b"second\n", "{seen:?}");
    ensure!(late.saturating_sub(*early) > Duration::from_millis(700), "{seen:?}");
    Ok(())
}

fn a_command_ends_before_its_input(fixture: &Fixture) -> Result<()> {
    let (script, mut typed) = io::pipe()?;
    typed.write_all(b"echo $((6 * 7))\nexit 5\n")?;
    let mut seen = Vec::new();
    let command = Command::new("sh").limit(PATIENCE);
    let guest = fixture.daemon()?;
    let machine = &guest.machine;
    let status = machine.exec_with_input(&command, input(script), |_, bytes| seen.extend(bytes))?;
    ensure!(status == Status::Exited(5) && seen == b"42\n", "{status:?}: {}", String::from_utf8_lossy(&seen));
    // Held until here: the script had no end.
    drop(typed);
    Ok(())
}

fn a_shell_at_a_terminal_answers(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let command =
        Command::new("sh").env("PS1", "> ").terminal(Size { rows: 33, columns: 111 }).limit(PATIENCE);
    let (keys, typed) = mpsc::channel();
    let press = |text: &str| keys.send(Frame::Data(text.as_bytes().to_vec()));
    // In the order in which they are awaited: what the shell shows, and what is done then.
    let mut steps = [
        ("> ", Box::new(|| press("stty size\r")) as Box<dyn Fn() -> _>),
        ("\n33 111", Box::new(|| keys.send(Frame::Resize(Size { rows: 40, columns: 90 })))),
        ("> ", Box::new(|| press("sh -c 'stty size; exec sleep 1000'\r"))),
        // Ctrl-C, for what runs in the foreground; Ctrl-D, for the shell.
        ("\n40 90", Box::new(|| press("\x03"))),
        ("> ", Box::new(|| press("\x04"))),
    ]
    .into_iter()
    .peekable();
    let (mut all, mut fresh) = (String::new(), String::new());
    let status = guest.machine.exec_with_input(&command, typed.into_iter(), |_, bytes| {
        let text = String::from_utf8_lossy(bytes).replace('\r', "");
        all.push_str(&text);
        fresh.push_str(&text);
        while let Some((awaited, act)) = steps.peek()
            && let Some(at) = fresh.find(awaited)
        {
            fresh.drain(..at + awaited.len());
            drop(act());
            steps.next();
        }
    })?;
    // 128 + SIGINT is what the last command has left.
    ensure!(status == Status::Exited(130) && steps.peek().is_none(), "{status:?}: {all:?}");
    Ok(())
}

fn the_guest_goes_on_without_its_daemon(fixture: &Fixture) -> Result<()> {
    let guest = fixture.own_daemon("machine", daemon::DEFAULT_CONFIG)?;
    let machine = &guest.machine;
    ensure!(daemon::ended(machine, Duration::ZERO)?.is_none(), "the daemon runs");
    machine.signal(daemon::NAME, Signal::SIGKILL)?;
    ensure!(machine.wait(daemon::NAME, PATIENCE)?.is_signal(Signal::SIGKILL));
    let said = daemon::ended(machine, Duration::ZERO)?.context("the daemon was killed")?;
    ensure!(said.contains("Signaled(9)") && said.contains("kprobed"), "{said}");
    ensure!(machine.failure().is_none() && machine.exec(&Command::new("true"))?.status.success());
    daemon::start(machine, daemon::DEFAULT_CONFIG)?;
    ensure!(daemon::ended(machine, Duration::ZERO)?.is_none(), "the daemon was started again");
    guest.machine.power_off().map_err(Into::into)
}

fn what_a_command_leaves_behind_does_not_hold_it(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let start = Instant::now();
    let output = guest.machine.exec(&Command::shell("sleep 50 & echo done"))?;
    ensure!(output.stdout == b"done\n" && start.elapsed() < Duration::from_secs(20), "{output:?}");
    guest.shell("killall sleep").map(drop)
}

fn background_processes_obey(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let machine = &guest.machine;
    let command = Command::shell("trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 0.1; done");
    machine.spawn("patient", &command)?;
    ensure!(matches!(machine.spawn("patient", &command), Err(MachineError::Refused { .. })));
    let says_hello = || Ok((machine.get("/run/log/patient.log")? == b"hello\n").then_some(()));
    wait(Duration::from_secs(20), || "no output in the log".to_owned(), says_hello)?;
    ensure!(machine.wait("patient", Duration::from_millis(100))? == Status::TimedOut);
    machine.signal("patient", Signal::SIGTERM)?;
    ensure!(machine.wait("patient", Duration::from_secs(20))? == Status::Exited(3));
    ensure!(machine.get("/run/log/patient.log")? == b"hello\nbye\n");
    ensure!(matches!(
        machine.signal("patient", Signal::SIGTERM),
        Err(MachineError::Refused { errno: 3, .. })
    ));
    // The name is free again.
    machine.spawn("patient", &Command::new("sleep").arg("100"))?;
    machine.signal("patient", Signal::SIGKILL)?;
    ensure!(machine.wait("patient", Duration::from_secs(20))?.is_signal(Signal::SIGKILL));
    Ok(())
}

fn a_panic_is_noticed(machine: &Machine) -> Result<()> {
    ensure!(machine.console_problem().is_none(), "{:?}", machine.console_problem());
    match machine.exec(&Command::shell("echo c > /proc/sysrq-trigger")) {
        Err(MachineError::Failed { what, .. }) if what.starts_with("the guest kernel failed: ") => {}
        other => bail!("{other:?}"),
    }
    ensure!(machine.failure().is_some() && machine.console_problem().is_some());
    Ok(())
}

fn a_trial_that_does_not_end_is_ended(machine: OwnMachine) -> Result<()> {
    let (begun, pid) = (Instant::now(), machine.qemu_pid());
    let trial = Running::new("a trial that does not end", Duration::from_secs(1), None);
    let end = trial.run(move || {
        machine.is_used();
        machine.exec(&Command::shell("until false; do sleep 0.1; done").limit(Duration::from_hours(1)))?;
        Ok(())
    });
    let said = format!("{:#}", end.outcome.err().context("it ended by itself")?);
    ensure!(said.contains("did not end within 1s") && begun.elapsed() < Duration::from_mins(1), "{said}");
    ensure!(end.words.is_some_and(|words| words.contains("the daemon's threads")), "its guest says nothing");
    ensure!(!Path::new("/proc").join(pid.to_string()).exists(), "its guest goes on");
    Ok(())
}

/// A trial that finds nothing fails, if the kernel of its guest warns meanwhile.
fn what_a_kernel_reports_is_a_failure_of_the_trial(fixture: &Fixture) -> Result<()> {
    let guest = fixture.own_daemon("reports", daemon::DEFAULT_CONFIG)?;
    let warn = |guest: &DaemonGuest, text: &str| -> Result<()> {
        guest.shell(&format!("echo '<4>{text}' > /dev/kmsg"))?;
        let is_there = || guest.machine.console_problems().iter().any(|line| line.contains(text));
        guest.until("the line on the console", || Ok(is_there())).map(drop)
    };
    // What was there before the trial is not of it.
    warn(&guest, "WARNING: made before")?;
    guest.machine.is_used();
    let trial = Running::new("a trial whose kernel warns", PATIENCE, None);
    let end = trial.run(move || {
        guest.machine.is_used();
        warn(&guest, "WARNING: made meanwhile")
    });
    let said = format!("{:#}", end.outcome.err().context("the trial has passed")?);
    ensure!(said.contains("WARNING: made meanwhile") && !said.contains("made before"), "{said}");
    Ok(())
}

fn a_hang_is_noticed(fixture: &Fixture) -> Result<()> {
    // A PID 1 that waits for input that never comes.
    let options =
        GuestOptions { cmdline: "rdinit=/bin/cat".to_owned(), ..GuestOptions::new(fixture.kernel()?) };
    let mut config = fixture.lab()?.prepare(&options)?;
    config.boot_deadline = Duration::from_secs(8);
    match Machine::boot(&config) {
        Err(MachineError::Failed { what, .. }) if what.starts_with("the guest did not answer for ") => Ok(()),
        other => bail!("{other:?}"),
    }
}

fn a_guest_that_cannot_start_says_why(fixture: &Fixture) -> Result<()> {
    let lab = fixture.lab()?;
    let options = GuestOptions {
        disk: Some(lab.disk(&format!("test-bad-{}", fixture.series()), true)?),
        ..GuestOptions::new(fixture.kernel()?)
    };
    let config = lab.prepare(&options)?;
    // A disk with nothing on it.
    let disk = config.disk.as_ref().context("no disk")?.image();
    std::fs::write(disk, vec![0; 1 << 20])?;
    match Machine::boot(&config) {
        Err(MachineError::Failed { what, .. })
            if what.starts_with("the guest kernel failed: ") && what.contains("mount /dev/vda") => {}
        other => bail!("{other:?}"),
    }
    let config = kprobed_vm::machine::MachineConfig { image: "/no/such/kernel".into(), ..config };
    match Machine::boot(&config) {
        Err(MachineError::Failed { what, .. })
            if what.starts_with("QEMU ended unexpectedly ") && what.contains("/no/such/kernel") =>
        {
            Ok(())
        }
        other => bail!("{other:?}"),
    }
}

fn one_machine_ends_and_another_goes_on(fixture: &Fixture) -> Result<()> {
    let options = GuestOptions { forwards: vec![(0, 7000)], ..GuestOptions::new(fixture.kernel()?) };
    let lab = fixture.lab()?;
    let (one, two) = thread::scope(|scope| {
        let other = scope.spawn(|| lab.boot(&options));
        (lab.boot(&options), other.join())
    });
    let two = two.ok().context("the thread panicked")?;
    let (one, two) = (one?, two?);
    ensure!(one.address(7000).is_some() && one.address(7000) != two.address(7000));
    one.put("/tmp/mark", 0o600, b"one")?;
    two.put("/tmp/mark", 0o600, b"two")?;
    ensure!(one.get("/tmp/mark")? == b"one" && two.get("/tmp/mark")? == b"two");
    a_trial_that_does_not_end_is_ended(OwnMachine::new(one))?;
    ensure!(two.get("/tmp/mark")? == b"two");
    a_panic_is_noticed(&two)
}

/// Set for the program that [`qemu_dies_with_its_owner`] starts: this one again.
const OWNER: &str = "KPROBED_VM_TEST_OWNER";

fn qemu_dies_with_its_owner(fixture: &Fixture) -> Result<()> {
    let mut owner = process::Command::new(env::current_exe()?)
        .env(OWNER, fixture.series())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut pid = String::new();
    BufReader::new(owner.stdout.take().context("no output")?).read_line(&mut pid)?;
    let qemu = Path::new("/proc").join(pid.trim());
    let name = std::fs::read_to_string(qemu.join("comm"));
    owner.kill()?;
    owner.wait()?;
    ensure!(name?.starts_with("qemu"), "QEMU did not run");
    let missing = || format!("QEMU {pid} outlives the program that started it");
    wait(Duration::from_secs(10), missing, || Ok((!qemu.exists()).then_some(())))
}

/// When this is the program that [`qemu_dies_with_its_owner`] starts: boots from a thread that then
/// ends, tells QEMU's process id, and waits to be killed.
pub(crate) fn be_owner(kernels: &Kernels) -> Option<Result<()>> {
    let series = env::var(OWNER).ok()?;
    let fixture = kernels.fixtures().find(|fixture| fixture.series() == series)?;
    Some(thread::scope(|scope| {
        let booted = scope.spawn(|| fixture.lab()?.boot(&GuestOptions::new(fixture.kernel()?)));
        let booted: Result<Machine> = booted.join().ok().context("the thread panicked")?;
        let machine = booted?;
        // The thread that booted is gone, and QEMU is to be there all the same.
        thread::sleep(Duration::from_millis(300));
        machine.exec(&Command::new("true"))?;
        progress::result(machine.qemu_pid())?;
        thread::sleep(Duration::from_secs(100));
        Ok(())
    }))
}
