//! Watches of probes over gRPC.
//!
//! Owns the conversion of requests and messages. Never decides what a watch reports and when:
//! [`ProbeWatch`] does.

use std::sync::Arc;

use futures_util::stream;
use kprobed_proto::v1;

use super::events::Responses;
use super::messages;
use super::probes::non_empty;
use kprobed_control::error::Error;
use kprobed_control::{Probe, ProbeWatch, Registry, Sight, WatchPosition, Watched};
use kprobed_lang::model::Glob;

/// Answers a watch.
pub(super) fn stream(
    registry: &Arc<Registry>,
    sight: Sight,
    request: v1::WatchProbesRequest,
) -> Result<Responses<v1::WatchProbesResponse>, Error> {
    let resume = non_empty(request.resume_token);
    let resume = resume.map(|token| watch_position(&token).ok_or(token)).transpose();
    let resume = resume.map_err(|_token| {
        Error::bad_argument("resume_token", "`resume_token` was not returned by this call: watch without it")
    })?;
    let glob = non_empty(request.name_glob).map(Glob::new);
    let selector = messages::selector("label_selector", &request.label_selector)?;
    let selects = move |probe: &Probe| {
        glob.as_ref().is_none_or(|glob| glob.matches_name(&probe.name))
            && selector.matches(&probe.spec.labels)
            && sight.shows(probe)
    };
    let watch = ProbeWatch::new(registry, resume, Box::new(selects));
    Ok(Box::pin(stream::unfold(watch, async |mut watch| Some((Ok(watched(&watch.next().await?)), watch)))))
}

/// One thing that a watch tells.
fn watched(watched: &Watched) -> v1::WatchProbesResponse {
    v1::WatchProbesResponse {
        event: watched.event.into(),
        probe: watched.probe.as_ref().map(|found| v1::Probe { schema: None, ..messages::probe(found) }),
        resume_token: watched.position.map(watch_token).unwrap_or_default(),
    }
}

/// A position as a text.
fn watch_token(position: WatchPosition) -> String {
    format!("{:x}.{}", position.run, position.sequence)
}

/// The position of a token. None if the text is not a token.
fn watch_position(token: &str) -> Option<WatchPosition> {
    let (run, sequence) = token.split_once('.')?;
    Some(WatchPosition { run: u64::from_str_radix(run, 16).ok()?, sequence: sequence.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use kprobed_rights::Roles;

    use super::*;
    use kprobed_control::auth::{AuditQueue, Caller, Rights};
    use kprobed_control::{ProbeState, samples};
    use kprobed_lang::model::Labels;

    /// What a watch reports at once: events, and the probes that they are about.
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

    fn all() -> Sight {
        Sight::new(&Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)), Caller::daemon())
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
        samples::probe(uid, &format!("kprobes/p{uid}")).with(|record| record.spec.labels = labels)
    }

    #[tokio::test]
    async fn a_watch_tells_what_there_is_and_what_becomes_of_it() {
        use v1::WatchEvent as Event;
        let registry = Arc::<Registry>::default();
        let put = |probe: Probe| _ = samples::note(&registry, probe);
        put(labelled(1, "storage"));
        put(labelled(2, "network"));
        let mut watch = stream(&registry, all(), asked("")).unwrap();
        let begun = told(&mut watch).await;
        assert_eq!(events(&begun), [(Event::Present, 1), (Event::Synced, 0)]);
        let token = begun[1].2.clone();
        // It is given to the team, changes, and is removed from it.
        put(labelled(2, "storage").with(|record| record.revision = 2));
        let off = Probe { state: ProbeState::Disabled, ..labelled(2, "storage") };
        put(off.with(|record| record.revision = 3));
        put(labelled(2, "network").with(|record| record.revision = 4));
        put(labelled(3, "storage"));
        samples::forget(&registry, "kprobes/p1");
        let expected = [
            (Event::Added, 2),
            (Event::Changed, 2),
            (Event::Deleted, 2),
            (Event::Added, 3),
            (Event::Deleted, 1),
        ];
        let changes = told(&mut watch).await;
        assert_eq!(events(&changes), expected);
        // From the same position again, from the middle, and from an unknown position.
        let mut again = stream(&registry, all(), asked(&token)).unwrap();
        assert_eq!(told(&mut again).await, changes);
        let mut middle = stream(&registry, all(), asked(&changes[2].2)).unwrap();
        assert_eq!(events(&told(&mut middle).await), expected[3..]);
        // From before the second one left the team: the report has it as it was then.
        let mut earlier = stream(&registry, all(), asked(&changes[1].2)).unwrap();
        let left = earlier.next().await.unwrap().unwrap();
        assert_eq!((left.event(), left.probe.unwrap().labels["team"].as_str()), (Event::Deleted, "storage"));
        assert_eq!(events(&told(&mut earlier).await), expected[3..]);
        let mut elsewhere = stream(&registry, all(), asked("0.0")).unwrap();
        assert_eq!(
            events(&told(&mut elsewhere).await),
            [(Event::Restarted, 0), (Event::Present, 3), (Event::Synced, 0)]
        );
        let refused = stream(&registry, all(), asked("rubbish")).err().unwrap();
        assert_eq!(refused.reason.code, tonic::Code::InvalidArgument);
        registry.log().close();
        assert!(watch.next().await.is_none() && again.next().await.is_none());
    }
}
