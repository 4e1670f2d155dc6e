//! Watching probes: changes by the daemon and by another program, and a restart in between.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::ProbeWatch;
use kprobed_client::api::{Probe, ProbeState, WatchEvent, WatchProbesRequest, WatchProbesResponse};

use crate::Test;
use crate::daemon::{DaemonGuest, config_looking_every};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        what_becomes_of_probes_is_told,
    }
};

/// Event, name without its group, state.
type Told = (WatchEvent, String, ProbeState);

fn told(message: &WatchProbesResponse) -> Told {
    let probe = message.probe.as_ref();
    let name = probe.map_or("", |probe| probe.name.trim_start_matches("kprobes/"));
    (message.event(), name.to_owned(), probe.map_or(ProbeState::Unspecified, Probe::state))
}

/// The next message: that the connection was lost is none.
fn next(guest: &DaemonGuest, watch: &mut ProbeWatch) -> Result<WatchProbesResponse> {
    loop {
        if let Some(message) = guest.wait_for(watch.next())??.message() {
            return Ok(message);
        }
    }
}

fn expect(
    guest: &DaemonGuest,
    watch: &mut ProbeWatch,
    expected: &[(WatchEvent, &str, ProbeState)],
) -> Result<()> {
    for (event, name, state) in expected {
        let message = next(guest, watch)?;
        ensure!(told(&message) == (*event, (*name).to_owned(), *state), "{message:?}, and not {expected:?}");
    }
    Ok(())
}

fn what_becomes_of_probes_is_told(fixture: &Fixture) -> Result<()> {
    use ProbeState::{Armed, Disabled, Drifted, Unspecified};
    use WatchEvent::{Added, Changed, Deleted, Present, Restarted, Synced};
    let config = config_looking_every(100);
    let mut guest = fixture.new_daemon(&config)?;
    guest.add("p:old __x64_sys_getppid")?;
    let mut watch = guest.wait_for(guest.client.watch_probes(WatchProbesRequest::default()))??;
    expect(&guest, &mut watch, &[(Present, "old", Armed), (Synced, "", Unspecified)])?;
    guest.add("p:new __x64_sys_getppid")?;
    guest.wait_for(guest.client.set_enabled("new", false))??;
    expect(&guest, &mut watch, &[(Added, "new", Armed), (Changed, "new", Disabled)])?;
    // A neighbour, and the repair.
    guest.shell(&format!("echo 0 > {}/events/kprobes/old/enable", guest.instance()?))?;
    let drifted = next(&guest, &mut watch)?;
    ensure!(told(&drifted) == (Changed, "old".to_owned(), Drifted), "{drifted:?}");
    let probe = drifted.probe.as_ref().context("no probe")?;
    ensure!(probe.state_reason == "SWITCHED_OFF" && !probe.state_message.is_empty(), "{probe:?}");
    expect(&guest, &mut watch, &[(Changed, "old", Armed)])?;
    guest.delete("new")?;
    expect(&guest, &mut watch, &[(Deleted, "new", Disabled)])?;
    // A watch that begins with a token repeats what happened after it.
    let resume_token = drifted.resume_token.clone();
    let request = WatchProbesRequest { resume_token, ..Default::default() };
    let mut again = guest.wait_for(guest.client.watch_probes(request))??;
    expect(&guest, &mut again, &[(Changed, "old", Armed), (Deleted, "new", Disabled)])?;

    let states = || -> Result<Vec<(ProbeState, String)>> {
        let (_, states) = guest.wait_for(guest.client.get_probe_and_states("old"))??;
        Ok(states.into_iter().map(|record| (record.state(), record.state_reason)).collect())
    };
    let history = vec![(Armed, String::new()), (Drifted, "SWITCHED_OFF".to_owned()), (Armed, String::new())];
    ensure!(states()? == history, "{:?}", states()?);
    let before = guest.probe("old")?.state_time;
    // The watch outlives the daemon, and says that it does not know what happened in between.
    guest.stop_and_restart()?;
    expect(
        &guest,
        &mut watch,
        &[(Restarted, "", Unspecified), (Present, "old", Armed), (Synced, "", Unspecified)],
    )?;
    let probe = guest.probe("old")?;
    let (since, begun) = (probe.state_time.context("no time")?, before.context("no time")?);
    ensure!((since.seconds, since.nanos) > (begun.seconds, begun.nanos), "{since:?} {begun:?}");
    let (_, states) = guest.wait_for(guest.client.get_probe_and_states("old"))??;
    ensure!(states.len() == 4 && states[0].time == Some(since), "{states:?}");
    Ok(())
}
