//! The older dialects of definitions, compared with system calls made with known arguments.

use anyhow::{Result, ensure};
use kprobed_client::api::ProbeState;

use crate::Test;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        the_words_of_2009_read_arguments,
        prototypes_read_arguments,
    }
};

const PATH: &str = "\"/tmp/dialects\"";

/// 'p:myprobe do_sys_open dfd=a0 filename=a1 flags=a2 mode=a3', 'r:myretprobe do_sys_open rv ra'.
fn the_words_of_2009_read_arguments(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let probe =
        guest.add("p:myprobe do_sys_openat2 dfd=a0 filename=+0(a1):string flags=+0(a2) # dialect: 2009")?;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
    guest.add("r:myretprobe do_sys_openat2 rv ra # dialect: 2009")?;
    let mut opened = Vec::new();
    let recording = guest.record(|| {
        opened = guest.workload(&["open", "/tmp/dialects", "524353", "416", "2"])?;
        Ok(())
    })?;
    let entries: Vec<_> =
        recording.of("kprobes/myprobe", "workload").filter(|event| event.field("filename") == PATH).collect();
    ensure!(entries.len() == 2, "{recording:?}");
    for event in entries {
        ensure!(event.field("dfd").ends_with("ffffff9c") && event.field("flags") == "0x88041", "{event:?}");
    }
    for fd in opened {
        let number: u64 = fd.parse()?;
        let returned = |event: &&crate::daemon::Event| {
            (event.field("rv") == fd || event.field("rv") == format!("{number:#x}"))
                && event.return_location.is_some()
        };
        ensure!(
            recording.of("kprobes/myretprobe", "workload").any(|event| returned(&event)),
            "{fd}: {recording:?}"
        );
    }
    Ok(())
}

/// 'SyS_openat(int dfd, string path, x32 flags, x16 mode)'.
fn prototypes_read_arguments(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Flags and mode are members of the third argument today: 64-bit words 0 and 1 of what it
    // points to.
    let probe = guest.add("do_sys_openat2(int dfd, string path, x64 flags[0] | x64 mode[1])")?;
    ensure!(probe.name == "functions/do_sys_openat2" && probe.state() == ProbeState::Armed, "{probe:?}");
    let recording =
        guest.record(|| guest.workload(&["open", "/tmp/dialects", "524353", "416", "2"]).map(drop))?;
    let events: Vec<_> = recording
        .of("functions/do_sys_openat2", "workload")
        .filter(|event| event.field("path") == PATH)
        .collect();
    ensure!(events.len() == 2, "{recording:?}");
    for event in events {
        ensure!(event.field("dfd") == "-100" && event.field("flags") == "0x88041", "{event:?}");
        ensure!(event.field("mode") == "0x1a0", "{event:?}");
    }
    Ok(())
}
