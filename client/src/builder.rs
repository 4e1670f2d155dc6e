//! Builder of definitions as fields.
//!
//! It builds messages of the API and checks nothing: the daemon does.

use crate::api::fetch::Source;
use crate::api::{
    ArgumentSpec, Fetch, FetchDereference, FetchMemory, FetchSymbol, FetchType, FetchTypeName, FetchVariable,
    ProbeKind, ProbePlace, ProbeSpec, SymbolPlace, fetch_memory, fetch_type, probe_place,
};
use crate::definition::Definition;

/// A probe definition under construction.
///
/// ```
/// use kprobed_client::api::FetchTypeName;
/// use kprobed_client::{FetchArg, ProbeBuilder};
///
/// // p:kprobes/open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
/// let open = ProbeBuilder::entry("do_sys_openat2")
///     .event("kprobes", "open")
///     .argument("dfd", FetchArg::argument(1).typed(FetchTypeName::S32))
///     .argument("filename", FetchArg::argument(2).at(0).typed(FetchTypeName::String));
/// assert_eq!(open.build().arguments.len(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct ProbeBuilder {
    spec: ProbeSpec,
    place: SymbolPlace,
}

impl ProbeBuilder {
    fn new(kind: ProbeKind, symbol: &str) -> Self {
        Self {
            spec: ProbeSpec { kind: kind.into(), ..Default::default() },
            place: SymbolPlace { symbol: symbol.to_owned(), ..Default::default() },
        }
    }

    /// A probe where a function begins.
    pub fn entry(symbol: &str) -> Self {
        Self::new(ProbeKind::Entry, symbol)
    }

    /// A probe where a function returns.
    ///
    /// ```
    /// use kprobed_client::api::{FetchTypeName, ProbeKind};
    /// use kprobed_client::{FetchArg, ProbeBuilder};
    ///
    /// // r64:kprobes/opened do_sys_openat2 fd=$retval:s32
    /// let opened = ProbeBuilder::returning("do_sys_openat2")
    ///     .maxactive(64)
    ///     .event("kprobes", "opened")
    ///     .argument("fd", FetchArg::retval().typed(FetchTypeName::S32))
    ///     .build();
    /// assert_eq!((opened.kind(), opened.maxactive), (ProbeKind::Return, Some(64)));
    /// ```
    pub fn returning(symbol: &str) -> Self {
        Self::new(ProbeKind::Return, symbol)
    }

    /// The module that has the function.
    #[must_use]
    pub fn module(mut self, module: &str) -> Self {
        module.clone_into(&mut self.place.module);
        self
    }

    /// Offset from the beginning of the function, in bytes.
    ///
    /// ```
    /// use kprobed_client::ProbeBuilder;
    /// use kprobed_client::api::probe_place::Place;
    ///
    /// // p:btrfs:btrfs_sync_file+16
    /// let inside = ProbeBuilder::entry("btrfs_sync_file").module("btrfs").offset(16).build();
    /// let Some(Place::Symbol(place)) = inside.place.unwrap().place else { panic!() };
    /// assert_eq!((place.module.as_str(), place.offset), ("btrfs", 16));
    /// ```
    #[must_use]
    pub fn offset(mut self, bytes: u32) -> Self {
        self.place.offset = bytes;
        self
    }

    /// Executions that a return probe can follow at the same time.
    #[must_use]
    pub fn maxactive(mut self, executions: u32) -> Self {
        self.spec.maxactive = Some(executions);
        self
    }

    /// Group and name of the event. Either may be empty: then the daemon chooses.
    #[must_use]
    pub fn event(mut self, group: &str, event: &str) -> Self {
        group.clone_into(&mut self.spec.group);
        event.clone_into(&mut self.spec.event);
        self
    }

    /// Records a value as a field of this name. An empty name: the daemon chooses.
    #[must_use]
    pub fn argument(mut self, name: &str, value: FetchArg) -> Self {
        self.spec.arguments.push(ArgumentSpec {
            name: name.to_owned(),
            fetch: Some(value.fetch),
            r#type: value.r#type,
        });
        self
    }

    /// The message.
    pub fn build(mut self) -> ProbeSpec {
        self.spec.place = Some(ProbePlace { place: Some(probe_place::Place::Symbol(self.place)) });
        self.spec
    }
}

impl From<ProbeBuilder> for Definition {
    fn from(builder: ProbeBuilder) -> Self {
        Self::Spec(builder.build())
    }
}

/// A value that a probe reads. [`FetchArg::from`] takes what is not here as a message of the API.
#[derive(Clone, Debug)]
pub struct FetchArg {
    fetch: Fetch,
    r#type: Option<FetchType>,
}

impl From<Source> for FetchArg {
    fn from(source: Source) -> Self {
        Self { fetch: Fetch { source: Some(source) }, r#type: None }
    }
}

impl FetchArg {
    /// A register, by the kernel's name without the `%`, such as `di`.
    pub fn register(name: &str) -> Self {
        Source::Register(name.to_owned()).into()
    }

    /// The Nth argument of the function, from 1.
    pub fn argument(index: u32) -> Self {
        Source::Argument(index).into()
    }

    /// What the function returns.
    pub fn retval() -> Self {
        Source::Variable(FetchVariable::Retval.into()).into()
    }

    /// The name of the current task.
    pub fn comm() -> Self {
        Source::Variable(FetchVariable::Comm.into()).into()
    }

    /// Kernel memory at a symbol, plus an offset in bytes.
    pub fn symbol(symbol: &str, offset: i64) -> Self {
        let symbol = FetchSymbol { symbol: symbol.to_owned(), offset };
        Source::Memory(FetchMemory { place: Some(fetch_memory::Place::Symbol(symbol)) }).into()
    }

    /// Kernel memory at this value, plus an offset in bytes. A type that was set is that of the new
    /// value.
    ///
    /// ```
    /// use kprobed_client::api::fetch::Source;
    /// use kprobed_client::api::FetchTypeName;
    /// use kprobed_client::{FetchArg, ProbeBuilder};
    ///
    /// // flags=+64(+8($arg2)):u32
    /// let flags = FetchArg::argument(2).at(8).at(64).typed(FetchTypeName::U32);
    /// let spec = ProbeBuilder::entry("vfs_read").argument("flags", flags).build();
    /// let Some(Source::Dereference(outer)) = spec.arguments[0].fetch.clone().unwrap().source else { panic!() };
    /// let Some(Source::Dereference(inner)) = outer.inner.unwrap().source else { panic!() };
    /// assert_eq!((outer.offset, inner.offset, inner.inner.unwrap().source), (64, 8, Some(Source::Argument(2))));
    /// ```
    #[must_use]
    pub fn at(self, offset: i32) -> Self {
        self.dereferenced(false, offset)
    }

    /// User memory at this value, plus an offset in bytes. A type that was set is that of the new
    /// value.
    #[must_use]
    pub fn at_user(self, offset: i32) -> Self {
        self.dereferenced(true, offset)
    }

    fn dereferenced(self, user: bool, offset: i32) -> Self {
        let inner = Some(Box::new(self.fetch));
        let outer = Source::Dereference(Box::new(FetchDereference { user, offset, inner }));
        Self { r#type: self.r#type, ..outer.into() }
    }

    /// How it is read and shown.
    #[must_use]
    pub fn typed(mut self, name: FetchTypeName) -> Self {
        let array_length = self.r#type.and_then(|known| known.array_length);
        self.r#type = Some(FetchType { r#type: Some(fetch_type::Type::Name(name.into())), array_length });
        self
    }

    /// An array of this many elements of the type.
    ///
    /// ```
    /// use kprobed_client::api::FetchTypeName;
    /// use kprobed_client::{FetchArg, ProbeBuilder};
    ///
    /// // head=+0($arg2):u8[16]
    /// let head = FetchArg::argument(2).at(0).typed(FetchTypeName::U8).array(16);
    /// let spec = ProbeBuilder::entry("vfs_write").argument("head", head).build();
    /// assert_eq!(spec.arguments[0].r#type.unwrap().array_length, Some(16));
    /// ```
    #[must_use]
    pub fn array(mut self, length: u32) -> Self {
        self.r#type.get_or_insert_default().array_length = Some(length);
        self
    }
}
