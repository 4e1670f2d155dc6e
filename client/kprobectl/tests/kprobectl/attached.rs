//! Tests of attached events, and of the library's calls for them.

use insta::assert_snapshot;
use kprobed_client::api::AttachedEventState;
use tonic::Code;

use super::fake::{Ending, Fake, client};

#[tokio::test]
async fn the_library_attaches_and_detaches() {
    let fake = Fake::start(Ending::Open);
    let client = client(fake.socket()).await;
    let attached = client.attach_event("raw_syscalls/sys_enter", "id == 1").await.unwrap();
    assert_eq!((attached.uid, attached.filter.as_str()), (-1, "id == 1"));
    assert_eq!(attached.state(), AttachedEventState::Recording);
    let all = client.attached_events().await.unwrap();
    assert_eq!(all.iter().map(|event| event.uid).collect::<Vec<_>>(), [-2, -1]);
    assert_eq!(client.detach_event("raw_syscalls/sys_enter").await.unwrap().read, 12);
    let error = client.detach_event("no/event").await.unwrap_err();
    assert_eq!(error.rpc().unwrap().code, Code::NotFound);
}

#[test]
fn attach_and_detach() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["attach", "raw_syscalls/sys_enter", "no/event"]), @"
    exit: 1
    -- stdout
    raw_syscalls/sys_enter
    -- stderr
    error: the host has no event `no/event`
    ");
    assert_snapshot!(fake.run(&["attach", "raw_syscalls/sys_enter", "--filter", "id +3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | id +3
      |    ^^
    hint: `+5` works
    ");
    assert_snapshot!(fake.run(&["attach", "raw_syscalls/sys_enter", "no/event", "--dry-run"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: the host has no event `no/event`
    note: this would be done, in the tracing directory:
      echo 1 > instances/kprobed/events/raw_syscalls/sys_enter/enable
    note: nothing was changed
    ");
    assert_snapshot!(fake.run(&["detach", "raw_syscalls/sys_enter", "--dry-run"]), @"
    exit: 0
    -- stdout
    -- stderr
    note: this would be done, in the tracing directory:
      echo 0 > instances/kprobed/events/raw_syscalls/sys_enter/enable
    note: nothing was changed
    ");
    assert_snapshot!(fake.run(&["detach", "raw_syscalls/sys_enter"]), @"
    exit: 0
    -- stdout
    raw_syscalls/sys_enter read=12
    -- stderr
    ");
}

#[test]
fn attached() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["attached"]), @"
    exit: 0
    -- stdout
    NAME                    STATE      READ  FILTER
    btrfs/btrfs_sync_file   waiting       0  root == 5
    raw_syscalls/sys_enter  recording    12  -
    -- stderr
    note: `btrfs/btrfs_sync_file` is waiting: the host does not have the event any more
    ");
    assert_snapshot!(fake.run(&["attached", "-o", "wide"]), @"
    exit: 0
    -- stdout
    NAME                    STATE      READ  FILTER     UNDECODABLE  CREATED               FIELDS
    btrfs/btrfs_sync_file   waiting       0  root == 5            0  2026-01-31T12:00:00Z  -
    raw_syscalls/sys_enter  recording    12  -                    0  2026-01-31T12:00:00Z  id
    -- stderr
    note: `btrfs/btrfs_sync_file` is waiting: the host does not have the event any more
    ");
    assert_snapshot!(fake.run(&["attached", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"btrfs/btrfs_sync_file","uid":"-2","filter":"root == 5","state":"ATTACHED_EVENT_STATE_WAITING","state_reason":"the host does not have the event any more","create_time":"2026-01-31T12:00:00Z","read":"0","undecodable":"0"}
    {"name":"raw_syscalls/sys_enter","uid":"-1","filter":"","state":"ATTACHED_EVENT_STATE_RECORDING","state_reason":"","create_time":"2026-01-31T12:00:00Z","schema":{"schema_id":1,"probe":"raw_syscalls/sys_enter","probe_uid":"-1","is_return":false,"fields":[{"name":"id","type":"FIELD_TYPE_SIGNED","width":8,"base":"FIELD_BASE_DECIMAL","array_length":0,"fault_detected":true}]},"read":"12","undecodable":"0"}
    -- stderr
    "#);
}
