//! Filters for the kernel: of what it records, and with proofs that fields were read.
//!
//! Owns the proofs. The descriptor of a guard that shows a fault, or of a text whose pointer could not be read, keeps
//! its preset: it covers everything up to the end of the record, which is the text of the last argument
//! ([`guard::END_TEXT`]). The descriptor of a text that could not be read has the length 0, with which the pattern
//! `*` never matches: the kernel compares the end of a text only within its length
//! (kernel/trace/trace_events_filter.c: `regex_match_end`). The decoder finds the same in a record
//! ([`crate::decode`]). Never decides what is filtered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Filter;
use crate::decode::Schema;
use kprobed_host::tracefs::format::{Format, Shape};
use kprobed_lang::definition::guard;

/// What holds if and only if a field was read, by the name of the field. Fields that are always read have none, and
/// neither have those of which nothing shows it.
#[derive(Clone, Debug, Default)]
pub struct Proofs {
    proofs: BTreeMap<String, Filter>,
    /// The fields as they are shown. Absent if that is not known.
    schema: Option<Arc<Schema>>,
}

impl Proofs {
    /// The proofs for an event as the kernel describes it. Only probes have any.
    pub fn of(format: &Format) -> Self {
        let has = |name: &str| format.fields.iter().any(|field| field.name == name);
        if !has(guard::END) {
            return Self::default();
        }
        let own = format.fields.iter().filter(|field| {
            let is_head = matches!(field.name.as_str(), "__probe_ip" | "__probe_func" | "__probe_ret_ip");
            !is_head && !field.name.starts_with(guard::PREFIX)
        });
        let proof = |(index, name, shape): (usize, &str, Shape)| {
            let (guard, end) = (guard::companion_name(index), guard::END_TEXT);
            let text = match shape {
                Shape::DataLoc => format!("{name} ~ \"*\" && !({name} ~ \"*{end}\")"),
                Shape::Scalar { .. } | Shape::Array { .. } if has(&guard) => {
                    format!("!({guard} ~ \"*{end}\")")
                }
                _ => return None,
            };
            Some((name.to_owned(), Filter::parse(&text).ok()?))
        };
        let all = own.enumerate().map(|(index, field)| (index, field.name.as_str(), field.shape));
        Self { proofs: all.filter_map(proof).collect(), schema: None }
    }

    /// With what is shown of the fields, which filters are about.
    #[must_use]
    pub fn of_shown(self, schema: Option<&Arc<Schema>>) -> Self {
        Self { schema: schema.cloned(), ..self }
    }

    /// What holds if and only if all of these fields were read. Absent if they need no proof.
    pub fn of_fields<'a, I: IntoIterator<Item = &'a str>>(&self, names: I) -> Option<String> {
        let mut proofs: Vec<_> =
            names.into_iter().filter_map(|name| self.proofs.get(name)).map(ToString::to_string).collect();
        proofs.dedup();
        (!proofs.is_empty()).then(|| proofs.join(" && "))
    }

    /// A filter that holds only where the fields that decide were read.
    pub fn certain(&self, filter: &str) -> String {
        self.with(
            filter,
            |parsed| parsed.certain(&|name| self.proofs.get(name).cloned()),
            |all| format!("({filter}) && {all}"),
        )
    }

    /// What was written, of a filter with proofs as the kernel has it. Any other filter stays as it is.
    pub fn written(&self, kernel: &str) -> String {
        let written = Filter::parse(kernel).ok().and_then(|filter| filter.without(self.proofs.values()));
        // What is turned round for the kernel is turned back in the same way.
        let written = written.map(|filter| self.recorded(&filter).unwrap_or(filter));
        let written = written.map(|filter| filter.to_string()).filter(|text| self.certain(text) == kernel);
        written.unwrap_or_else(|| kernel.to_owned())
    }

    /// A filter that also holds where a field that decides could not be read.
    pub fn possible(&self, filter: &str) -> String {
        self.with(
            filter,
            |parsed| parsed.possible(&|name| self.proofs.get(name).cloned()),
            |all| format!("{filter} || !({all})"),
        )
    }

    /// A filter that names no field with a proof stays as it is. Of one that only the kernel can parse, each field
    /// could decide.
    fn with(
        &self,
        filter: &str,
        parsed: impl FnOnce(&Filter) -> Filter,
        unparsed: impl FnOnce(&str) -> String,
    ) -> String {
        let mut is_concerned = false;
        match Filter::parse(filter) {
            Ok(known) => {
                let recorded = self.recorded(&known);
                is_concerned |= recorded.is_some();
                let known = recorded.unwrap_or(known);
                known.fields(&mut |name, _span| is_concerned |= self.proofs.contains_key(name));
                if is_concerned { parsed(&known).to_string() } else { filter.to_owned() }
            }
            Err(_) if filter.trim().is_empty() => filter.to_owned(),
            Err(_) => match self.of_fields(self.proofs.keys().map(String::as_str)) {
                Some(all) => unparsed(&all),
                None => filter.to_owned(),
            },
        }
    }
}

impl Proofs {
    /// The filter over what the kernel records, if it is another one. What only the daemon can compare stays: it was
    /// refused before.
    fn recorded(&self, filter: &Filter) -> Option<Filter> {
        let unknown = Schema { fields: Vec::new(), is_return: false };
        filter.for_kernel(self.schema.as_deref().unwrap_or(&unknown)).ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(fields: &[&str]) -> Format {
        let common = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
                      \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
                      \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
                      \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";
        let fields: Vec<_> = fields
            .iter()
            .enumerate()
            .map(|(index, field)| {
                let (at, size) = (8 + 8 * index, if field.starts_with("__data_loc") { 4 } else { 8 });
                format!("\tfield:{field};\toffset:{at};\tsize:{size};\tsigned:0;\n")
            })
            .collect();
        let fields = fields.concat();
        let text =
            format!("name: e\nID: 1500\nformat:\n{common}{fields}\nprint fmt: \"\", REC->__probe_ip\n");
        Format::parse(&text).unwrap()
    }

    #[test]
    fn what_was_read_is_proven_by_its_companion() {
        let proofs = Proofs::of(&format(&[
            "unsigned long __probe_ip",
            "u64 fd",
            "u64 mode",
            "__data_loc char[] path",
            "__data_loc char[] __kpd_g1",
            "__data_loc char[] __kpd_end",
        ]));
        let mode = "!__kpd_g1 ~ \"*\u{1}\"";
        let path = "path ~ \"*\" && !path ~ \"*\u{1}\"";
        assert_eq!(proofs.of_fields(["fd"]), None);
        assert_eq!(proofs.of_fields(["mode", "path"]), Some(format!("{mode} && {path}")));
        assert_eq!(proofs.certain("fd == 1"), "fd == 1");
        assert_eq!(proofs.certain(""), "");
        assert_eq!(proofs.certain("mode == 0"), format!("mode == 0 && {mode}"));
        assert_eq!(proofs.possible("mode == 0"), "mode == 0 || __kpd_g1 ~ \"*\u{1}\"");
        assert_eq!(proofs.certain("path != \"x\""), format!("path != \"x\" && {path}"));
        for written in ["mode == 0", "path != \"x\" && fd == 1", "!(mode == 0 && fd == 1) || path ~ \"a*\""] {
            assert_eq!(proofs.written(&proofs.certain(written)), written);
        }
        assert_eq!(proofs.written("mode == 0"), "mode == 0", "another program wrote it");
        // Only the kernel could read this one.
        assert_eq!(proofs.certain("mode =="), format!("(mode ==) && {mode} && {path}"));
    }

    /// What the kernel has is shown as it was written.
    #[test]
    fn numbers_are_compared_as_they_are_shown() {
        use crate::decode::{FieldKind, FieldSchema, Notation};
        let field = |name: &str, notation| FieldSchema {
            notation,
            ..FieldSchema::new(name, FieldKind::Unsigned { bytes: 2 })
        };
        let fields = vec![field("port", Notation::NetworkOrder), field("mode", Notation::Octal)];
        let schema = Arc::new(Schema { fields, is_return: false });
        let format = format(&[
            "unsigned long __probe_ip",
            "u16 port",
            "u16 mode",
            "__data_loc char[] __kpd_g0",
            "__data_loc char[] __kpd_end",
        ]);
        let proofs = Proofs::of(&format).of_shown(Some(&schema));
        let port = "!__kpd_g0 ~ \"*\u{1}\"";
        assert_eq!(proofs.certain("port == 443"), format!("port == 47873 && {port}"));
        assert_eq!(proofs.certain("mode == 0644"), "mode == 0644");
        for written in ["port == 443", "port != 443 && mode == 0644"] {
            assert_eq!(proofs.written(&proofs.certain(written)), written);
        }
    }

    #[test]
    fn events_without_companions_have_no_proofs() {
        let proofs = Proofs::of(&format(&["unsigned long __probe_ip", "u64 mode", "__data_loc char[] path"]));
        assert_eq!(proofs.certain("mode == 0 && path == \"x\""), "mode == 0 && path == \"x\"");
    }
}
