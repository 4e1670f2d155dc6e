//! Contrast of one definition between kernels: hosts that accept it and record different things.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;

use kprobed_client::api::{CheckProbeResponse, CheckedMeaning, CheckedValue};
use kprobed_client::fleet::names;
use kprobed_document::json::json as message;
use serde_json::{Value, json};

use super::Output;
use super::data::{counted, grouped};

/// What a host said about a definition that it would take under a free name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judged {
    definition: String,
    meaning: CheckedMeaning,
}

/// A definition that is not the same everywhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contrast {
    definition: String,
    /// `differs`: it records other values; `unknown`: it is not known; `same`: only the rest of the
    /// prototype is another one.
    records: &'static str,
    groups: Vec<Group>,
    /// What to write instead, if that is known.
    hint: Option<String>,
}

/// Hosts on which it is the same.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    kernels: Vec<String>,
    hosts: Vec<String>,
    meaning: CheckedMeaning,
}

impl Contrast {
    /// Whether it is known to record the same on all hosts.
    pub(crate) fn is_harmless(&self) -> bool {
        self.records == "same"
    }

    /// Finds definitions that are not the same on hosts: by their names, with their kernels and
    /// with what they said.
    pub(crate) fn find(hosts: &[(String, String, Vec<Judged>)]) -> Vec<Self> {
        let judged =
            hosts.iter().flat_map(|(host, kernel, judged)| judged.iter().map(move |one| (host, kernel, one)));
        let definitions = grouped(judged, |(.., one)| one.definition.as_str());
        let contrasts = definitions.into_iter().filter_map(|(definition, judged)| {
            let alike = grouped(judged, |(.., one)| &one.meaning);
            let groups = alike.into_iter().map(|(meaning, judged)| {
                let mut hosts: Vec<_> = judged.iter().map(|(host, ..)| (*host).clone()).collect();
                hosts.sort();
                let kernels: BTreeSet<_> = judged.into_iter().map(|(_, kernel, _)| kernel.clone()).collect();
                Group { kernels: kernels.into_iter().collect(), hosts, meaning: meaning.clone() }
            });
            Self::of(definition, groups.collect())
        });
        contrasts.collect()
    }

    fn of(definition: &str, mut groups: Vec<Group>) -> Option<Self> {
        groups.sort_by(|a, b| a.kernels.cmp(&b.kernels).then_with(|| a.hosts.cmp(&b.hosts)));
        let first = groups.first()?;
        let is_unknown = |group: &Group| group.meaning.values.iter().any(|value| value.meaning.is_empty());
        let recorded = |group: &Group| {
            let values = group.meaning.values.iter();
            let values: Vec<_> =
                values.map(|value| (value.argument.clone(), value.meaning.clone())).collect();
            (values, group.meaning.code.clone())
        };
        let differs = groups.iter().any(|group| recorded(group) != recorded(first));
        // Memory at a pointer without a type is comparable on the same kernel only.
        let kernels = groups.iter().flat_map(|group| &group.kernels);
        let several = kernels.clone().any(|kernel| Some(kernel) != kernels.clone().next());
        let records = if differs {
            "differs"
        } else if several && groups.iter().any(is_unknown) {
            "unknown"
        } else if groups.len() > 1 {
            "same"
        } else {
            return None;
        };
        let hint = differs.then(|| hint(&groups)).flatten();
        Some(Self { definition: definition.to_owned(), records, groups, hint })
    }

    fn json(&self) -> io::Result<Value> {
        let Self { definition, records, groups, hint } = self;
        let groups = groups.iter().map(|Group { kernels, hosts, meaning }| {
            Ok(json!({ "kernels": kernels, "hosts": hosts, "meaning": message(meaning)? }))
        });
        let groups = groups.collect::<io::Result<Vec<_>>>()?;
        let contrast =
            json!({ "definition": definition, "records": records, "groups": groups, "hint": hint });
        Ok(json!({ "contrast": contrast }))
    }

    fn text(&self) -> String {
        let what = match self.records {
            "differs" => "is taken by all of these kernels, and does not record the same on them",
            "unknown" => {
                "is taken by all of these kernels, and nothing tells whether it records the same on them"
            }
            _ => "records the same on all of these kernels; the function has another prototype",
        };
        let mut text = format!("`{}` {what}:\n", self.definition);
        for group in &self.groups {
            let count = counted(group.hosts.len(), "host");
            let names = names::fold(group.hosts.iter().map(String::as_str));
            let CheckedMeaning { prototype, values, code } = &group.meaning;
            let prototype = if prototype.is_empty() { "no prototype is known" } else { prototype };
            writeln!(text, "  {} ({names}, {count}): {prototype}", group.kernels.join(", ")).ok();
            for CheckedValue { argument, written, meaning, .. } in values {
                let meaning = if meaning.is_empty() { "not known" } else { meaning };
                writeln!(text, "    {argument}={written}: {meaning}").ok();
            }
            if !code.is_empty() {
                writeln!(text, "    code: {code}").ok();
            }
        }
        text
    }
}

/// A parameter that every kernel has under one name can be written by that name, wherever it is
/// passed. The name is taken from the first kernel that the definition means a parameter on, which
/// need not be what its writer meant: so all are named.
fn hint(groups: &[Group]) -> Option<String> {
    let mut offers = Vec::new();
    for Group { kernels, meaning, .. } in groups {
        for value in &meaning.values {
            let is_everywhere =
                groups.iter().all(|other| has_word(&other.meaning.prototype, &value.parameter));
            let offer = format!(
                "`{}={}` records on all of them what `{}` does on {}",
                value.argument,
                value.parameter,
                value.written,
                kernels.join(", ")
            );
            if !value.parameter.is_empty() && is_everywhere {
                offers.push(offer);
            }
        }
    }
    (!offers.is_empty()).then(|| offers.join("; "))
}

/// Whether a prototype has a parameter of this name: as a word before a comma, a bracket or its
/// end.
fn has_word(prototype: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    prototype.match_indices(name).any(|(at, _)| {
        let (before, after) = (&prototype[..at], &prototype[at + name.len()..]);
        !before.ends_with(is_part) && after.trim_start().starts_with([',', ')', '['])
    })
}

impl Output {
    /// Keeps what a verdict says about a definition, to compare it with that of other hosts.
    pub(crate) fn remember(&mut self, definition: &str, answer: &CheckProbeResponse) {
        if let (true, Some(meaning)) = (self.is_keeping(), &answer.meaning) {
            self.judged.push(Judged { definition: definition.to_owned(), meaning: meaning.clone() });
        }
    }

    /// Prints what is not the same on all hosts, as records for programs.
    pub(super) fn contrast_records(&mut self, contrasts: &[Contrast]) -> io::Result<()> {
        for contrast in contrasts {
            self.structured_stream(&contrast.json()?)?;
        }
        Ok(())
    }

    /// The same for people.
    pub(super) fn contrast_warnings(&mut self, contrasts: &[Contrast]) {
        for contrast in contrasts {
            let text = contrast.text();
            let mark = if contrast.is_harmless() {
                self.error_style.note("note:")
            } else {
                self.error_style.warning("warning:")
            };
            let mut message = format!("{mark} {text}");
            self.push_hints(&mut message, contrast.hint.as_slice());
            self.message(&message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str =
        "int vfs_unlink(struct user_namespace *mnt_userns, struct inode *dir, struct dentry *dentry)";
    const NEW: &str = "int vfs_unlink(struct mnt_idmap *idmap, struct inode *dir, struct dentry *dentry)";

    fn judged(
        host: &str,
        kernel: &str,
        prototype: &str,
        meaning: &str,
        parameter: &str,
    ) -> (String, String, Vec<Judged>) {
        let value = CheckedValue {
            argument: "d".to_owned(),
            written: "%si".to_owned(),
            meaning: meaning.to_owned(),
            parameter: parameter.to_owned(),
        };
        let meaning =
            CheckedMeaning { prototype: prototype.to_owned(), values: vec![value], code: String::new() };
        (
            host.to_owned(),
            kernel.to_owned(),
            vec![Judged { definition: "p vfs_unlink d=%si".to_owned(), meaning }],
        )
    }

    #[test]
    fn hosts_that_record_the_same_are_one_group() {
        let dir = "parameter dir (struct inode *)";
        let same = [judged("a1", "6.1", OLD, dir, "dir"), judged("a2", "6.1", OLD, dir, "dir")];
        assert_eq!(Contrast::find(&same), []);
        let prototype = [&same[..], &[judged("b1", "6.12", NEW, dir, "dir")]].concat();
        let found = Contrast::find(&prototype);
        assert!(found[0].is_harmless() && found[0].groups.len() == 2 && found[0].hint.is_none(), "{found:?}");
        let dentry = "parameter dentry (struct dentry *)";
        let other = [&same[..], &[judged("b1", "6.12", NEW, dentry, "dentry")]].concat();
        let found = Contrast::find(&other);
        assert!(!found[0].is_harmless(), "{found:?}");
        assert_eq!(
            found[0].text(),
            format!(
                "`p vfs_unlink d=%si` is taken by all of these kernels, and does not record the same on them:\n  \
                 6.1 (a[1-2], 2 hosts): {OLD}\n    d=%si: {dir}\n  6.12 (b1, 1 host): {NEW}\n    d=%si: {dentry}\n"
            )
        );
        let hint = found[0].hint.clone().unwrap();
        assert!(
            hint.starts_with("`d=dir` records on all of them what `%si` does on 6.1; `d=dentry`"),
            "{hint}"
        );
    }

    #[test]
    fn what_nothing_tells_is_not_taken_for_the_same() {
        let unknown = [judged("a", "6.1", OLD, "", ""), judged("b", "6.12", OLD, "", "")];
        assert_eq!(Contrast::find(&unknown)[0].records, "unknown");
        let one_kernel = [judged("a", "6.1", OLD, "", ""), judged("b", "6.1", OLD, "", "")];
        assert_eq!(Contrast::find(&one_kernel), []);
        // A name that only one kernel has is not offered.
        let gone = [
            judged("a", "6.1", OLD, "parameter mnt_userns (x)", "mnt_userns"),
            judged("b", "6.12", NEW, "y", ""),
        ];
        assert_eq!(Contrast::find(&gone)[0].hint, None);
        assert!(!has_word("int f(int direct)", "dir") && has_word("int f(struct x *dir)", "dir"));
    }
}
