//! Rules of call frames: where the canonical frame address is.

use std::cell::OnceCell;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, Encoding, FrameDescriptionEntry, SectionId,
    UnwindContext, UnwindSection,
};

use super::expression::{Meaning, meaning};
use crate::error::{LinesError, Result};
use crate::image::{Bytes, Image};
use crate::model::{Location, Range};
use crate::value::Value;

/// The frame rules of a file.
pub(super) struct Frames<'a> {
    debug: DebugFrame<Bytes<'a>>,
    eh: EhFrame<Bytes<'a>>,
    bases: BaseAddresses,
    found: OnceCell<Vec<Frame>>,
}

/// The rules of one function.
struct Frame {
    range: Range,
    offset: usize,
    is_eh: bool,
}

/// The format of expressions in frame rules.
const ENCODING: Encoding = Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 5 };

type Entry<'a> = FrameDescriptionEntry<Bytes<'a>>;

impl<'a> Frames<'a> {
    pub(super) fn new(image: &'a Image<'_>) -> Self {
        let mut debug = DebugFrame::from(image.section(SectionId::DebugFrame));
        debug.set_address_size(8);
        let mut eh = EhFrame::from(image.section(SectionId::EhFrame));
        eh.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(image.frames_base);
        Self { debug, eh, bases, found: OnceCell::new() }
    }

    /// All functions with rules, by address.
    fn found(&self) -> &[Frame] {
        self.found.get_or_init(|| {
            let mut found = Vec::new();
            // What follows a damaged entry is not read; the functions there have no rules then.
            entries(&self.debug, &self.bases, |range, offset| {
                found.push(Frame { range, offset, is_eh: false });
            });
            entries(&self.eh, &self.bases, |range, offset| found.push(Frame { range, offset, is_eh: true }));
            found.sort_by_key(|frame| frame.range.start);
            found
        })
    }

    /// The canonical frame address at an address of the code.
    pub(super) fn address(&self, address: u64) -> Result<Value> {
        let found = self.found();
        let end = found.partition_point(|frame| frame.range.start <= address);
        let before = found.get(..end).unwrap_or_default();
        let frame = before.iter().rev().take(8).find(|frame| address < frame.range.end).ok_or_else(|| {
            let why = if found.is_empty() {
                "the file has no `.debug_frame`"
            } else {
                "`.debug_frame` leaves it out"
            };
            LinesError::new(format!("the place of the frame at this instruction is not known: {why}"))
        })?;
        let rule = self.rules(frame)?.into_iter().find(|(range, _)| range.has(address));
        rule.map_or_else(|| Err(LinesError::new("the frame has no rule here")), |(_, value)| value)
    }

    /// Every rule of the file.
    pub(super) fn each(&self, mut visit: impl FnMut(Range, Value)) {
        for frame in self.found() {
            for (range, value) in self.rules(frame).unwrap_or_default() {
                if let Ok(value) = value {
                    visit(range, value);
                }
            }
        }
    }

    fn rules(&self, frame: &Frame) -> Result<Vec<(Range, Result<Value>)>> {
        if frame.is_eh {
            let entry =
                self.eh.fde_from_offset(&self.bases, frame.offset.into(), EhFrame::cie_from_offset)?;
            self.rules_of(&self.eh, &entry)
        } else {
            let entry =
                self.debug.fde_from_offset(&self.bases, frame.offset.into(), DebugFrame::cie_from_offset)?;
            self.rules_of(&self.debug, &entry)
        }
    }

    fn rules_of<S: UnwindSection<Bytes<'a>>>(
        &self,
        section: &S,
        entry: &Entry<'a>,
    ) -> Result<Vec<(Range, Result<Value>)>> {
        let mut context = UnwindContext::new();
        let mut table = entry.rows(section, &self.bases, &mut context)?;
        let mut rules = Vec::new();
        while let Some(row) = table.next_row()? {
            let value = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => {
                    Ok(Value::Register(register.0).plus(offset.cast_unsigned()))
                }
                CfaRule::Expression(expression) => {
                    let bytes = expression.get(section)?;
                    match meaning(&Meaning::of_frame(ENCODING), bytes) {
                        Location::Memory(value) => Ok(value),
                        _ => Err(LinesError::new("the rule of the frame is not understood")),
                    }
                }
            };
            rules.push((Range { start: row.start_address(), end: row.end_address() }, value));
        }
        Ok(rules)
    }
}

fn entries<'a, S>(section: &S, bases: &BaseAddresses, mut found: impl FnMut(Range, usize))
where
    S: UnwindSection<Bytes<'a>>,
{
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(entry) = partial.parse(S::cie_from_offset) {
            let range = Range { start: entry.initial_address(), end: entry.end_address() };
            found(range, entry.offset());
        }
    }
}
