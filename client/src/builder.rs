//! Builder of definitions: puts the line of the kernel's language together.
//!
//! It lets no name end its word, so that a name from elsewhere cannot change what the line says. All else is for the
//! daemon to judge.

use std::fmt::Write as _;

use thiserror::Error;

use crate::api::FetchTypeName;

/// A name, or an expression, that would change the meaning of the line around it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} cannot be a part of a definition: names have ASCII letters, digits and `_`, those of functions and symbols `.` and `$` too, and expressions have no blanks and no `#`"
)]
pub struct PartError(String);

/// A probe definition under construction.
///
/// ```
/// use kprobed_client::api::FetchTypeName;
/// use kprobed_client::{FetchArg, ProbeBuilder};
///
/// let open = ProbeBuilder::entry("do_sys_openat2")
///     .event("kprobes", "open")
///     .argument("dfd", FetchArg::argument(1).typed(FetchTypeName::S32))
///     .argument("filename", FetchArg::argument(2).at(0).typed(FetchTypeName::Ustring));
/// let line = "p:kprobes/open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):ustring";
/// assert_eq!(open.build().unwrap(), line);
/// // A name cannot smuggle anything into the line.
/// assert!(ProbeBuilder::entry("vfs_read").event("", "read vfs_write").build().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct ProbeBuilder {
    kind: char,
    maxactive: Option<u32>,
    group: String,
    event: String,
    module: String,
    symbol: String,
    offset: u32,
    arguments: Vec<(String, FetchArg)>,
}

impl ProbeBuilder {
    fn new(kind: char, symbol: &str) -> Self {
        Self {
            kind,
            maxactive: None,
            group: String::new(),
            event: String::new(),
            module: String::new(),
            symbol: symbol.to_owned(),
            offset: 0,
            arguments: Vec::new(),
        }
    }

    /// A probe where a function begins.
    pub fn entry(symbol: &str) -> Self {
        Self::new('p', symbol)
    }

    /// A probe where a function returns.
    ///
    /// ```
    /// use kprobed_client::api::FetchTypeName;
    /// use kprobed_client::{FetchArg, ProbeBuilder};
    ///
    /// let opened = ProbeBuilder::returning("do_sys_openat2")
    ///     .maxactive(64)
    ///     .event("kprobes", "opened")
    ///     .argument("fd", FetchArg::retval().typed(FetchTypeName::S32));
    /// assert_eq!(opened.build().unwrap(), "r64:kprobes/opened do_sys_openat2 fd=$retval:s32");
    /// ```
    pub fn returning(symbol: &str) -> Self {
        Self::new('r', symbol)
    }

    /// The module that has the function.
    #[must_use]
    pub fn module(mut self, module: &str) -> Self {
        module.clone_into(&mut self.module);
        self
    }

    /// Offset from the beginning of the function, in bytes.
    ///
    /// ```
    /// use kprobed_client::ProbeBuilder;
    ///
    /// let inside = ProbeBuilder::entry("btrfs_sync_file").module("btrfs").offset(16);
    /// assert_eq!(inside.build().unwrap(), "p btrfs:btrfs_sync_file+16");
    /// ```
    #[must_use]
    pub fn offset(mut self, bytes: u32) -> Self {
        self.offset = bytes;
        self
    }

    /// Executions that a return probe can follow at the same time.
    #[must_use]
    pub fn maxactive(mut self, executions: u32) -> Self {
        self.maxactive = Some(executions);
        self
    }

    /// Group and name of the event. Either may be empty: then the daemon chooses.
    #[must_use]
    pub fn event(mut self, group: &str, event: &str) -> Self {
        group.clone_into(&mut self.group);
        event.clone_into(&mut self.event);
        self
    }

    /// Records a value as a field of this name. An empty name: the daemon chooses.
    #[must_use]
    pub fn argument(mut self, name: &str, value: FetchArg) -> Self {
        self.arguments.push((name.to_owned(), value));
        self
    }

    /// The line.
    ///
    /// # Errors
    /// A part that would end its word.
    pub fn build(self) -> Result<String, PartError> {
        let mut line = String::from(self.kind);
        if let Some(maxactive) = self.maxactive {
            write!(line, "{maxactive}").ok();
        }
        let is_of_group = |text: &str| is_name(&text.replace('-', "_"));
        match (part(&self.group, is_of_group)?, part(&self.event, is_name)?) {
            ("", "") => {}
            ("", event) => line.extend([":", event]),
            (group, event) => line.extend([":", group, "/", event]),
        }
        line.push(' ');
        if !self.module.is_empty() {
            line.extend([part(&self.module, is_name)?, ":"]);
        }
        if self.symbol.is_empty() {
            return Err(PartError(self.symbol));
        }
        line.push_str(part(&self.symbol, is_symbol)?);
        if self.offset > 0 {
            write!(line, "+{}", self.offset).ok();
        }
        for (name, FetchArg { text, r#type, length }) in &self.arguments {
            line.push(' ');
            if !name.is_empty() {
                line.extend([part(name, is_name)?, "="]);
            }
            line.push_str(text.as_ref().map_err(Clone::clone)?);
            match (r#type, length) {
                (None, None) => {}
                (Some(name), None) => write!(line, ":{name}").unwrap_or_default(),
                (name, Some(length)) => {
                    write!(line, ":{}[{length}]", name.as_deref().unwrap_or(WORD)).unwrap_or_default();
                }
            }
        }
        Ok(line)
    }
}

/// The type of a value that has none.
const WORD: &str = "x64";

/// An empty text, or one that is good.
fn part(text: &str, is_good: impl Fn(&str) -> bool) -> Result<&str, PartError> {
    if text.is_empty() || is_good(text) { Ok(text) } else { Err(PartError(text.to_owned())) }
}

/// Whether a text is a name that ends no word: letters, digits and `_`, no digit first.
fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether it is one of a function or another symbol, of which compilers make some with `.` and `$`.
fn is_symbol(text: &str) -> bool {
    is_name(&text.replace(['.', '$'], "_"))
}

/// A value that a probe reads.
#[derive(Clone, Debug)]
pub struct FetchArg {
    text: Result<String, PartError>,
    r#type: Option<String>,
    length: Option<u32>,
}

impl FetchArg {
    fn new(text: Result<String, PartError>) -> Self {
        Self { text, r#type: None, length: None }
    }

    /// A register, by the kernel's name without the `%`, such as `di`.
    pub fn register(name: &str) -> Self {
        Self::new(part(name, is_name).map(|name| format!("%{name}")))
    }

    /// The Nth argument of the function, from 1.
    pub fn argument(index: u32) -> Self {
        Self::new(Ok(format!("$arg{index}")))
    }

    /// What the function returns.
    pub fn retval() -> Self {
        Self::new(Ok("$retval".to_owned()))
    }

    /// The name of the current task.
    pub fn comm() -> Self {
        Self::new(Ok("$comm".to_owned()))
    }

    /// Kernel memory at a symbol, plus an offset in bytes.
    pub fn symbol(symbol: &str, offset: i64) -> Self {
        let distance = if offset == 0 { String::new() } else { format!("{offset:+}") };
        Self::new(part(symbol, is_symbol).map(|symbol| format!("@{symbol}{distance}")))
    }

    /// A value as the line has it, such as `file->f_inode->i_ino`, without its name and type.
    pub fn expression(text: &str) -> Self {
        let is_word = |text: &str| !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#');
        Self::new(part(text, is_word).map(str::to_owned))
    }

    /// Kernel memory at this value, plus an offset in bytes. A type that was set is that of the new
    /// value.
    ///
    /// ```
    /// use kprobed_client::api::FetchTypeName;
    /// use kprobed_client::{FetchArg, ProbeBuilder};
    ///
    /// let flags = FetchArg::argument(2).at(8).at(64).typed(FetchTypeName::U32);
    /// let read = ProbeBuilder::entry("vfs_read").argument("flags", flags);
    /// assert_eq!(read.build().unwrap(), "p vfs_read flags=+64(+8($arg2)):u32");
    /// ```
    #[must_use]
    pub fn at(self, offset: i32) -> Self {
        Self { text: self.text.map(|text| format!("{offset:+}({text})")), ..self }
    }

    /// User memory at this value, plus an offset in bytes. A type that was set is that of the new
    /// value.
    #[must_use]
    pub fn at_user(self, offset: i32) -> Self {
        let sign = if offset < 0 { '-' } else { '+' };
        Self { text: self.text.map(|text| format!("{sign}u{}({text})", offset.unsigned_abs())), ..self }
    }

    /// How it is read and shown.
    #[must_use]
    pub fn typed(self, name: FetchTypeName) -> Self {
        let r#type = match name {
            FetchTypeName::Unspecified => None,
            FetchTypeName::Dentry => Some("%pd".to_owned()),
            FetchTypeName::File => Some("%pD".to_owned()),
            _ => name.as_str_name().strip_prefix("FETCH_TYPE_NAME_").map(str::to_ascii_lowercase),
        };
        Self { r#type, ..self }
    }

    /// An array of this many elements of the type, or of words without one.
    ///
    /// ```
    /// use kprobed_client::api::FetchTypeName;
    /// use kprobed_client::{FetchArg, ProbeBuilder};
    ///
    /// let head = FetchArg::argument(2).at(0).typed(FetchTypeName::U8).array(16);
    /// let write = ProbeBuilder::entry("vfs_write").argument("head", head);
    /// assert_eq!(write.build().unwrap(), "p vfs_write head=+0($arg2):u8[16]");
    /// ```
    #[must_use]
    pub fn array(mut self, length: u32) -> Self {
        self.length = Some(length);
        self
    }
}
