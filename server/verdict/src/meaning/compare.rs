//! Comparison of two meanings of one definition.
//!
//! Owns the kinds of differences and their sentences. Never decides what is done about them.

use kprobed_proto::v1;

use super::code::Code;
use super::{Build, Meaning, Origin, Part, Read};

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its kind.
    pub kind: DifferenceKind,
    /// The field; empty for the place.
    pub argument: String,
    /// The difference in one sentence.
    pub message: String,
    /// The value before: a prototype, members or instructions, one per line. Empty if it is not
    /// known.
    pub before: String,
    /// The value on the other build.
    pub after: String,
}

/// Kinds of differences between two meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceKind {
    /// The function that the place is in.
    Place,
    /// The parameters or the result of the function.
    Prototype,
    /// The offsets or types of the members of a structure.
    Layout,
    /// The instructions up to the place.
    Code,
    /// Not known.
    Unknown,
}

impl DifferenceKind {
    /// Every kind.
    pub const ALL: &[Self] = &[Self::Place, Self::Prototype, Self::Layout, Self::Code, Self::Unknown];

    /// Reason code for programs.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Place => "PLACE_CHANGED",
            Self::Prototype => "PROTOTYPE_CHANGED",
            Self::Layout => "LAYOUT_CHANGED",
            Self::Code => "CODE_CHANGED",
            Self::Unknown => "MEANING_UNKNOWN",
        }
    }
}

/// What counts as a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matters {
    /// Names, types and places.
    All,
    /// Names and types. Places may differ: names resolve anew, and a ported line has other places
    /// on purpose.
    Names,
}

/// The differences between two meanings of one definition, the clearest first. None if it means the
/// same.
pub fn compare(before: &Meaning, now: &Meaning) -> Vec<Difference> {
    differences(before, now, Matters::All)
}

/// Whether a line for another build records on it what the original did: all members and parameters
/// are the same, whatever their offsets.
pub fn means_the_same_elsewhere(before: &Meaning, ported: &Meaning) -> bool {
    differences(before, ported, Matters::Names).is_empty()
}

fn differences(before: &Meaning, now: &Meaning, matters: Matters) -> Vec<Difference> {
    if !before.complete || !now.complete {
        if !before.is_raw() && !now.is_raw() {
            return Vec::new();
        }
        let side = if before.complete { "is" } else { "was" };
        let message = format!("what it reads {side} not known: the function {side} not there");
        return vec![difference(DifferenceKind::Unknown, "", message, (String::new(), String::new()))];
    }
    let of_place = of_function(before, now).or_else(|| of_code(before, now, matters));
    let mut found: Vec<_> = of_place.into_iter().collect();
    for part in &before.parts {
        let other = now.parts.iter().find(|other| other.argument == part.argument);
        let pair = Pair { before, now, part, matters: if part.named { Matters::Names } else { matters } };
        found.extend(match other {
            Some(other) => pair.difference(other),
            None => Some(pair.prototype("is not a parameter now")),
        });
    }
    found.sort_by_key(|difference| difference.kind);
    found
}

fn difference(
    kind: DifferenceKind,
    argument: &str,
    message: String,
    (before, after): (String, String),
) -> Difference {
    Difference { kind, argument: argument.to_owned(), message, before, after }
}

/// The identity of a place is the name of its function: another function can begin at the same distance,
/// or at the same address.
fn of_function(before: &Meaning, now: &Meaning) -> Option<Difference> {
    if before.is_of_same_function(now) {
        return None;
    }
    let message = format!("the address was `{}` and is `{}` now", before.location, now.location);
    Some(difference(DifferenceKind::Place, "", message, (before.location.clone(), now.location.clone())))
}

fn of_code(before: &Meaning, now: &Meaning, matters: Matters) -> Option<Difference> {
    let changed = |message: String, sides| Some(difference(DifferenceKind::Code, "", message, sides));
    match (&before.code, &now.code) {
        (None, None) => None,
        (Some(code), Some(other)) => {
            let is_same = match matters {
                Matters::All => code.is_same(other) && code.function == other.function,
                // The place was found by the surrounding instructions.
                Matters::Names => code.function == other.function,
            };
            if is_same {
                return None;
            }
            let message = match code.place {
                _ if code.function != other.function => {
                    format!("the address was in `{}` and is in `{}` now", code.function, other.function)
                }
                Some(place) => {
                    format!("the code of `{}` has changed before offset {place}, or there", code.function)
                }
                None => format!("the code of `{}` has changed, and its types are not known", code.function),
            };
            changed(message, (listing(code), listing(other)))
        }
        (Some(code), None) => changed(
            format!("`{}` was compared by its code, and cannot be now", code.function),
            (listing(code), now.location.clone()),
        ),
        (None, Some(code)) => changed(
            format!("the address was the entry of a function, and is inside of `{}` now", code.function),
            (before.location.clone(), listing(code)),
        ),
    }
}

/// Instructions, with `>` at the place.
fn listing(code: &Code) -> String {
    let width = code.window.iter().map(|line| line.offset.to_string().len()).max().unwrap_or_default() + 1;
    let line = |line: &super::Line| {
        let mark = if code.place == Some(line.offset) { '>' } else { ' ' };
        let offset = format!("+{}", line.offset);
        format!("{mark} {offset:>width$}  {}", line.text)
    };
    let lines: Vec<_> = code.window.iter().map(line).collect();
    lines.join("\n")
}

/// A value that is recorded, on both builds.
struct Pair<'a> {
    before: &'a Meaning,
    now: &'a Meaning,
    part: &'a Part,
    matters: Matters,
}

impl Pair<'_> {
    fn prototype(&self, what: &str) -> Difference {
        let shown = |meaning: &Meaning| meaning.prototype.clone().unwrap_or_default();
        let Part { argument, written, origin, .. } = self.part;
        let was =
            declaration(origin).map(|declaration| format!("was `{declaration}` and ")).unwrap_or_default();
        let message = format!("`{written}` {was}{what}");
        difference(DifferenceKind::Prototype, argument, message, (shown(self.before), shown(self.now)))
    }

    fn unknown(&self, why: &str) -> Difference {
        let Part { argument, written, .. } = self.part;
        let message = format!("what `{written}` reads cannot be compared: {why}");
        difference(DifferenceKind::Unknown, argument, message, (String::new(), String::new()))
    }

    fn difference(&self, other: &Part) -> Option<Difference> {
        self.of_origins(other).or_else(|| {
            if self.part.reads.len() != other.reads.len() {
                return Some(self.unknown("it is read in another way"));
            }
            self.part.reads.iter().zip(&other.reads).find_map(|(read, other)| self.of_reads(read, other))
        })
    }

    fn of_origins(&self, other: &Part) -> Option<Difference> {
        let now = &other.origin;
        let is_same = match (&self.part.origin, now) {
            (Origin::Unknown { why }, _) => return Some(self.unknown(why)),
            (
                Origin::Parameter { word, part, name, ty, .. },
                Origin::Parameter {
                    word: other_word, part: other_part, name: other_name, ty: other_ty, ..
                },
            ) => {
                (part, name, ty) == (other_part, other_name, other_ty)
                    && (self.matters == Matters::Names || word == other_word)
            }
            (Origin::Result { ty, .. }, Origin::Result { ty: other_ty, .. }) => ty == other_ty,
            // The code was compared already.
            (Origin::Code, Origin::Code) | (Origin::Fixed, Origin::Fixed) => true,
            (Origin::Code | Origin::Fixed, _) => {
                return Some(self.unknown("its probe point is of another kind now"));
            }
            (Origin::Parameter { .. }, Origin::Unknown { .. }) => {
                return Some(self.prototype("is not a parameter now"));
            }
            _ => return Some(self.unknown("the kernel shows no types of the function now")),
        };
        (!is_same).then(|| self.prototype(&format!("is `{}` now", declaration(now).unwrap_or_default())))
    }

    fn of_reads(&self, read: &Read, other: &Read) -> Option<Difference> {
        match (read, other) {
            (Read::Unknown { why }, _) => Some(self.unknown(why)),
            (
                Read::Members { structure, slots, .. },
                Read::Members { structure: there, slots: others, .. },
            ) => {
                let is_there = |slot: &super::Slot| {
                    others.iter().any(|other| match self.matters {
                        Matters::All => slot.is_same(other),
                        Matters::Names => slot.is_same_member(other),
                    })
                };
                // New members of a union overlap those that it had before.
                let is_old = |other: &super::Slot| slots.iter().any(|slot| other.lies_in(slot));
                let is_same = structure == there
                    && slots.iter().all(is_there)
                    && (self.matters == Matters::Names || others.iter().all(is_old));
                (!is_same).then(|| self.layout(read, other))
            }
            (Read::Elements { ty, .. }, Read::Elements { ty: other_ty, .. }) if ty == other_ty => None,
            // Also if it was known before: the memory contains something else now.
            _ => Some(self.layout(read, other)),
        }
    }

    fn layout(&self, read: &Read, other: &Read) -> Difference {
        let Part { argument, written, .. } = self.part;
        let message = format!("`{written}` read {} and reads {} now", in_words(read), in_words(other));
        difference(DifferenceKind::Layout, argument, message, (in_full(read), in_full(other)))
    }
}

fn declaration(origin: &Origin) -> Option<&str> {
    match origin {
        Origin::Parameter { declaration, .. } | Origin::Result { declaration, .. } => Some(declaration),
        _ => None,
    }
}

/// Most members that a sentence names.
const NAMED_MAX: usize = 3;

fn in_words(read: &Read) -> String {
    match read {
        Read::Members { structure, slots, .. } => {
            let names: Vec<_> = slots.iter().take(NAMED_MAX).map(|slot| format!("`{}`", slot.path)).collect();
            let more = if slots.len() > NAMED_MAX { " and more" } else { "" };
            format!("{}{more} of `{structure}`", names.join(", "))
        }
        Read::Elements { ty, offset } => format!("a `{ty}` at {offset:+}"),
        Read::Unknown { why } => format!("what is not known ({why})"),
    }
}

/// Each member on its own line, after the structure.
fn in_full(read: &Read) -> String {
    match read {
        Read::Members { structure, slots, .. } => {
            let mut lines = vec![structure.clone()];
            lines.extend(slots.iter().map(|slot| {
                let (bytes, bit) = (slot.bit_offset / 8, slot.bit_offset % 8);
                let size = match slot.bits {
                    0 => String::new(),
                    bits if bits % 8 == 0 && bit == 0 => format!(", {} bytes", bits / 8),
                    bits => format!(", {bits} bits from bit {bit} on"),
                };
                format!("+{bytes}  {}  {}{size}", slot.path, slot.declaration)
            }));
            lines.join("\n")
        }
        Read::Elements { .. } | Read::Unknown { .. } => in_words(read),
    }
}

/// What a definition means else than on the kernel that it was made for, if that is known.
pub fn meaning_change(
    before: Option<&Meaning>,
    now: &Meaning,
    differences: Vec<Difference>,
    offered: Option<String>,
) -> v1::MeaningChange {
    let build = |build: &Build| v1::KernelBuild {
        name: build.name.clone(),
        build_id: build.id.clone().unwrap_or_default(),
    };
    let difference = |Difference { kind, argument, message, before, after }| v1::MeaningDifference {
        code: kind.code().to_owned(),
        argument,
        message,
        before,
        after,
    };
    v1::MeaningChange {
        made_for: before.map(|before| build(&before.kernel)),
        module_made_for: before.and_then(|before| before.module.as_ref()).map(build),
        running: Some(build(&now.kernel)),
        module_running: now.module.as_ref().map(build),
        differences: differences.into_iter().map(difference).collect(),
        offered_definition: offered.unwrap_or_default(),
    }
}
