//! Whole paths: one column of text in place of the names that the kernel records one by one.
//!
//! Owns how names become a path, and where the parts are in a record. Which parts there are is in the definition: see
//! `kprobed_lang::definition::path`. A path begins with `/`; with `.../` if names above were not recorded; and with the
//! type of the file system if it has no name in any directory, such as `pipefs:`. It could not be read if the name of
//! the file or the type of its file system could not.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use kprobed_lang::definition::path::{PathField, PathLevel};

use super::columns::Column;
use super::compiled::{Action, CompileError, Step};
use super::computed::Made;
use super::dynamic;
use super::row::{DecodeError, fixed};
use super::{FieldKind, FieldSchema, Notation};

/// Most names of a path that are joined.
const NAMES_MAX: usize = 32;

/// A path, and where its parts are.
#[derive(Clone, Debug)]
pub(super) struct PathPlan {
    file_system: Option<Text>,
    levels: Vec<Level>,
    above: Option<[usize; 2]>,
}

#[derive(Clone, Debug)]
struct Level {
    entries: Vec<(usize, Text)>,
    root: Option<usize>,
}

/// The descriptor of a text, and the next one.
#[derive(Clone, Copy, Debug)]
struct Text {
    at: usize,
    next_at: Option<usize>,
}

impl Text {
    fn read(self, record: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
        dynamic::argument(record, self.at, self.next_at)
    }
}

/// How far up the names of a level lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// To the root of the mount, or of the file system if the mount is not known.
    Root,
    /// To a file that lies in no directory below that root.
    Detached,
    /// Not so far: more names were not recorded.
    Cut,
}

/// Names from the file upwards.
#[derive(Debug)]
struct Names<'r> {
    names: [&'r [u8]; NAMES_MAX],
    count: usize,
}

impl<'r> Names<'r> {
    fn push(&mut self, name: &'r [u8]) -> bool {
        let Some(room) = self.names.get_mut(self.count) else { return false };
        *room = name;
        self.count = self.count.saturating_add(1);
        true
    }

    /// Writes them downwards behind `begin`.
    fn join(&self, begin: &[u8], to: &mut Vec<u8>) {
        to.extend_from_slice(begin);
        let names = self.names.get(..self.count).unwrap_or_default();
        for (number, name) in names.iter().rev().enumerate() {
            if number > 0 {
                to.push(b'/');
            }
            to.extend_from_slice(name);
        }
    }
}

impl PathPlan {
    /// Appends the path of a record to a column.
    pub(super) fn append(&self, record: &[u8], column: &mut Column) -> Result<(), DecodeError> {
        let mut names = Names { names: [&[]; NAMES_MAX], count: 0 };
        let Some(end) = self.read(record, &mut names)? else {
            column.push_text_fault();
            return Ok(());
        };
        let file_system = match (end, self.file_system) {
            (End::Detached, Some(text)) => text.read(record)?.unwrap_or_default(),
            _ => &[],
        };
        column.push_made_text(|text| match end {
            End::Root => names.join(b"/", text),
            End::Cut => names.join(b".../", text),
            End::Detached => {
                text.extend_from_slice(file_system);
                names.join(if file_system.is_empty() { b"" } else { b":" }, text);
            }
        })
    }

    /// The names of all levels. `None`: it could not be read.
    fn read<'r>(&self, record: &'r [u8], names: &mut Names<'r>) -> Result<Option<End>, DecodeError> {
        if let Some(text) = self.file_system
            && text.read(record)?.is_none()
        {
            return Ok(None);
        }
        for (number, level) in self.levels.iter().enumerate() {
            match level.read(record, names)? {
                Some(End::Root) => {}
                // Above the first level, names are those of directories, which is what they say.
                Some(End::Detached) | None if number > 0 => return Ok(Some(End::Cut)),
                end => return Ok(end),
            }
        }
        let is_whole = match self.above {
            Some([last, next]) => address(record, last)? == address(record, next)?,
            None => true,
        };
        Ok(Some(if is_whole { End::Root } else { End::Cut }))
    }
}

impl Level {
    /// The names up to the root of the mount. `None`: the first could not be read.
    fn read<'r>(&self, record: &'r [u8], names: &mut Names<'r>) -> Result<Option<End>, DecodeError> {
        let root = self.root.map(|at| address(record, at)).transpose()?;
        let mut below = None;
        for (at, text) in &self.entries {
            let here = Some(address(record, *at)?);
            if here == root && root.is_some() {
                return Ok(Some(End::Root));
            }
            // The root of a file system is its own parent.
            if here == below {
                return Ok(Some(if root.is_some() { End::Detached } else { End::Root }));
            }
            let Some(name) = text.read(record)? else {
                return Ok(below.is_some().then_some(End::Cut));
            };
            // No other name has a slash in it.
            if name == b"/" && root.is_none() {
                return Ok(Some(End::Root));
            }
            if !names.push(name) {
                return Ok(Some(End::Cut));
            }
            below = here;
        }
        Ok(Some(End::Cut))
    }
}

fn address(record: &[u8], at: usize) -> Result<u64, DecodeError> {
    Ok(u64::from_le_bytes(fixed(record, at)?))
}

/// The fields of paths, with their parts.
pub(super) fn made(
    paths: &[PathField],
    fields: &[FieldSchema],
    steps: &[Step],
) -> Result<Vec<Made>, CompileError> {
    let step = |name: &String| -> Result<&Step, CompileError> {
        let missing = || CompileError::part(name);
        let index = fields.iter().position(|field| field.name == *name).ok_or_else(missing)?;
        steps.get(index).ok_or_else(missing)
    };
    let number = |name: &String| match step(name)? {
        Step { at, action: Action::Copy { bytes: 8 }, .. } => Ok(*at),
        _ => Err(CompileError::part(name)),
    };
    let text = |name: &String| match step(name)? {
        Step { at, action: Action::Argument { next_at }, .. } => Ok(Text { at: *at, next_at: *next_at }),
        _ => Err(CompileError::part(name)),
    };
    let level = |level: &PathLevel| {
        let entries = level.entries.iter().map(|entry| Ok((number(&entry.address)?, text(&entry.name)?)));
        Ok(Level {
            entries: entries.collect::<Result<_, CompileError>>()?,
            root: level.root.as_ref().map(number).transpose()?,
        })
    };
    let mut all = Vec::new();
    for path in paths {
        let above = path.above.as_ref().map(|[last, next]| Ok([number(last)?, number(next)?]));
        let plan = PathPlan {
            file_system: path.file_system.as_ref().map(text).transpose()?,
            levels: path.levels.iter().map(level).collect::<Result<_, CompileError>>()?,
            above: above.transpose()?,
        };
        let field =
            FieldSchema { notation: Notation::Computed, ..FieldSchema::new(&path.name, FieldKind::String) };
        let action = Action::Path(Box::new(plan));
        let parts = path.parts().map(str::to_owned).collect();
        all.push(Made { parts, field, step: Step { at: 0, action, guards: Vec::new() } });
    }
    Ok(all)
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "the records are of this test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A record of nothing but addresses and texts, and the plan that reads it.
    struct Scene {
        record: Vec<u8>,
        plan: PathPlan,
    }

    /// Levels of (address, name), each with the address of its root; a name that is `None` could not be read.
    type Levels<'a> = &'a [(&'a [(u64, Option<&'a str>)], Option<u64>)];

    fn scene(file_system: &[Option<&str>], levels: Levels<'_>, above: Option<[u64; 2]>) -> Scene {
        let (mut record, mut texts) = (Vec::new(), Vec::new());
        let number = |record: &mut Vec<u8>, value: u64| {
            record.extend(value.to_le_bytes());
            record.len() - 8
        };
        let text = |record: &mut Vec<u8>, texts: &mut Vec<_>, value: Option<&str>| {
            record.extend([0; 4]);
            texts.push((record.len() - 4, value.map(str::to_owned)));
            Text { at: record.len() - 4, next_at: None }
        };
        let levels = levels.iter().map(|(entries, root)| Level {
            root: root.map(|root| number(&mut record, root)),
            entries: entries
                .iter()
                .map(|(at, name)| (number(&mut record, *at), text(&mut record, &mut texts, *name)))
                .collect(),
        });
        let levels = levels.collect();
        let file_system = file_system.first().map(|name| text(&mut record, &mut texts, *name));
        let above = above.map(|above| above.map(|address| number(&mut record, address)));
        for (at, value) in texts {
            let Some(value) = value else { continue };
            let word = |number| u16::try_from(number).unwrap();
            let (offset, length) = (word(record.len()), word(value.len() + 1));
            record[at..at + 2].copy_from_slice(&offset.to_le_bytes());
            record[at + 2..at + 4].copy_from_slice(&length.to_le_bytes());
            record.extend(value.bytes().chain([0]));
        }
        Scene { record, plan: PathPlan { file_system, levels, above } }
    }

    fn path(scene: &Scene) -> Option<String> {
        let mut column = Column::new(FieldKind::String, 1);
        scene.plan.append(&scene.record, &mut column).unwrap();
        let text = column.text(0).filter(|_| !column.is_fault(0));
        text.map(|text| String::from_utf8_lossy(text).into_owned())
    }

    const TOP: (&[(u64, Option<&str>)], Option<u64>) = (&[(7, Some("/"))], Some(7));

    #[test]
    fn names_are_joined_up_to_the_root_of_the_mount() {
        let fs: &[_] = &[Some("ext4")];
        let of_root = [(&[(3, Some("b")), (2, Some("a")), (1, Some("/"))][..], Some(1)), TOP, TOP];
        assert_eq!(path(&scene(fs, &of_root, Some([9, 9]))).as_deref(), Some("/a/b"));
        // A part of a file system is mounted: what is above its root is not in the path.
        let part = [(&[(3, Some("b")), (2, Some("a")), (1, Some("/"))][..], Some(2))];
        let on = (&[(5, Some("mnt")), (4, Some("/"))][..], Some(4));
        assert_eq!(path(&scene(fs, &[part[0], on, TOP], Some([9, 9]))).as_deref(), Some("/mnt/b"));
        let nested = [part[0], (&[(6, Some("in")), (5, Some("/"))][..], Some(5)), on];
        assert_eq!(path(&scene(fs, &nested, Some([9, 9]))).as_deref(), Some("/mnt/in/b"));
        assert_eq!(path(&scene(fs, &nested, Some([9, 8]))).as_deref(), Some(".../mnt/in/b"));
        assert_eq!(path(&scene(fs, &[TOP, TOP, TOP], Some([9, 9]))).as_deref(), Some("/"));
    }

    #[test]
    fn what_is_not_whole_says_so() {
        let fs: &[_] = &[Some("ext4")];
        let cut = [(&[(3, Some("c")), (2, Some("b"))][..], Some(1)), TOP, TOP];
        assert_eq!(path(&scene(fs, &cut, Some([9, 9]))).as_deref(), Some(".../b/c"));
        let mount_is_cut =
            [(&[(3, Some("c")), (2, Some("/"))][..], Some(2)), (&[(4, Some("m"))], Some(1)), TOP];
        assert_eq!(path(&scene(fs, &mount_is_cut, Some([9, 9]))).as_deref(), Some(".../m/c"));
        // A pipe lies in no directory.
        let pipe = [(&[(3, Some("")), (3, Some(""))][..], Some(1)), TOP, TOP];
        assert_eq!(path(&scene(&[Some("pipefs")], &pipe, Some([9, 9]))).as_deref(), Some("pipefs:"));
        let event = [(&[(3, Some("[eventfd]")), (3, Some("[eventfd]"))][..], Some(1))];
        let shown = path(&scene(&[Some("anon_inodefs")], &event, Some([9, 9])));
        assert_eq!(shown.as_deref(), Some("anon_inodefs:[eventfd]"));
        // Stale bytes of an older record lie where an address could not be read.
        assert_eq!(path(&scene(&[None], &[TOP, TOP], Some([9, 9]))), None);
        assert_eq!(path(&scene(fs, &[(&[(3, None)], Some(1))], Some([9, 9]))), None);
    }

    #[test]
    fn a_directory_entry_has_its_path_in_its_file_system() {
        let entry = [(&[(3, Some("b")), (2, Some("a")), (1, Some("/"))][..], None)];
        assert_eq!(path(&scene(&[], &entry, None)).as_deref(), Some("/a/b"));
        let cut = [(&[(3, Some("b")), (2, Some("a"))][..], None)];
        assert_eq!(path(&scene(&[], &cut, None)).as_deref(), Some(".../a/b"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, keep in 0..200_usize) {
            let entries: &[_] = &[(3, Some("b")), (2, Some("a")), (1, Some("/"))];
            let Scene { record, plan } = scene(&[Some("ext4")], &[(entries, Some(9)), TOP], Some([1, 2]));
            let cut = record.get(..keep).unwrap_or(&record);
            for record in [bytes.as_slice(), cut] {
                let mut column = Column::new(FieldKind::String, 1);
                if plan.append(record, &mut column).is_ok() {
                    prop_assert_eq!(column.len(), 1);
                } else {
                    prop_assert_eq!(column.len(), 0);
                }
            }
        }
    }
}
