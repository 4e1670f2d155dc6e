//! Whole paths: `FILE:path` becomes reads of the names on the way up, and of what tells where that ends.
//!
//! Owns which members these are (`struct file`, `path`, `dentry`, `mount`, by the kernel's types), and how many names
//! are read: as many as the kernel's limits for one expression leave, up to [`NAMES`]. Never joins names: the decoder
//! does. See fs/d_path.c:prepend_path for the way up.

use super::path::{self, Value};
use super::problems;
use kprobed_host::kernel::btf::{Btf, BtfError, Composite, Kind, TypeId};
use kprobed_lang::definition::path::{PathEntry, PathField, PathLevel};
use kprobed_lang::definition::{
    ARGUMENT_NAME_MAX_BYTES, Argument, BaseType, BtfMember, Code, Diagnostic, Fetch, Name, Span, Type, Width,
};

/// Names that are read in the file system of the file, in that on which it is mounted, and so on. One may suffice for
/// the last: the root file system is mounted on the root of another one since 7.0, and in containers.
const NAMES: [usize; 4] = [8, 4, 3, 1];

/// Bytes that the longest suffix of a part needs.
const SUFFIX_BYTES: usize = "__0a0".len();

/// What a path field becomes.
pub(super) struct WholePath {
    pub(super) field: PathField,
    pub(super) parts: Vec<Argument>,
}

/// Expands an argument of the type `path`, whose value has a known type, to a field of this name. `image` has the types
/// of the kernel itself, and `fits` says whether the kernel accepts a part.
pub(super) fn expand(
    (btf, image): (&Btf, &Btf),
    value: &Value,
    argument: &Argument,
    name: &str,
    fits: &dyn Fn(&Argument) -> bool,
) -> Result<WholePath, Diagnostic> {
    let span = argument.fetch.span;
    let broken = |error: BtfError| problems::broken(span, &error);
    let walk = Walk { btf, span };
    let Some((dentry, mount)) = walk.begin(value)? else {
        let found = btf.type_text(value.ty).map_err(broken)?;
        let message = format!("`{}` is a `{found}`, which has no path", argument.fetch);
        let hint = "write `:path` behind a `struct file *`, a `struct path` or a `struct dentry *`";
        return Err(
            Diagnostic::error(Code::BadType, argument.ty.map_or(span, |ty| ty.span), message).with_hint(hint)
        );
    };
    let kept = ARGUMENT_NAME_MAX_BYTES.saturating_sub(SUFFIX_BYTES + 1);
    let prefix: String = name.chars().take(kept).collect();
    let mut made = Parts { prefix, argument, made: Vec::new() };
    let mut levels = Vec::new();
    let (mut file_system, mut above) = (None, None);
    let first = made.level(0, &walk, dentry, fits)?;
    if first.is_empty() {
        let message = format!("`{}` has too many steps for the names of a path", argument.fetch);
        return Err(Diagnostic::error(Code::TooManyOps, span, message)
            .with_hint("probe a function that has the `struct file *` itself as a parameter"));
    }
    match mount {
        None => levels.push(PathLevel { entries: first, root: None }),
        Some(mount) => {
            let root = walk.follow(&mount, &["->mnt_root"])?.fetch;
            levels.push(PathLevel { entries: first, root: Some(made.address("0r", root)) });
            let ty = walk.follow(&mount, &["->mnt_sb", "->s_type", "->name"])?.fetch;
            file_system = Some(made.text("fs", ty));
            above = Some(mounts(&mut made, &walk, (&mount.fetch, image), &mut levels, fits)?);
        }
    }
    let field = PathField { name: name.to_owned(), file_system, levels, above };
    Ok(WholePath { field, parts: made.made })
}

/// Reads the mounts above that of the file, each with the way up from what it is mounted on.
fn mounts(
    made: &mut Parts<'_>,
    walk: &Walk<'_>,
    (of_file, image): (&Fetch, &Btf),
    levels: &mut Vec<PathLevel>,
    fits: &dyn Fn(&Argument) -> bool,
) -> Result<[String; 2], Diagnostic> {
    let broken = |error: BtfError| problems::broken(walk.span, &error);
    let Some(layout) = MountLayout::of(image).map_err(broken)? else {
        let message = "the kernel's types do not show `struct mount`, by which a path goes on above a mount";
        return Err(Diagnostic::error(Code::NoBtfEntry, walk.span, message)
            .with_hint("use a `struct dentry *`: its path in its file system"));
    };
    // A `struct vfsmount` lies in a `struct mount`, which begins before it.
    let mut here = (of_file.clone(), -layout.inner);
    for level in 1..NAMES.len() {
        let (mount, begin) = here;
        let on = walk.read(&mount, begin + layout.mountpoint);
        let above = walk.read(&mount, begin + layout.parent);
        let entries = made.level(level, walk, Value { fetch: on, ty: layout.dentry, bits: None }, fits)?;
        let root = walk.read(&above, layout.inner + layout.root);
        let root = Some(made.address(&format!("{level}r"), root));
        levels.push(PathLevel { entries, root });
        here = (above, 0);
    }
    let (mount, begin) = here;
    let above = walk.read(&mount, begin + layout.parent);
    Ok([made.address("m", mount), made.address("up", above)])
}

/// The arguments that are made of one.
struct Parts<'a> {
    prefix: String,
    argument: &'a Argument,
    made: Vec<Argument>,
}

impl Parts<'_> {
    fn part(&self, suffix: &str, fetch: Fetch, base: BaseType) -> Argument {
        let span = self.argument.span;
        let text = format!("{}__{suffix}", self.prefix);
        Argument {
            name: Some(Name { text, span: Span::point(span.start) }),
            fetch,
            ty: Some(Type { base, count: None, span: Span::point(span.end) }),
            span,
        }
    }

    fn add(&mut self, part: Argument) -> String {
        let name = part.name.as_ref().map(|name| name.text.clone()).unwrap_or_default();
        self.made.push(part);
        name
    }

    fn address(&mut self, suffix: &str, fetch: Fetch) -> String {
        let part = self.part(suffix, fetch, BaseType::Hex(Width::W64));
        self.add(part)
    }

    /// The text at which a pointer points.
    fn text(&mut self, suffix: &str, pointer: Fetch) -> String {
        let part = self.part(suffix, pointer.followed(0), BaseType::String);
        self.add(part)
    }

    /// The way up from a `struct dentry *`, as far as the kernel's limits allow.
    fn level(
        &mut self,
        level: usize,
        walk: &Walk<'_>,
        first: Value,
        fits: &dyn Fn(&Argument) -> bool,
    ) -> Result<Vec<PathEntry>, Diagnostic> {
        let mut entries = Vec::new();
        let mut dentry = first;
        for number in 0..NAMES.get(level).copied().unwrap_or_default() {
            let name = walk.follow(&dentry, &["->d_name", ".name"])?.fetch.followed(0);
            let name = self.part(&format!("{level}n{number}"), name, BaseType::String);
            let address =
                self.part(&format!("{level}a{number}"), dentry.fetch.clone(), BaseType::Hex(Width::W64));
            if !fits(&name) || !fits(&address) {
                break;
            }
            // The address first: what is first stands for the field.
            entries.push(PathEntry { address: self.add(address), name: self.add(name) });
            dentry = walk.follow(&dentry, &["->d_parent"])?;
        }
        Ok(entries)
    }
}

/// Follows members by the kernel's types.
struct Walk<'a> {
    btf: &'a Btf,
    span: Span,
}

impl Walk<'_> {
    /// The `struct dentry *` and the `struct vfsmount *` of a value, of which the second can be unknown. `None`: the
    /// value has no path.
    fn begin(&self, value: &Value) -> Result<Option<(Value, Option<Value>)>, Diagnostic> {
        let broken = |error: BtfError| problems::broken(self.span, &error);
        let resolved = self.btf.resolved(value.ty).map_err(broken)?;
        let (name, is_pointer) = match resolved.kind {
            Kind::Pointer(target) => (self.btf.resolved(target).map_err(broken)?.name, true),
            Kind::Composite(_) => (resolved.name, false),
            _ => return Ok(None),
        };
        Ok(Some(match (name, is_pointer) {
            ("dentry", true) => (value.clone(), None),
            ("file", true) => {
                let member = |name| self.follow(value, &["->f_path", name]);
                (member(".dentry")?, Some(member(".mnt")?))
            }
            ("path", true) => (self.follow(value, &["->dentry"])?, Some(self.follow(value, &["->mnt"])?)),
            ("path", false) => {
                let member = |name| self.member(value, name).map_err(broken);
                let (Some(dentry), Some(mount)) = (member("dentry")?, member("mnt")?) else {
                    return Ok(None);
                };
                (dentry, Some(mount))
            }
            _ => return Ok(None),
        }))
    }

    /// A member of a structure that is in memory.
    fn member(&self, value: &Value, name: &str) -> Result<Option<Value>, BtfError> {
        let Kind::Composite(composite) = self.btf.resolved(value.ty)?.kind else { return Ok(None) };
        let Some(found) = self.btf.member(composite, name)? else { return Ok(None) };
        let fetch = value.fetch.shifted(found.bit_offset / 8);
        Ok(fetch.map(|fetch| Value { fetch, ty: found.member.ty, bits: None }))
    }

    /// Follows members, each with the separator before it.
    fn follow(&self, value: &Value, members: &[&str]) -> Result<Value, Diagnostic> {
        let members: Vec<_> = members
            .iter()
            .map(|member| BtfMember {
                arrow: member.starts_with("->"),
                name: member.trim_start_matches(['-', '>', '.']).to_owned(),
                indices: Vec::new(),
            })
            .collect();
        path::follow(self.btf, value.fetch.clone(), value.ty, &members, self.span.start, 0)
    }

    /// What lies so many bytes behind a pointer.
    fn read(&self, pointer: &Fetch, offset: i32) -> Fetch {
        Fetch { span: self.span, ..pointer.clone().followed(offset) }
    }
}

/// Where the members of a `struct mount` are, in bytes (fs/mount.h). No pointer that drivers see leads to it: it is
/// looked for by its name.
struct MountLayout {
    /// The `struct vfsmount` in it.
    inner: i32,
    parent: i32,
    mountpoint: i32,
    /// The type of the member `mnt_mountpoint`.
    dentry: TypeId,
    /// The root in a `struct vfsmount`.
    root: i32,
}

impl MountLayout {
    fn of(image: &Btf) -> Result<Option<Self>, BtfError> {
        for found in image.types() {
            let found = found?;
            let Kind::Composite(mount) = found.kind else { continue };
            if found.name == "mount"
                && let Some(layout) = Self::read(image, mount)?
            {
                return Ok(Some(layout));
            }
        }
        Ok(None)
    }

    fn read(image: &Btf, mount: Composite<'_>) -> Result<Option<Self>, BtfError> {
        let place = |of: Composite<'_>, name: &str| -> Result<Option<(i32, TypeId)>, BtfError> {
            let found = image.member(of, name)?;
            Ok(found.and_then(|found| Some((i32::try_from(found.bit_offset / 8).ok()?, found.member.ty))))
        };
        let Some((inner, vfsmount)) = place(mount, "mnt")? else { return Ok(None) };
        let Kind::Composite(vfsmount) = image.resolved(vfsmount)?.kind else { return Ok(None) };
        let (Some((parent, _)), Some((mountpoint, dentry)), Some((root, _))) =
            (place(mount, "mnt_parent")?, place(mount, "mnt_mountpoint")?, place(vfsmount, "mnt_root")?)
        else {
            return Ok(None);
        };
        Ok(Some(Self { inner, parent, mountpoint, dentry, root }))
    }
}
