//! Decisions over whole role files.

use kprobed_lang::definition::{Argument, Definition, Place, parse_any};
use kprobed_lang::model::{Labels, ProbeName};
use kprobed_lang::samples;
use proptest::prelude::*;

use crate::{Decision, Known, Method, Object, Principal, Question, Read, Reads, Roles};

#[path = "../../fixtures/strategies.rs"]
mod strategies;

const FILE: &str = r#"
[[role]]
name = "storage"
principals = ["user:alice", "group:storage", "spiffe://prod/ns/storage/*"]

[[role.allow]]
methods = ["read", "check"]

[[role.allow]]
methods = ["change", "observe"]
functions = ["vfs_*", "ext4_*"]
modules = ["vmlinux", "ext4"]
groups = ["storage"]
labels = "team=storage"
reads = ["registers", "strings", "kernel-memory", "user-memory"]

[[role.deny]]
functions = ["*_key*"]

[[role]]
name = "no-stacks"
principals = ["group:storage"]

[[role.deny]]
methods = ["change"]
reads = ["stack", "stack-traces"]
"#;

fn roles() -> Roles {
    Roles::parse(FILE).unwrap()
}

fn user(uid: u32, name: &str, group: &str) -> Principal {
    let names = [format!("uid:{uid}"), format!("user:{name}"), format!("group:{group}")];
    Principal::of_names(&names).unwrap()
}

fn alice() -> Principal {
    user(1000, "alice", "alice")
}

fn reads_of(text: &str) -> Reads {
    match parse_any(text, &samples::v6_12()).result.unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
    {
        Definition::Probe(probe) => Reads::of(&probe),
        Definition::Delete(_) => panic!("{text}"),
    }
}

struct Probe {
    name: ProbeName,
    labels: Labels,
    functions: Vec<String>,
    module: &'static str,
    reads: Reads,
}

impl Probe {
    fn on(function: &str) -> Self {
        Self {
            name: "storage/x".parse().unwrap(),
            labels: Labels::new([("team".to_owned(), "storage".to_owned())]).unwrap(),
            functions: vec![function.to_owned()],
            module: "vmlinux",
            reads: Reads::NONE.with(Read::Registers),
        }
    }

    fn object(&self) -> Object<'_> {
        Object {
            name: &self.name,
            labels: &self.labels,
            functions: &self.functions,
            module: Some(self.module),
            reads: self.reads,
            known: Known::All,
        }
    }

    fn ask(&self, principal: &Principal, method: &str) -> Decision {
        roles().decide(question(principal, method, Some(&self.object())))
    }
}

fn question<'a>(principal: &'a Principal, method: &str, object: Option<&'a Object<'a>>) -> Question<'a> {
    Question { principal, method: Method::named(method).unwrap(), object }
}

#[test]
fn a_rule_allows_what_meets_all_of_its_conditions() {
    let good = || Probe::on("vfs_read");
    assert_eq!(good().ask(&alice(), "CreateProbe").to_string(), "role `storage`, line 9 allows it");
    let refusals = [
        (Probe { name: "other/x".parse().unwrap(), ..good() }, "the group"),
        (Probe { labels: Labels::default(), ..good() }, "the labels"),
        (Probe { module: "xfs", ..good() }, "the module"),
        (Probe::on("tcp_connect"), "the function"),
        (Probe { reads: reads_of("p f @jiffies $stack0 %di"), ..good() }, "to read stack, raw-addresses"),
    ];
    for (probe, why) in refusals {
        let decision = probe.ask(&alice(), "CreateProbe");
        assert_eq!(decision.to_string(), format!("role `storage`, line 9 does not allow {why}"));
        assert!(!decision.is_allowed());
    }
}

#[test]
fn a_rule_that_forbids_has_the_last_word() {
    let mut probe = Probe::on("vfs_key_read");
    assert_eq!(probe.ask(&alice(), "CreateProbe").to_string(), "role `storage`, line 17 forbids it");
    // An alias is the same code, whichever name the definition has.
    probe.functions = vec!["vfs_read".to_owned(), "x_keyring".to_owned()];
    assert!(matches!(probe.ask(&alice(), "CreateProbe"), Decision::Forbidden(_)));
    // The role that forbids need not be the one that allows.
    let bob = user(1001, "bob", "storage");
    let probe = Probe { reads: reads_of("p f $stack0"), ..Probe::on("vfs_read") };
    assert_eq!(probe.ask(&bob, "CreateProbe").to_string(), "role `no-stacks`, line 24 forbids it");
    assert!(Probe::on("vfs_read").ask(&bob, "CreateProbe").is_allowed());
}

/// A place in a module that is not loaded can lie in any function of it, and its function can have other names.
#[test]
fn a_function_that_is_not_known_meets_every_rule_that_forbids_functions() {
    let decide = |deny: &str, object: &Object<'_>| {
        let roles = Roles::parse(&format!(
            "[[role]]\nname = \"a\"\nprincipals = [\"user:alice\"]\n[[role.allow]]\nmethods = [\"all\"]\n\
             reads = [\"all\"]\n[[role.deny]]\n{deny}\n"
        ));
        roles.unwrap().decide(question(&alice(), "CreateProbe", Some(object))).is_allowed()
    };
    let probe = Probe { module: "loop", ..Probe::on("loop_configure") };
    let all = probe.object();
    let named = Object { known: Known::Part, ..all.clone() };
    let beyond = Object { functions: &[], ..named.clone() };
    let nowhere = Object { module: None, ..beyond.clone() };
    for (deny, of_all, of_named, of_beyond, of_nowhere) in [
        ("functions = [\"loop_*\"]", false, false, false, false),
        ("functions = [\"other_*\"]", true, false, false, false),
        ("functions = [\"other_*\"]\nmodules = [\"xfs\"]", true, true, true, false),
        ("functions = [\"other_*\"]\ngroups = [\"net\"]", true, true, true, true),
        ("modules = [\"xfs\"]", true, true, true, false),
        ("reads = [\"stack\"]", true, true, true, true),
    ] {
        for (object, expected) in
            [(&all, of_all), (&named, of_named), (&beyond, of_beyond), (&nowhere, of_nowhere)]
        {
            assert_eq!(decide(deny, object), expected, "{deny}: {object:?}");
        }
    }
}

/// Before a definition is judged, its name and its labels are known, and nothing else.
#[test]
fn a_text_is_refused_by_rules_about_groups_and_labels_alone() {
    let ask = |name: &str, team: &str| {
        let labels = Labels::new([("team".to_owned(), team.to_owned())]).unwrap();
        let probe = Probe { name: name.parse().unwrap(), labels, ..Probe::on("x_key") };
        let text =
            Object { functions: &[], module: None, reads: Reads::ALL, known: Known::Text, ..probe.object() };
        roles().decide(question(&alice(), "CreateProbe", Some(&text)))
    };
    assert!(ask("storage/x", "storage").is_allowed());
    assert_eq!(ask("net/x", "storage").to_string(), "role `storage`, line 9 does not allow the group");
    assert_eq!(ask("storage/x", "net").to_string(), "role `storage`, line 9 does not allow the labels");
    let roles = Roles::parse(
        "[[role]]\nname = \"a\"\nprincipals = [\"user:alice\"]\n[[role.allow]]\nmethods = [\"all\"]\n\
         reads = [\"all\"]\n[[role.deny]]\ngroups = [\"storage\"]\nlabels = \"team=storage\"\n",
    );
    let probe = Probe::on("vfs_read");
    let text = Object { known: Known::Text, ..probe.object() };
    assert!(!roles.unwrap().decide(question(&alice(), "CreateProbe", Some(&text))).is_allowed());
}

#[test]
fn a_refusal_can_leave_out_what_is_read() {
    let decision =
        Probe { reads: reads_of("p f @jiffies"), ..Probe::on("vfs_read") }.ask(&alice(), "StreamEvents");
    assert_eq!(decision.to_string(), "role `storage`, line 9 does not allow to read raw-addresses");
    let left_out = decision.without_reads();
    assert_eq!(left_out.to_string(), "role `storage`, line 9 does not allow what it reads");
    let other = Probe::on("tcp_connect").ask(&alice(), "StreamEvents");
    assert_eq!(other.clone().without_reads(), other);
}

#[test]
fn looking_has_conditions_on_places_and_none_on_data() {
    let roles = Roles::parse(
        "[[role]]\nname = \"a\"\nprincipals = [\"user:alice\"]\n[[role.allow]]\n\
         methods = [\"read\", \"change\"]\ngroups = [\"storage\"]\nreads = []\n\
         [[role.deny]]\nfunctions = [\"*_key\"]\n[[role.deny]]\nreads = [\"registers\"]\n\
         [[role]]\nname = \"b\"\nprincipals = [\"user:bob\"]\n[[role.allow]]\nmethods = [\"all\"]\nreads = []\n\
         [[role.deny]]\nreads = [\"stack\"]\n",
    )
    .unwrap();
    let may = |who: &Principal, method: &str, probe: &Probe| {
        roles.decide(question(who, method, Some(&probe.object()))).is_allowed()
    };
    let bob = user(1001, "bob", "bob");
    let good = || Probe::on("vfs_read");
    let elsewhere = Probe { name: "other/x".parse().unwrap(), ..good() };
    for method in ["ListProbes", "GetProbe", "WatchProbes", "GetLedger"] {
        assert!(may(&alice(), method, &good()) && may(&bob, method, &elsewhere), "{method}");
        assert!(
            !may(&alice(), method, &elsewhere) && !may(&alice(), method, &Probe::on("a_key")),
            "{method}"
        );
        let method = Method::named(method).unwrap();
        assert!(roles.is_unconditional(&bob, method) && !roles.is_unconditional(&alice(), method));
    }
    assert!(!may(&alice(), "UpdateProbe", &good()) && !may(&bob, "UpdateProbe", &good()));
    assert!(!roles.is_unconditional(&bob, Method::named("UpdateProbe").unwrap()));
    // What is about no probe needs no condition to be met.
    assert!(roles.decide(question(&alice(), "GetHost", None)).is_allowed());
}

#[test]
fn nobody_may_do_what_no_rule_allows() {
    let roles = roles();
    let ask = |principal: &Principal, method: &str| roles.decide(question(principal, method, None));
    let carol = user(1002, "carol", "carol");
    assert_eq!(ask(&carol, "GetHost").to_string(), "it has no role");
    assert_eq!(ask(&alice(), "ReconcileProbes").to_string(), "none of its roles allows the method");
    assert!(ask(&alice(), "GetHost").is_allowed());
    // For some probes.
    assert!(ask(&alice(), "CreateProbe").is_allowed());
    let certificate = |uri: &str| Principal::Certificate { uris: vec![uri.to_owned()], dns: Vec::new() };
    assert!(ask(&certificate("spiffe://prod/ns/storage/sa/x"), "GetHost").is_allowed());
    assert!(!ask(&certificate("spiffe://test/ns/storage/sa/x"), "GetHost").is_allowed());
    assert!(!ask(&Principal::Loopback, "GetHost").is_allowed());
    assert!(ask(&Principal::Daemon, "CreateProbe").is_allowed());
}

#[test]
fn root_and_the_group_of_the_socket_are_administrators_without_a_file() {
    let roles = Roles::built_in("kprobed");
    let ask = |principal: &Principal| roles.decide(question(principal, "CreateProbe", None));
    let root = user(0, "root", "root");
    assert_eq!(ask(&root).to_string(), "built-in role `administrators` allows it");
    assert!(ask(&user(1003, "dan", "kprobed")).is_allowed());
    assert!(!ask(&user(1003, "dan", "users")).is_allowed());
    let somebody = Principal::Certificate { uris: Vec::new(), dns: vec!["ops.example.com".to_owned()] };
    assert!(!ask(&somebody).is_allowed() && !ask(&Principal::Loopback).is_allowed());
}

#[test]
fn addresses_are_shown_to_those_who_were_given_them() {
    let shown = |principal: &Principal, method: &str, reads: &str, deny: &str| {
        let roles = Roles::parse(&format!(
            "[[role]]\nname = \"a\"\nprincipals = [\"user:alice\"]\n[[role.allow]]\nmethods = [\"observe\", \"check\"]\n\
             groups = [\"storage\"]\nreads = [{reads}]\n{deny}"
        ));
        roles.unwrap().show_addresses(principal, Method::named(method).unwrap())
    };
    let deny = "[[role.deny]]\nmethods = [\"check\"]\nreads = [\"addresses\"]\n";
    assert!(!shown(&alice(), "StreamEvents", "\"registers\"", ""));
    assert!(shown(&alice(), "StreamEvents", "\"registers\", \"addresses\"", ""));
    assert!(shown(&alice(), "StreamEvents", "\"all\"", deny));
    assert!(!shown(&alice(), "CheckProbe", "\"all\"", deny));
    assert!(!shown(&alice(), "GetHost", "\"all\"", ""));
    assert!(!shown(&user(1002, "carol", "carol"), "StreamEvents", "\"all\"", ""));
    assert!(shown(&Principal::Daemon, "StreamEvents", "\"registers\"", ""));
}

#[test]
fn a_definition_reads_what_its_form_can_reach() {
    let cases = [
        ("p vfs_read", ""),
        ("p vfs_read $comm x=\\5", ""),
        ("p vfs_read %di $stack", "registers"),
        ("p vfs_read $stack3", "stack"),
        ("p vfs_read +8(%di):u32", "registers, kernel-memory"),
        ("p vfs_read +u0(%si):u32", "registers, user-memory"),
        // The kernel decides by the address whether it is user memory.
        ("p vfs_read +0(%si):string", "registers, kernel-memory, user-memory, strings"),
        ("p vfs_read +0(%si):ustring", "registers, kernel-memory, user-memory, strings"),
        ("p vfs_read @jiffies", "raw-addresses"),
        ("p vfs_read @0xffffffff81000000", "raw-addresses"),
        ("p vfs_read +0(\\0xffffffff81000000):u64", "kernel-memory, raw-addresses"),
        ("p vfs_read +0(+8(\\1)):u64", "kernel-memory, raw-addresses"),
        // The location says which symbol is there.
        ("p 0xffffffff81000000", "raw-addresses, addresses"),
        // A number is a pointer for the kernel if its type is a text.
        ("p vfs_read \\0xffffffff81000000:string", "kernel-memory, user-memory, strings, raw-addresses"),
        ("p vfs_read \\0xffffffff81000000:string[2]", "kernel-memory, user-memory, strings, raw-addresses"),
        ("p vfs_read \\0x7ffff000:ustring", "user-memory, strings, raw-addresses"),
        ("p vfs_read \\0xffffffff81000000:%pd", "kernel-memory, user-memory, strings, raw-addresses"),
        ("p vfs_read \\0xffffffff81000000:%pD", "kernel-memory, user-memory, strings, raw-addresses"),
        // A pointer that is 0 leaves the offset alone.
        ("p vfs_read -0x7f000000(%di):u64", "registers, kernel-memory, raw-addresses"),
        ("p vfs_read +u0x400000(%di):u64", "registers, user-memory, raw-addresses"),
        ("p vfs_read +0xfffff(%di):u64", "registers, kernel-memory"),
        // Which number has which name says where the kernel is.
        ("p vfs_read \\0xffffffff81000000:symbol", "addresses"),
        ("p vfs_read %si:symstr", "registers, addresses"),
        ("r vfs_read $retval", "registers"),
    ];
    for (text, expected) in cases {
        assert_eq!(reads_of(text).to_string(), expected, "{text}");
    }
}

#[test]
fn a_principal_is_its_names() {
    for names in [
        &["user:alice", "uid:1000", "gid:100", "group:a", "group:b", "cgroup:/x.slice"][..],
        &["uri:spiffe://prod/a", "dns:a.example"],
        &["loopback"],
    ] {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(Principal::of_names(&names).unwrap().names(), names);
    }
    let refused = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Principal::of_names(&names).unwrap_err().to_string()
    };
    assert_eq!(refused(&["alice"]), "`alice` does not say what kind of principal it is");
    assert_eq!(refused(&["uid:1", "dns:a"]), "one principal is a user, or a certificate, or `loopback`");
    assert_eq!(refused(&["mac:1"]), "`mac` is not a kind of principal");
}

#[test]
fn mistakes_have_a_place_and_a_remedy() {
    let text = "[[role]]\nname = \"a\"\nprincipals = [\"alice\", \"uid:x\"]\n[[role.allow]]\nmethods = [\"chnage\"]\n\
        [[role.allow]]\nmethods = [\"change\"]\n[[role.deny]]\nreads = [\"secrets\"]\nlabels = \"a=(\"\n\
        [[role]]\nname = \"a\"\nprincipals = []\n";
    let found = Roles::parse(text).unwrap_err();
    let shown: Vec<_> = found.iter().map(|one| (one.line, one.column, one.message.as_str())).collect();
    assert_eq!(
        shown.get(..6).unwrap(),
        [
            (3, 15, "`alice` does not say what kind of principal it is"),
            (3, 24, "`x` is not a number from 0 to 4294967295"),
            (5, 12, "`chnage` is neither a verb nor a method of the API"),
            (6, 1, "a rule that allows `change` or `observe` must say what the probes may read"),
            (10, 10, "expected a comma"),
            (9, 10, "`secrets` is not a class of data"),
        ]
    );
    assert!(found.iter().all(|one| !one.hint.is_empty() || one.line == 10));
    let unknown = Roles::parse("[[role]]\nname = \"a\"\nprincipals = [\"uid:0\"]\nalow = 1\n").unwrap_err();
    assert_eq!(unknown.first().map(|one| (one.line, one.column)), Some((4, 1)));
}

/// What the kernel would read for an argument, by its text: the same grammar, walked from the outside as
/// kernel/trace/trace_probe.c:parse_probe_arg does it.
fn read_by_the_kernel(argument: &str) -> Reads {
    let (expression, ty) = argument.split_once(':').unwrap_or((argument, ""));
    if expression.eq_ignore_ascii_case("$comm") || expression.starts_with("\\\"") {
        return Reads::NONE;
    }
    let (value, is_known) = value_of(expression);
    // As a pointer, a value that the definition's writer knows is an address of the writer's choice.
    let behind = if is_known { value.with(Read::RawAddresses) } else { value };
    match ty.split('[').next().unwrap_or_default() {
        "string" | "%pd" | "%pD" => {
            behind.with(Read::Strings).with(Read::KernelMemory).with(Read::UserMemory)
        }
        "ustring" => behind.with(Read::Strings).with(Read::UserMemory),
        "symbol" | "symstr" => value.with(Read::Addresses),
        _ => value,
    }
}

/// What the kernel reads for the value of an expression, and whether it is a number in the definition.
fn value_of(expression: &str) -> (Reads, bool) {
    let of = |read| (Reads::NONE.with(read), false);
    match expression.as_bytes().first() {
        Some(b'\\') => (Reads::NONE, true),
        Some(b'@') => of(Read::RawAddresses),
        Some(b'+' | b'-') => {
            let (offset, inner) = expression.split_once('(').unwrap();
            let (inner, is_known) = value_of(inner.strip_suffix(')').unwrap());
            let (user, digits) = (offset.contains('u'), offset.trim_start_matches(['+', '-', 'u']));
            let distance = match digits.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                None => digits.parse().unwrap(),
            };
            let read = inner.with(if user { Read::UserMemory } else { Read::KernelMemory });
            let is_chosen = is_known || distance >= 1 << 20;
            (if is_chosen { read.with(Read::RawAddresses) } else { read }, false)
        }
        Some(b'$') if expression.starts_with("$stack") && expression.len() > "$stack".len() => {
            of(Read::Stack)
        }
        _ if expression.contains("->") => (Reads::NONE.with(Read::Registers).with(Read::KernelMemory), false),
        _ => of(Read::Registers),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The classes of a definition are what the kernel reads for it: nothing less, so that no rule is passed by, and
    /// nothing more.
    #[test]
    fn reads_are_those_of_the_kernel(definition in strategies::definitions()) {
        let mut expected = Reads::NONE;
        for argument in &definition.args {
            let bare = Argument { name: None, ..argument.clone() };
            expected = expected.and(read_by_the_kernel(&bare.to_string()));
        }
        if matches!(definition.place, Place::Address { .. }) {
            expected = expected.with(Read::RawAddresses).with(Read::Addresses);
        }
        prop_assert_eq!(Reads::of(&definition).to_string(), expected.to_string(), "{}", definition.render("g", "e"));
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        drop(Roles::parse(&text));
    }

    /// A rule that forbids more never allows more.
    #[test]
    fn forbidding_never_allows(function in "[a-c]{1,3}", forbidden in "[a-c*]{1,3}", bits in 0u16..=511) {
        let reads = Read::ALL.into_iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).fold(Reads::NONE, |all, (_, read)| all.with(read));
        let with = |deny: &str| Roles::parse(&format!(
            "[[role]]\nname = \"a\"\nprincipals = [\"user:alice\"]\n[[role.allow]]\nmethods = [\"all\"]\nfunctions = [\"a*\"]\nreads = [\"registers\", \"stack\"]\n{deny}"
        )).unwrap();
        let probe = Probe { reads, ..Probe::on(&function) };
        let asked = |roles: &Roles| roles.decide(question(&alice(), "CreateProbe", Some(&probe.object()))).is_allowed();
        let free = asked(&with(""));
        let bound = asked(&with(&format!("[[role.deny]]\nfunctions = [\"{forbidden}\"]\n")));
        prop_assert!(free || !bound);
        prop_assert_eq!(free, function.starts_with('a') && reads.without(Reads::NONE.with(Read::Registers).with(Read::Stack)).is_empty());
    }
}
