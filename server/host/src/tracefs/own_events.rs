//! Events that the daemon records: telling them from others of the same name, and deleting those
//! that it made.
//!
//! Owns the identity of an event, and everything that is deleted from `kprobe_events`. A name
//! proves nothing: any program can delete the daemon's event and define another one under its name,
//! or add a place to it (kernel/trace/trace_kprobe.c:append_trace_kprobe). So the kernel must list
//! what it keeps of the event as it did when the daemon made it, under the same id. It writes the line
//! anew for each reader, and not always with the same words: see [`KeptWords`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;

use super::format::Format;
use super::{ListedProbe, Tracefs, TracefsError, control_file};
use kprobed_lang::model::ProbeName;

/// An event that the daemon records: a kprobe event that it made, or an event of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnEvent {
    /// Its name.
    pub name: ProbeName,
    /// Its line in `kprobe_events`. Empty for an event of the host, which the daemon did not make.
    pub listing: String,
    /// Its id, which its records carry.
    pub id: u16,
    /// What its `format` says of its fields, for an event of the host: another one can have its id later (since 6.3,
    /// kernel/trace/trace_output.c: alloc_trace_event_type). Otherwise empty.
    pub fields: String,
}

impl OwnEvent {
    /// An event that the daemon made, by its line in `kprobe_events`.
    pub fn made(name: &ProbeName, listing: &str, id: u16) -> Self {
        Self { name: name.clone(), listing: listing.to_owned(), id, fields: String::new() }
    }

    /// Whether it is an event of the host, which the daemon never deletes or changes.
    pub const fn is_of_host(&self) -> bool {
        !self.fields.is_empty()
    }

    /// Whether a line of `kprobe_events` is that of this event, as far as a line shows it.
    pub fn is_listed_as(&self, line: &str) -> bool {
        is_listed_as(&self.listing, line)
    }
}

/// The event that the kernel has under the name of an event of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The daemon's event, and nothing else.
    Ours,
    /// The daemon's event, to which another program has added places.
    Shared,
    /// Nothing.
    Absent,
    /// An event of another program.
    Foreign,
}

impl Presence {
    /// Whether the daemon's event is there.
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Shared)
    }
}

/// All kprobe events of the host, read at one time.
#[derive(Debug, Default)]
pub struct KprobeList {
    probes: Vec<ListedProbe>,
    /// Where those of a name stand, in the order of their definition.
    by_name: HashMap<ProbeName, Vec<usize>>,
}

impl KprobeList {
    /// Parses the text of the file. Lines of another form are left out.
    pub fn parse(text: &str) -> Self {
        let probes = ListedProbe::parse_list(text);
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for (index, probe) in probes.iter().enumerate() {
            if let Some(name) = &probe.name {
                by_name.entry(name.clone()).or_default().push(index);
            }
        }
        Self { probes, by_name }
    }

    /// All of them, in the order of their definition.
    pub fn probes(&self) -> &[ListedProbe] {
        &self.probes
    }

    /// The lines under a name, in the order of their definition.
    pub fn lines_of(&self, name: &ProbeName) -> impl Iterator<Item = &str> {
        self.places_of(name).map(|(_, line)| line)
    }

    /// The same, each with its place in the list.
    fn places_of(&self, name: &ProbeName) -> impl Iterator<Item = (usize, &str)> {
        let places = self.by_name.get(name).into_iter().flatten();
        places.filter_map(|index| Some((*index, self.probes.get(*index)?.line.as_str())))
    }

    /// Where the line of an event stands in the list.
    pub(super) fn place_of(&self, name: &ProbeName, listing: &str) -> Option<usize> {
        self.places_of(name).find(|(_, line)| is_listed_as(listing, line)).map(|(place, _)| place)
    }

    /// Presence of `own` by the list alone, without its id. An event of the host is not told from others by the list.
    pub fn presence(&self, own: &OwnEvent) -> Presence {
        if own.is_of_host() {
            return Presence::Ours;
        }
        let (mut ours, mut others) = (false, false);
        for line in self.lines_of(&own.name) {
            if own.is_listed_as(line) {
                ours = true;
            } else {
                others = true;
            }
        }
        match (ours, others) {
            (true, false) => Presence::Ours,
            (true, true) => Presence::Shared,
            (false, true) => Presence::Foreign,
            (false, false) => Presence::Absent,
        }
    }
}

/// What the kernel keeps of an event, as a line of `kprobe_events` shows it or as it was written.
///
/// The kernel prints what it keeps each time that the list is read (kernel/trace/trace_kprobe.c:
/// trace_kprobe_show), so the line of an event changes when what is kept is completed:
///
/// - Instances of a return probe: none are listed (`r`) if none were given, until the probe is registered,
///   with its module. Then the kernel has a default for its CPUs, and lists it (`r10`;
///   kernel/kprobes.c: register_kretprobe).
/// - An address is listed as a hash of it (`0x00000000deadbeef`), and as `0x(____ptrval____)` while the
///   kernel has no key for that (lib/vsprintf.c: ptr_to_id).
///
/// All else is kept as text: symbol and offset, which the daemon writes as the kernel prints them, and
/// each argument with its name. The daemon never writes what the kernel would expand or complete
/// (`$arg*`, `PLACE%return`, arguments without names).
struct KeptWords<'a> {
    letter: &'a str,
    /// Empty for the kernel's default.
    maxactive: &'a str,
    name: &'a str,
    place: &'a str,
    arguments: &'a str,
}

impl<'a> KeptWords<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (head, rest) = line.split_once(' ')?;
        let (letters, name) = head.split_once(':')?;
        let (letter, maxactive) = letters.split_at_checked(1)?;
        let (place, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Self { letter, maxactive, name, place, arguments })
    }
}

/// Whether the kernel can list as `listed` what was written, or listed before, as `before`.
fn is_listed_as(before: &str, listed: &str) -> bool {
    let (Some(before), Some(listed)) = (KeptWords::of(before), KeptWords::of(listed)) else { return false };
    let is_completed = before.maxactive.is_empty()
        && before.letter == "r"
        && listed.maxactive.bytes().all(|byte| byte.is_ascii_digit());
    (before.letter, before.name, before.arguments) == (listed.letter, listed.name, listed.arguments)
        && (before.maxactive == listed.maxactive || is_completed)
        && (before.place == listed.place || is_hash_of(listed.place, before.place))
}

/// What the kernel prints of an address while it has no key to hash addresses with.
const NOT_HASHED_YET: &str = "0x(____ptrval____)";

/// Whether `listed` can stand for the address `before`, which is not a hash itself.
fn is_hash_of(listed: &str, before: &str) -> bool {
    /// A hash has 32 bits, and is printed with as many digits as an address.
    const HASH: &str = "0x00000000";
    let is_address = before == NOT_HASHED_YET || (before.starts_with("0x") && !before.starts_with(HASH));
    is_address && (listed == NOT_HASHED_YET || listed.starts_with(HASH))
}

/// The longest word that the kernel compares when it looks for the event to delete: its own copy is
/// cut to this length, and then never equals a longer one (kernel/trace/trace_probe.h:
/// MAX_ARGSTR_LEN).
const COMPARED_BYTES: usize = 63;

/// A line that deletes one event, and whether it has the place, so that the kernel leaves other
/// places of the same name alone. It names the place and the arguments as they are listed: since 5.4
/// the kernel deletes only what has them (kernel/trace/trace_kprobe.c: trace_kprobe_match_command_head).
/// Arguments from the first overlong one on are left out.
fn deletion(own: &OwnEvent) -> (String, bool) {
    let words = own.listing.split(' ').skip(1).take_while(|word| word.len() <= COMPARED_BYTES);
    let words: Vec<_> = std::iter::once(format!("-:{}", own.name)).chain(words.map(str::to_owned)).collect();
    (words.join(" "), words.len() > 1)
}

/// Outcome of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The event was deleted.
    Done,
    /// The event did not exist; its name was in this state.
    NotThere(Presence),
}

impl Tracefs {
    /// The list in `kprobe_events`, read again if a program has written to the file since. Empty if
    /// the kernel does not support kprobe events.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn kprobe_list(&self) -> Result<Arc<KprobeList>, TracefsError> {
        if !self.has_kprobe_events() {
            return Ok(Arc::default());
        }
        self.kprobes.get(|| Ok(KprobeList::parse(&self.files.read(&self.kprobe_events())?)))
    }

    /// Makes the next [`Tracefs::kprobe_list`] read the file again.
    pub fn forget_kprobe_list(&self) {
        self.kprobes.forget();
    }

    fn event_file(&self, name: &ProbeName, file: &str) -> PathBuf {
        self.root().join("events").join(name.group()).join(name.event()).join(file)
    }

    /// The id of an event. Absent when there is no such event, or its description has no id.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn event_id(&self, name: &ProbeName) -> Result<Option<u16>, TracefsError> {
        // The short file is there with perf only (kernel/trace/trace_events.c: event_create_dir).
        let id = match self.files.read_trimmed(&self.event_file(name, "id")) {
            Ok(text) => text.parse().ok(),
            Err(error) if error.errno() == Errno::ENOENT as i32 => {
                match self.format_text(name.group(), name.event()) {
                    Ok(text) => Format::parse(&text).ok().map(|format| format.id),
                    Err(error) if is_gone(&error) => None,
                    Err(error) => return Err(error),
                }
            }
            Err(error) if is_gone(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(id)
    }

    /// The event that the kernel has under the name of an event of the daemon.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn presence(&self, own: &OwnEvent) -> Result<Presence, TracefsError> {
        self.presence_in(&*self.kprobe_list()?, own)
    }

    /// As [`Tracefs::presence`], with a list that was just read.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn presence_in(&self, list: &KprobeList, own: &OwnEvent) -> Result<Presence, TracefsError> {
        let presence = list.presence(own);
        if !presence.is_ours() || self.is_still(own)? {
            return Ok(presence);
        }
        // Between the two readings it was removed, or another program has defined the same again.
        Ok(if self.has_event(own.name.group(), own.name.event()) {
            Presence::Foreign
        } else {
            Presence::Absent
        })
    }

    /// Finds the event that was just defined with a line, among all of its name in a list that was
    /// read since. Absent when it has gone again, or if it cannot be distinguished from places that another
    /// program has added meanwhile.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn find_own(
        &self,
        list: &KprobeList,
        name: &ProbeName,
        written: &str,
    ) -> Result<Option<OwnEvent>, TracefsError> {
        let listed: Vec<_> = list.lines_of(name).collect();
        let found = match listed.as_slice() {
            [only] => Some(*only),
            several => several.iter().copied().find(|line| is_listed_as(written, line)),
        };
        let id = self.event_id(name)?;
        Ok(found.zip(id).map(|(line, id)| OwnEvent::made(name, line, id)))
    }

    /// Finds an event of the daemon that an earlier run has left: by the line that the kernel
    /// listed then or, when it ended before it knew that one, by the line that it wrote.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn find_left(
        &self,
        list: &KprobeList,
        name: &ProbeName,
        listing: &str,
        written: &str,
    ) -> Result<Option<OwnEvent>, TracefsError> {
        let known = if listing.is_empty() { written } else { listing };
        let Some(line) = list.lines_of(name).find(|line| is_listed_as(known, line)) else { return Ok(None) };
        let id = self.event_id(name)?;
        Ok(id.map(|id| OwnEvent::made(name, line, id)))
    }

    /// Whether the event that has the name of `own` now has its id too, and one of the host its fields. Costs one short
    /// file, right before a write. Other places under the name show only in a list.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn is_still(&self, own: &OwnEvent) -> Result<bool, TracefsError> {
        if own.is_of_host() {
            return Ok(self.host_event(&own.name)?.as_ref() == Some(own));
        }
        Ok(self.event_id(&own.name)? == Some(own.id))
    }

    /// Deletes an event that the daemon made, and nothing that others have under its name. Its identity is
    /// checked in a list that may be older than the write, by its id right before the write, and
    /// again by the kernel while it deletes. When the event was ever enabled in an instance, the
    /// kernel empties the buffers of that instance (kernel/trace/trace_dynevent.c:
    /// dyn_event_release): read them first.
    ///
    /// # Errors
    /// [`TracefsError`]; EBUSY while a program has it enabled, and if it cannot be distinguished from places
    /// that another program has added.
    pub fn delete_own(&self, list: &KprobeList, own: &OwnEvent) -> Result<Deleted, TracefsError> {
        if own.is_of_host() {
            return Ok(Deleted::NotThere(Presence::Foreign));
        }
        let (line, has_place) = deletion(own);
        let presence = if has_place { self.presence_in(list, own)? } else { self.presence(own)? };
        match presence {
            Presence::Shared if !has_place => {
                Err(control_file::failed("write", &self.kprobe_events(), Errno::EBUSY.into()))
            }
            Presence::Ours | Presence::Shared => match self.files.append(&self.kprobe_events(), &line) {
                Ok(()) => Ok(Deleted::Done),
                // The event was removed between the two, and its name is in another state now.
                Err(error) if error.errno() == Errno::ENOENT as i32 => {
                    Ok(Deleted::NotThere(self.kprobe_list()?.presence(own)))
                }
                Err(error) => Err(error),
            },
            presence => Ok(Deleted::NotThere(presence)),
        }
    }
}

/// Whether an event went while one of its files was opened or read: its directory is gone, or its
/// files answer no more.
pub(super) fn is_gone(error: &TracefsError) -> bool {
    [Errno::ENOENT, Errno::ENODEV].iter().any(|errno| error.errno() == *errno as i32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own(listing: &str) -> OwnEvent {
        OwnEvent::made(&"kprobes/fork".parse().unwrap(), listing, 1500)
    }

    fn presence(list: &str, listing: &str) -> Presence {
        KprobeList::parse(list).presence(&own(listing))
    }

    #[test]
    fn a_name_proves_nothing() {
        let ours = "p:kprobes/fork kernel_clone flags=+0(%di):x64";
        let theirs = "p:kprobes/fork vfs_statx";
        let others = "p:kprobes/forks kernel_clone\np:other/fork kernel_clone\n";
        assert_eq!(presence(&format!("{others}{ours}\n"), ours), Presence::Ours);
        assert_eq!(presence(&format!("{others}{theirs}\n"), ours), Presence::Foreign);
        assert_eq!(presence(&format!("{ours} more=%si:x64\n"), ours), Presence::Foreign);
        assert_eq!(presence(&format!("{theirs}\n{ours}\n{others}"), ours), Presence::Shared);
        assert_eq!(presence(others, ours), Presence::Absent);
        assert_eq!(presence("", ours), Presence::Absent);
    }

    /// A return probe waits for its module without the number that the kernel gives it then.
    #[test]
    fn an_event_is_ours_whatever_the_kernel_has_completed() {
        let waiting = "r:kprobes/fork veth:veth_open ret=$retval";
        let registered = "r10:kprobes/fork veth:veth_open ret=$retval";
        assert_eq!(presence(&format!("{waiting}\n"), waiting), Presence::Ours);
        assert_eq!(presence(&format!("{registered}\n"), waiting), Presence::Ours);
        // The other way round it is another definition: who gave a number wants that.
        assert_eq!(presence(&format!("{waiting}\n"), registered), Presence::Foreign);
        assert_eq!(presence("r20:kprobes/fork veth:veth_open ret=$retval\n", registered), Presence::Foreign);
        assert_eq!(presence("r10:kprobes/fork veth:veth_close ret=$retval\n", waiting), Presence::Foreign);
        assert_eq!(presence("rx:kprobes/fork veth:veth_open ret=$retval\n", waiting), Presence::Foreign);
    }

    #[test]
    fn deletions_name_what_is_deleted() {
        let line = |listing: &str| deletion(&own(listing)).0;
        assert_eq!(line("p:kprobes/fork kernel_clone"), "-:kprobes/fork kernel_clone");
        assert_eq!(line("r8:kprobes/fork a+4 x=$retval:s32"), "-:kprobes/fork a+4 x=$retval:s32");
        // The kernel compares 63 bytes of each.
        let (long, rest) = ("x".repeat(64), "b=%si:x8");
        assert_eq!(line(&format!("p:kprobes/fork f a=%di {long} {rest}")), "-:kprobes/fork f a=%di");
        let place = deletion(&own(&format!("p:kprobes/fork {long} {rest}")));
        assert_eq!(place, ("-:kprobes/fork".to_owned(), false));
        let just = "x".repeat(63);
        assert_eq!(line(&format!("p:kprobes/fork {just}")), format!("-:kprobes/fork {just}"));
    }

    #[test]
    fn a_line_is_found_as_the_kernel_lists_it() {
        assert!(is_listed_as("p:k/a vfs_read x=%di", "p:k/a vfs_read x=%di"));
        assert!(is_listed_as("r:k/a vfs_read", "r10:k/a vfs_read"));
        assert!(is_listed_as("r3:k/a vfs_read", "r3:k/a vfs_read"));
        let address = |digits: &str| format!("p:k/a 0x{digits} x=%di");
        let (written, early, hash) = ("ffffffff81234560", "(____ptrval____)", "00000000deadbeef");
        for (before, listed) in [(written, hash), (written, early), (early, hash), (hash, hash)] {
            assert!(is_listed_as(&address(before), &address(listed)), "{before} {listed}");
        }
        for (before, listed) in [(hash, "00000000deadbeee"), (hash, early), (written, "ffffffff81234570")] {
            assert!(!is_listed_as(&address(before), &address(listed)), "{before} {listed}");
        }
        for other in ["r4:k/a vfs_read", "p:k/a vfs_read", "r3:k/a vfs_read x=$retval", "r3:k/b vfs_read", ""]
        {
            assert!(!is_listed_as("r3:k/a vfs_read", other), "{other}");
        }
    }

    #[test]
    fn only_what_is_ours_is_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let tracefs = Tracefs::new(directory.path(), directory.path());
        let events = directory.path().join("kprobe_events");
        let id = directory.path().join("events/kprobes/fork/id");
        std::fs::create_dir_all(id.parent().unwrap()).unwrap();
        let own = own("p:kprobes/fork kernel_clone x=%di");
        // What is there, its id, and the line that is written for it.
        for (list, now, written) in [
            ("p:kprobes/fork kernel_clone x=%di\n", "1500\n", Some("-:kprobes/fork kernel_clone x=%di")),
            ("p:kprobes/fork kernel_clone x=%di\n", "1501\n", None),
            ("p:kprobes/fork vfs_statx\n", "1500\n", None),
            ("r8:kprobes/fork kernel_clone x=%di\n", "1500\n", None),
            ("", "1500\n", None),
            (
                "p:kprobes/fork vfs_read x=%di\np:kprobes/fork kernel_clone x=%di\n",
                "1500\n",
                Some("-:kprobes/fork kernel_clone x=%di"),
            ),
        ] {
            std::fs::write(&events, list).unwrap();
            std::fs::write(&id, now).unwrap();
            let deleted = tracefs.delete_own(&tracefs.kprobe_list().unwrap(), &own).unwrap();
            assert_eq!(deleted == Deleted::Done, written.is_some(), "{list}");
            let after = std::fs::read_to_string(&events).unwrap();
            assert_eq!(after.strip_prefix(list), Some(written.unwrap_or_default()), "{list}");
        }
    }

    #[test]
    fn what_cannot_be_told_apart_is_busy() {
        let directory = tempfile::tempdir().unwrap();
        let tracefs = Tracefs::new(directory.path(), directory.path());
        let id = directory.path().join("events/kprobes/fork/id");
        std::fs::create_dir_all(id.parent().unwrap()).unwrap();
        std::fs::write(&id, "1500\n").unwrap();
        let own = own(&format!("p:kprobes/fork {}", "x".repeat(64)));
        let events = directory.path().join("kprobe_events");
        std::fs::write(&events, format!("{}\np:kprobes/fork vfs_statx\n", own.listing)).unwrap();
        let delete = || tracefs.delete_own(&tracefs.kprobe_list().unwrap(), &own);
        assert_eq!(delete().unwrap_err().errno(), Errno::EBUSY as i32);
        std::fs::write(&events, format!("{}\n", own.listing)).unwrap();
        assert_eq!(delete().unwrap(), Deleted::Done);
    }

    proptest! {
        /// Whatever is listed: the line deletes our name, and holds nothing that is not in our
        /// listing.
        #[test]
        fn deletions_are_made_of_the_listing(words in prop::collection::vec("[!-~]{1,80}", 1..8)) {
            let listing = format!("p:kprobes/fork {}", words.join(" "));
            let (line, has_place) = deletion(&own(&listing));
            let named: Vec<_> = line.split(' ').collect();
            prop_assert_eq!(named[0], "-:kprobes/fork");
            prop_assert!(named[1..].iter().zip(&words).all(|(a, b)| a == b));
            prop_assert_eq!(has_place, words[0].len() <= 63);
            prop_assert!(named.iter().all(|word| word.len() <= 63));
        }

        #[test]
        fn any_list_is_survived(text in "([ -~]*\n?){0,8}") {
            let _ = KprobeList::parse(&text).presence(&own("p:kprobes/fork x"));
        }
    }
}
