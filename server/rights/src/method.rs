//! Methods of the API, and the verb under which roles name them.
//!
//! Owns the table. A method that is not in it is refused to every client: a test goes through the
//! descriptors of the API, so that the build of a new method fails until it has a verb.

/// What a method does to the host, in the words of roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Looks at probes, counts, the ledger and the host. Conditions on what a probe reads do not apply:
    /// these answers have none of it.
    Read,
    /// Asks about definitions and code. Changes nothing, and reads no data of the host.
    Check,
    /// Receives what probes record.
    Observe,
    /// Makes, changes and removes probes.
    Change,
    /// Changes how the daemon works for all clients, and asks about the rights of others.
    Administer,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 5] = [Self::Read, Self::Check, Self::Observe, Self::Change, Self::Administer];

    /// The name in role files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Check => "check",
            Self::Observe => "observe",
            Self::Change => "change",
            Self::Administer => "administer",
        }
    }

    /// The verb of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }
}

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// `/PACKAGE.SERVICE/METHOD`, as HTTP/2 carries it.
    pub path: &'static str,
    /// What it does.
    pub verb: Verb,
    /// What decides about a call.
    pub scope: Scope,
}

/// What decides about a call of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: every client may call it.
    Everybody,
    /// The method alone.
    Method,
    /// Each probe or event that the call is about, once that is known.
    Object,
}

impl Method {
    /// The method of a path.
    pub fn at(path: &str) -> Option<&'static Self> {
        METHODS.iter().find(|method| method.path == path)
    }

    /// Whether a call costs the daemon the judgement of a definition, or a look at code: it counts for
    /// [`super::Limit::ChecksPerSecond`].
    pub fn is_a_check(&self) -> bool {
        self.verb == Verb::Check || self.name() == "CheckAccess"
    }

    /// Whether a call makes data that a probe reads, or receives it: then conditions on these data apply.
    pub const fn is_about_data(&self) -> bool {
        !matches!(self.verb, Verb::Read)
    }

    /// Its name, without package and service.
    pub fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    /// The method of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        METHODS.iter().find(|method| method.name() == name)
    }
}

const fn by_name(path: &'static str, verb: Verb) -> Method {
    Method { path, verb, scope: Scope::Method }
}

const fn each(path: &'static str, verb: Verb) -> Method {
    Method { path, verb, scope: Scope::Object }
}

/// Every method of the API.
pub const METHODS: &[Method] = &[
    each("/kprobed.v1.AggregationService/CreateAggregation", Verb::Observe),
    each("/kprobed.v1.AggregationService/ListAggregations", Verb::Observe),
    each("/kprobed.v1.AggregationService/DeleteAggregation", Verb::Observe),
    each("/kprobed.v1.AggregationService/StreamAggregation", Verb::Observe),
    by_name("/kprobed.v1.AuditService/ReadAudit", Verb::Administer),
    each("/kprobed.v1.EventService/StreamEvents", Verb::Observe),
    each("/kprobed.v1.EventService/GetLedger", Verb::Read),
    by_name("/kprobed.v1.HostService/GetHost", Verb::Read),
    by_name("/kprobed.v1.HostService/ReadClock", Verb::Read),
    by_name("/kprobed.v1.KernelService/DescribeFunction", Verb::Check),
    by_name("/kprobed.v1.KernelService/DisassembleFunction", Verb::Check),
    by_name("/kprobed.v1.KernelService/ListFunctions", Verb::Check),
    by_name("/kprobed.v1.LeaseService/HoldProbes", Verb::Change),
    each("/kprobed.v1.ProbeService/CreateProbe", Verb::Change),
    each("/kprobed.v1.ProbeService/GetProbe", Verb::Read),
    each("/kprobed.v1.ProbeService/ListProbes", Verb::Read),
    each("/kprobed.v1.ProbeService/UpdateProbe", Verb::Change),
    each("/kprobed.v1.ProbeService/DeleteProbe", Verb::Change),
    each("/kprobed.v1.ProbeService/ApplyProbes", Verb::Change),
    by_name("/kprobed.v1.ProbeService/CheckProbe", Verb::Check),
    by_name("/kprobed.v1.ProbeService/CheckProbes", Verb::Check),
    each("/kprobed.v1.ProbeService/WatchProbes", Verb::Read),
    each("/kprobed.v1.ProbeService/ListHits", Verb::Read),
    each("/kprobed.v1.ReconcileService/ListForeignProbes", Verb::Read),
    each("/kprobed.v1.ReconcileService/AdoptProbe", Verb::Change),
    by_name("/kprobed.v1.ReconcileService/ReconcileProbes", Verb::Administer),
    // Everybody may ask who the daemon takes it for, and what it may do.
    Method { path: "/kprobed.v1.AccessService/GetCaller", verb: Verb::Read, scope: Scope::Everybody },
    Method { path: "/kprobed.v1.AccessService/CheckAccess", verb: Verb::Read, scope: Scope::Everybody },
    // Methods of gRPC itself. Health is for programs that watch the daemon and have no role.
    by_name("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Verb::Check),
];

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn every_method_of_the_api_has_a_verb() {
        let files = prost_types::FileDescriptorSet::decode(kprobed_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut described = Vec::new();
        for file in &files.file {
            for service in &file.service {
                for method in &service.method {
                    described.push(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                }
            }
        }
        assert!(described.len() > 27, "{}", described.len());
        let missing: Vec<_> = described.iter().filter(|path| Method::at(path).is_none()).collect();
        assert!(missing.is_empty(), "give these a verb in METHODS: {missing:?}");
        let gone: Vec<_> = METHODS
            .iter()
            .filter(|method| method.path.starts_with("/kprobed."))
            .filter(|method| !described.iter().any(|path| path == method.path))
            .collect();
        assert!(gone.is_empty(), "not in the API any more: {gone:?}");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = METHODS.iter().map(Method::name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| Verb::named(name).is_none()));
        assert_eq!(Method::named("GetHost"), Method::at("/kprobed.v1.HostService/GetHost"));
    }
}
