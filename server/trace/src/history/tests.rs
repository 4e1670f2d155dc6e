//! Tests of stored payloads: decoding trusts no byte of them.

mod terms;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::stored;
use crate::decode::{FieldKind, FieldSchema, Notation};
use crate::pipeline::Origin;
use crate::pipeline::samples::source;
use kprobed_lang::model::Labels;

#[test]
fn an_origin_comes_back() {
    let origin = &source("a", 3).origin;
    let labels = Labels::new([("team".to_owned(), "net".to_owned())]).unwrap();
    let entry = stored::schema_entry(origin, &labels, 17);
    assert_eq!((entry.key, entry.sequence, entry.events), (3, 17, 0));
    let back = stored::origin(&entry.payload).unwrap();
    assert_eq!((back.schema_id, back.uid, back.type_id), (origin.schema_id, origin.uid, origin.type_id));
    assert_eq!((&back.name, &back.schema, &*back.labels()), (&origin.name, &origin.schema, &labels));
}

/// Who may not see addresses does not see those that a text of the history has in place of a name.
#[test]
fn texts_of_symbols_are_known_again() {
    let origin = &source("a", 3).origin;
    let field = |name: &str, kind, notation| FieldSchema { notation, ..FieldSchema::new(name, kind) };
    let mut schema = (*origin.schema).clone();
    schema.fields = vec![
        field("text", FieldKind::String, Notation::Number),
        field("who", FieldKind::SymbolName, Notation::Number),
        field("kernel", FieldKind::String, Notation::Symbol),
        field("stack", FieldKind::SymbolName, Notation::Stack),
    ];
    let origin = Origin::new(3, origin.uid, origin.name.clone(), 7, Arc::new(schema));
    let payload = stored::schema_entry(&origin, &Labels::default(), 0).payload;
    let back = stored::origin(&payload).unwrap();
    let named: Vec<_> = back.schema.fields.iter().map(FieldSchema::names_addresses).collect();
    assert_eq!(named, [false, true, true, true]);
    assert_eq!(back.schema.fields[1], origin.schema.fields[1]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn damaged_bytes_are_refused_or_read(
        at in 0_usize..200,
        byte: u8,
        any in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let origin = &source("a", 3).origin;
        let mut damaged = stored::schema_entry(origin, &Labels::default(), 0).payload.to_vec();
        if let Some(place) = damaged.get_mut(at) {
            *place = byte;
        }
        let origins = HashMap::from([(3, Arc::clone(origin))]);
        for bytes in [damaged, any] {
            let bytes = Bytes::from(bytes);
            if let Some(origin) = stored::origin(&bytes) {
                prop_assert!(!origin.name.to_string().is_empty());
            }
            if let Some(batch) = stored::batch(&bytes, &origins) {
                prop_assert!(batch.groups.iter().all(|group| group.origin.schema_id == 3));
            }
            if let Some(loss) = stored::loss(&bytes) {
                let again = stored::loss_entry(&loss, 0, 0, 0).payload;
                prop_assert_eq!(stored::loss(&again), Some(loss));
            }
        }
    }
}
