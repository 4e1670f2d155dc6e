//! The `kprobe_profile` file: hits and missed hits of every kprobe event.

use std::sync::Arc;

use super::{KprobeList, OwnEvent, Tracefs, TracefsError, control_file};
use kprobed_lang::model::{Hits, ProbeName};

/// One row of `kprobe_profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileRow<'a> {
    /// The event, with its group.
    pub name: &'a ProbeName,
    /// Its line in `kprobe_events`: several probes can have one name.
    pub listing: &'a str,
    /// The counts.
    pub hits: Hits,
}

/// The hit counts of all kprobe events, read at one time.
#[derive(Clone, Debug, Default)]
pub struct HitCounts {
    list: Arc<KprobeList>,
    /// In the order of the list.
    hits: Vec<Hits>,
}

impl HitCounts {
    /// The rows, in the order of the definition of their events. Events with names that kprobed does not
    /// accept are left out.
    pub fn rows(&self) -> impl Iterator<Item = ProfileRow<'_>> {
        self.list.probes().iter().zip(&self.hits).filter_map(|(listed, hits)| {
            Some(ProfileRow { name: listed.name.as_ref()?, listing: &listed.line, hits: *hits })
        })
    }

    /// Those of an event of the daemon, if it is in the list.
    pub fn of(&self, own: &OwnEvent) -> Option<Hits> {
        self.of_listed(&own.name, &own.listing)
    }

    /// Those of the event that was once listed so.
    pub fn of_listed(&self, name: &ProbeName, listing: &str) -> Option<Hits> {
        self.hits.get(self.list.place_of(name, listing)?).copied()
    }
}

/// Rows of `EVENT HITS MISSES`. The file has no groups.
fn parse(text: &str) -> Vec<(&str, Hits)> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let event = words.next()?;
            let hits = Hits { hits: words.next()?.parse().ok()?, nmissed: words.next()?.parse().ok()? };
            Some((event, hits))
        })
        .collect()
}

fn is_same(now: &Arc<KprobeList>, before: &Arc<KprobeList>) -> bool {
    Arc::ptr_eq(now, before) || now.probes() == before.probes()
}

/// How often a listing and a profile that do not fit together are read again. They fit unless a
/// program adds or removes probes between the two readings.
const TRIES: usize = 10;

impl Tracefs {
    /// The hit counts of all kprobe events. Rows of the profile have no group; they stand in the
    /// same order as the lines of `kprobe_events` (both walk the same list), which gives it back to
    /// them.
    ///
    /// # Errors
    /// [`TracefsError`]; EAGAIN when others add and remove probes faster than the two files can be
    /// read.
    pub fn hit_counts(&self) -> Result<HitCounts, TracefsError> {
        if !self.has_kprobe_events() {
            return Ok(HitCounts::default());
        }
        let path = self.root().join("kprobe_profile");
        for _ in 0..TRIES {
            let before = self.kprobe_list()?;
            let text = self.files.read(&path)?;
            let rows = parse(&text);
            let listed = before.probes();
            let fits = listed.len() == rows.len()
                && listed.iter().zip(&rows).all(|(listed, (event, _))| listed.event == *event)
                && is_same(&self.kprobe_list()?, &before);
            if fits {
                let hits = rows.into_iter().map(|(_, hits)| hits).collect();
                return Ok(HitCounts { list: before, hits });
            }
        }
        Err(control_file::failed("read", &path, nix::errno::Errno::EAGAIN.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read() {
        let text =
            "  myprobe                                                   26               1\n  other 0 0\n";
        assert_eq!(parse(text), [("myprobe", Hits { hits: 26, nmissed: 1 }), ("other", Hits::default())]);
    }
}
