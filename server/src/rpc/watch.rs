//! Watching probes: all of them, and then what becomes of them.
//!
//! Owns which changes a watch is about, and what is sent when some were missed. What is waiting for a client is a position among the changes
//! that the daemon keeps for all of them, and so costs the same however far behind it is.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use futures_util::stream;
use kprobed_proto::v1;
use tokio::sync::watch::Receiver;
use tonic::Status;

use super::events::Responses;
use super::probes::non_empty;
use super::{convert, labels, status};
use crate::control::{Probe, ProbeChange, ProbeEvent, Registry, WatchPosition};
use crate::model::{Glob, LabelSelector, ProbeUid};

/// One message before it is made: what it says, the probe, and the position behind it.
type Ready = (v1::WatchEvent, Option<Arc<Probe>>, Option<WatchPosition>);

/// A watch under way.
struct Watch {
    registry: Arc<Registry>,
    newest: Receiver<u64>,
    glob: Option<Glob>,
    selector: LabelSelector,
    /// Where it goes on. Absent: all probes are sent first.
    position: Option<WatchPosition>,
    /// Probes that the client knows of.
    known: HashSet<ProbeUid>,
    /// What is to be sent. Probes are shared until their turn comes: a client that does not read costs a pointer for each.
    ready: VecDeque<Ready>,
}

/// Answers a watch.
pub(super) fn stream(
    registry: &Arc<Registry>,
    request: v1::WatchProbesRequest,
) -> Result<Responses<v1::WatchProbesResponse>, Status> {
    let resume = non_empty(request.resume_token).map(|token| position(&token).ok_or(token)).transpose();
    let resume = resume.map_err(|_token| {
        status::invalid("resume_token", "`resume_token` was not returned by this call: watch without it")
    })?;
    let mut watch = Watch {
        registry: Arc::clone(registry),
        newest: registry.log().newest(),
        glob: non_empty(request.name_glob).map(Glob::new),
        selector: labels::selector("label_selector", &request.label_selector)?,
        position: resume,
        known: HashSet::new(),
        ready: VecDeque::new(),
    };
    match resume {
        Some(position) => watch.recall(position),
        None => watch.begin(),
    }
    Ok(Box::pin(stream::unfold(watch, async |mut watch| Some((Ok(watch.next().await?), watch)))))
}

impl Watch {
    /// The next message. Absent when the daemon stops.
    async fn next(&mut self) -> Option<v1::WatchProbesResponse> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(message(&ready));
            }
            self.newest.borrow_and_update();
            if self.registry.log().is_closed() {
                return None;
            }
            match self.position.and_then(|position| self.registry.log().since(position)) {
                Some((changes, position)) if changes.is_empty() => {
                    self.position = Some(position);
                    self.newest.changed().await.ok()?;
                }
                Some((changes, end)) => {
                    let first = end.sequence - u64::try_from(changes.len()).unwrap_or_default();
                    for (change, sequence) in changes.iter().zip(first + 1..) {
                        self.tell(change, WatchPosition { sequence, ..end });
                    }
                    self.position = Some(end);
                }
                None => {
                    self.ready.push_back((v1::WatchEvent::Restarted, None, None));
                    self.begin();
                }
            }
        }
    }

    /// Sends all that there are.
    fn begin(&mut self) {
        let (probes, position) = self.registry.log().all();
        self.position = Some(position);
        self.known.clear();
        let selected: Vec<_> = self.selected(probes).collect();
        for probe in selected {
            self.known.insert(probe.uid);
            self.ready.push_back((v1::WatchEvent::Present, Some(probe), None));
        }
        self.ready.push_back((v1::WatchEvent::Synced, None, Some(position)));
    }

    /// Finds what the client knew at that position: what there is, without what came since, and with what has gone since.
    fn recall(&mut self, position: WatchPosition) {
        let log = self.registry.log();
        let (probes, _) = log.all();
        let changes = log.since(position).map(|(changes, _)| changes).unwrap_or_default();
        self.known = self.selected(probes).map(|probe| probe.uid).collect();
        for ProbeChange { event, probe } in changes.iter().rev() {
            match event {
                ProbeEvent::Added => _ = self.known.remove(&probe.uid),
                ProbeEvent::Deleted if self.selects(probe) => _ = self.known.insert(probe.uid),
                ProbeEvent::Changed | ProbeEvent::Deleted => {}
            }
        }
    }

    fn selected(&self, probes: Vec<Arc<Probe>>) -> impl Iterator<Item = Arc<Probe>> {
        probes.into_iter().filter(|probe| self.selects(probe))
    }

    fn selects(&self, probe: &Probe) -> bool {
        self.glob.as_ref().is_none_or(|glob| glob.matches_name(&probe.name))
            && self.selector.matches(&probe.labels)
    }

    fn tell(&mut self, change: &ProbeChange, position: WatchPosition) {
        let ProbeChange { event, probe } = change;
        let selected = self.selects(probe) && *event != ProbeEvent::Deleted;
        let event = match (selected, self.known.contains(&probe.uid)) {
            (true, true) if *event == ProbeEvent::Added => v1::WatchEvent::Added,
            (true, true) => v1::WatchEvent::Changed,
            (true, false) => v1::WatchEvent::Added,
            (false, true) => v1::WatchEvent::Deleted,
            (false, false) => return,
        };
        if selected {
            self.known.insert(probe.uid);
        } else {
            self.known.remove(&probe.uid);
        }
        self.ready.push_back((event, Some(Arc::clone(probe)), Some(position)));
    }
}

fn message((event, probe, position): &Ready) -> v1::WatchProbesResponse {
    v1::WatchProbesResponse {
        event: (*event).into(),
        probe: probe.as_ref().map(|probe| v1::Probe { schema: None, ..convert::probe(probe) }),
        resume_token: position.map(token).unwrap_or_default(),
    }
}

fn token(position: WatchPosition) -> String {
    format!("{:x}.{}", position.run, position.sequence)
}

fn position(token: &str) -> Option<WatchPosition> {
    let (run, sequence) = token.split_once('.')?;
    Some(WatchPosition { run: u64::from_str_radix(run, 16).ok()?, sequence: sequence.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;
    use crate::control::{ProbeState, test_probe};
    use crate::model::Labels;

    /// What a watch says at once: events, and the probes that they are about.
    async fn told(watch: &mut Responses<v1::WatchProbesResponse>) -> Vec<(v1::WatchEvent, i64, String)> {
        let mut told = Vec::new();
        while let Ok(Some(message)) = tokio::time::timeout(std::time::Duration::ZERO, watch.next()).await {
            let message = message.unwrap();
            let uid = message.probe.as_ref().map_or(0, |probe| probe.uid);
            told.push((message.event(), uid, message.resume_token));
        }
        told
    }

    fn events(told: &[(v1::WatchEvent, i64, String)]) -> Vec<(v1::WatchEvent, i64)> {
        told.iter().map(|(event, uid, _)| (*event, *uid)).collect()
    }

    fn asked(token: &str) -> v1::WatchProbesRequest {
        v1::WatchProbesRequest {
            label_selector: "team=storage".to_owned(),
            resume_token: token.to_owned(),
            ..Default::default()
        }
    }

    fn labelled(uid: i64, team: &str) -> Probe {
        let labels = Labels::new([("team".to_owned(), team.to_owned())]).unwrap();
        Probe { labels, ..test_probe(uid, &format!("kprobes/p{uid}")) }
    }

    #[tokio::test]
    async fn a_watch_tells_what_there_is_and_what_becomes_of_it() {
        use v1::WatchEvent as Event;
        let registry = Arc::<Registry>::default();
        let put = |probe: Probe| _ = registry.note_for_test(probe);
        put(labelled(1, "storage"));
        put(labelled(2, "network"));
        let mut watch = stream(&registry, asked("")).unwrap();
        let begun = told(&mut watch).await;
        assert_eq!(events(&begun), [(Event::Present, 1), (Event::Synced, 0)]);
        let token = begun[1].2.clone();
        // It is given to the team, changes, and is taken away.
        put(Probe { revision: 2, ..labelled(2, "storage") });
        put(Probe { state: ProbeState::Disabled, revision: 3, ..labelled(2, "storage") });
        put(Probe { revision: 4, ..labelled(2, "network") });
        put(labelled(3, "storage"));
        registry.remove_for_test("kprobes/p1");
        let expected = [
            (Event::Added, 2),
            (Event::Changed, 2),
            (Event::Deleted, 2),
            (Event::Added, 3),
            (Event::Deleted, 1),
        ];
        let changes = told(&mut watch).await;
        assert_eq!(events(&changes), expected);
        // From the same place again, from the middle, and from a place that is not known.
        let mut again = stream(&registry, asked(&token)).unwrap();
        assert_eq!(told(&mut again).await, changes);
        let mut middle = stream(&registry, asked(&changes[2].2)).unwrap();
        assert_eq!(events(&told(&mut middle).await), expected[3..]);
        let mut elsewhere = stream(&registry, asked("0.0")).unwrap();
        assert_eq!(
            events(&told(&mut elsewhere).await),
            [(Event::Restarted, 0), (Event::Present, 3), (Event::Synced, 0)]
        );
        let refused = stream(&registry, asked("rubbish")).err().unwrap();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        registry.log().close();
        assert!(watch.next().await.is_none() && again.next().await.is_none());
    }
}
