//! Meanings as messages: what a definition records, in words that can be compared between hosts.
//!
//! Owns these words. Never computes a meaning.

use kprobed_proto::v1;

use kprobed_verdict::meaning::{Meaning, Origin, Part, Read, Slot};

/// A meaning as a message. Absent while it is not known, because the function does not exist.
pub(super) fn checked(meaning: &Meaning) -> Option<v1::CheckedMeaning> {
    let code = meaning.code.as_ref().map(|code| {
        let (function, count, sum) = (&code.function, code.instructions, code.checksum);
        let place = code.place.map_or_else(String::new, |place| format!("+{place}"));
        format!("{function}{place}: {count} instructions, checksum {sum:08x}")
    });
    meaning.complete.then(|| v1::CheckedMeaning {
        prototype: meaning.prototype.clone().unwrap_or_default(),
        values: meaning.parts.iter().map(value).collect(),
        code: code.unwrap_or_default(),
    })
}

fn value(part: &Part) -> v1::CheckedValue {
    let origin = match &part.origin {
        Origin::Parameter { part: 0, name, ty, .. } => Some(format!("parameter {name} ({ty})")),
        Origin::Parameter { part, name, ty, .. } => Some(format!("word {part} of parameter {name} ({ty})")),
        Origin::Result { ty, .. } => Some(format!("result ({ty})")),
        Origin::Code => Some("what the code has made of it".to_owned()),
        Origin::Fixed => Some(part.written.clone()),
        Origin::Unknown { .. } => None,
    };
    let reads = part.reads.iter().map(|read| self::read(read, part.named));
    let steps: Option<Vec<String>> = std::iter::once(origin).chain(reads).collect();
    let parameter = match &part.origin {
        Origin::Parameter { part: 0, name, .. } if part.reads.is_empty() => name.clone(),
        _ => String::new(),
    };
    v1::CheckedValue {
        argument: part.argument.clone(),
        written: part.written.clone(),
        meaning: steps.map(|steps| steps.join(", ")).unwrap_or_default(),
        parameter,
    }
}

/// One step through memory. In a step by name, offsets do not matter: names resolve anew on every
/// kernel.
fn read(read: &Read, named: bool) -> Option<String> {
    match read {
        Read::Members { structure, offset, slots } => {
            let members: Vec<_> = slots.iter().map(|slot| member(slot, named)).collect();
            let place = if named { String::new() } else { format!(" from byte {offset}") };
            Some(format!("{structure}{place}: {}", members.join(" ")))
        }
        Read::Elements { ty, offset } => Some(format!("element at byte {offset} ({ty})")),
        Read::Unknown { .. } => None,
    }
}

fn member(slot: &Slot, named: bool) -> String {
    let Slot { path, bit_offset, bits, ty, .. } = slot;
    match (named, bit_offset % 8) {
        (true, _) => format!("{path} ({ty})"),
        (false, 0) => format!("{path} ({ty}, {bits} bits at byte {})", bit_offset / 8),
        (false, bit) => format!("{path} ({ty}, {bits} bits at byte {} bit {bit})", bit_offset / 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(named: bool, bit_offset: u64) -> Part {
        let origin = Origin::Parameter {
            word: 1,
            part: 0,
            name: "file".to_owned(),
            ty: "struct file *".to_owned(),
            declaration: "struct file *file".to_owned(),
        };
        let slot = Slot {
            path: "f_flags".to_owned(),
            bit_offset,
            bits: 32,
            ty: "u32".to_owned(),
            declaration: "unsigned int f_flags".to_owned(),
        };
        let offset = i32::try_from(bit_offset / 8).unwrap();
        let reads = vec![Read::Members { structure: "struct file".to_owned(), offset, slots: vec![slot] }];
        let (argument, written) = ("flags".to_owned(), "+64($arg1)".to_owned());
        Part { argument, written, named, origin, reads }
    }

    #[test]
    fn places_count_unless_names_are_written() {
        let raw = value(&part(false, 512)).meaning;
        assert_eq!(
            raw,
            "parameter file (struct file *), struct file from byte 64: f_flags (u32, 32 bits at byte 64)"
        );
        assert_ne!(raw, value(&part(false, 480)).meaning);
        assert_eq!(value(&part(true, 512)), value(&part(true, 480)));
    }

    #[test]
    fn what_is_not_known_has_no_words() {
        let mut unknown = part(false, 0);
        unknown.reads.push(Read::Unknown { why: "it is void".to_owned() });
        assert_eq!(value(&unknown).meaning, "");
        unknown.reads.clear();
        assert_eq!(value(&unknown).parameter, "file");
        unknown.origin = Origin::Unknown { why: "no types".to_owned() };
        assert_eq!((value(&unknown).meaning.as_str(), value(&unknown).parameter.as_str()), ("", ""));
    }
}
