//! Tests of roll-outs over simulated hosts.

mod crash;
mod form;
mod forward;
mod soak;
mod verdict;
mod world;

use kprobed_document::Document;

use self::world::{Killed, Simulated};
use super::*;

const DOCUMENTS: &str = "\
probe: kprobes/a
definition: p:kprobes/a vfs_read
enabled: true
---
probe: kprobes/b
definition: p:kprobes/b vfs_write new=$arg1
enabled: false
labels: {team: storage}
---
probe: kprobes/same
definition: p:kprobes/same vfs_open
enabled: true
";

fn documents() -> Vec<Document> {
    kprobed_document::read(DOCUMENTS).unwrap().into_iter().map(|entry| entry.document).collect()
}

fn state(hosts: usize, waves: &str) -> State {
    let setting = Setting {
        documents: documents(),
        waves: waves.to_owned(),
        gates: Gates::with(&[]),
        soak_ms: 1000,
        on_failure: OnFailure::Undo,
        tolerated: 0,
    };
    let mut all: Vec<_> = (0..hosts)
        .map(|number| Host { name: format!("h{number}"), address: format!("/h{number}"), ..Host::default() })
        .collect();
    for (wave, range) in waves.parse::<Waves>().unwrap().cut(hosts).unwrap().into_iter().enumerate() {
        for host in &mut all[range] {
            host.wave = wave + 1;
        }
    }
    State::new("r".to_owned(), setting, all)
}

/// Futures of a simulated world are ready at once.
fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// A new process takes the state from the disk until it comes to an end.
fn go_on(world: &Simulated) -> Result<State, Killed> {
    let mut state = State::decode(world.disk.borrow().as_ref().unwrap()).unwrap();
    run(async {
        resume(world, &mut state)?;
        drive(world, &mut state).await
    })
    .map(|()| state)
}

/// The whole without a disturbance.
fn whole(world: &Simulated, mut state: State) -> State {
    run(async {
        begin(world, &mut state).unwrap();
        drive(world, &mut state).await.unwrap();
    });
    state
}
