//! Messages of the API in protobuf's JSON mapping (<https://protobuf.dev/programming-guides/json>).
//!
//! Owns the one form in which a message is printed as JSON and YAML: `prost-reflect` writes it with the
//! names of fields as in the protos, 64-bit numbers as text, enums by name and times in RFC 3339. Fields
//! that have no value are printed, except messages and `optional` fields. Fields are in the order of their
//! numbers, keys of maps in their own order.

use std::sync::LazyLock;

use prost::Name;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::ser::Error as _;
use serde_json::{Error, Value};

/// The descriptors of the API.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "the build has made them")]
    DescriptorPool::decode(kprobed_proto::FILE_DESCRIPTOR_SET).expect("descriptors of the API")
});

/// A message as JSON.
///
/// # Errors
///
/// If a value has no form in JSON: a time beyond the year 9999.
pub fn json<M: Name>(message: &M) -> Result<Value, Error> {
    let name = M::full_name();
    let descriptor = POOL
        .get_message_by_name(&name)
        .ok_or_else(|| Error::custom(format!("`{name}` is not of the API")))?;
    let mut reflected = DynamicMessage::new(descriptor.clone());
    reflected.transcode_from(message).map_err(Error::custom)?;
    let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false);
    let mut value = reflected.serialize_with_options(serde_json::value::Serializer, &options)?;
    sort_maps(&mut value, &descriptor);
    Ok(value)
}

/// The library keeps maps in hash tables, so that equal messages would be printed in different orders.
fn sort_maps(value: &mut Value, descriptor: &MessageDescriptor) {
    // What is not an object has a form of its own, as times have.
    let Value::Object(object) = value else { return };
    for field in descriptor.fields() {
        let (Some(value), Some(message)) = (object.get_mut(field.name()), field.kind().as_message().cloned())
        else {
            continue;
        };
        match value {
            Value::Object(map) if field.is_map() => {
                map.sort_keys();
                if let Some(message) = message.map_entry_value_field().kind().as_message() {
                    map.values_mut().for_each(|value| sort_maps(value, message));
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| sort_maps(value, &message)),
            value => sort_maps(value, &message),
        }
    }
}

#[cfg(test)]
mod tests {
    use kprobed_proto::v1;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_printed_can_be_read(
            labels in btree_map("[a-e]{1,2}", ".{0,4}", 0..6), uid: i64, hits: u64, warnings in vec(".{0,4}", 0..3),
        ) {
            let labels: std::collections::HashMap<_, _> = labels.into_iter().collect();
            let warnings = warnings.into_iter().map(|message| v1::Diagnostic { message, ..v1::Diagnostic::default() });
            let probe = v1::Probe { uid, labels: labels.clone(), warnings: warnings.collect(), ..v1::Probe::default() };
            let change = v1::WatchProbesResponse { probe: Some(probe), ..v1::WatchProbesResponse::default() };
            let value = json(&change).unwrap();
            let keys: Vec<_> = value["probe"]["labels"].as_object().unwrap().keys().cloned().collect();
            prop_assert!(keys.is_sorted(), "{keys:?}");
            let descriptor = POOL.get_message_by_name("kprobed.v1.WatchProbesResponse").unwrap();
            let read: v1::WatchProbesResponse =
                DynamicMessage::deserialize(descriptor, &value).unwrap().transcode_to().unwrap();
            prop_assert_eq!(read, change);
            let profile = json(&v1::HitProfile { hits, ..v1::HitProfile::default() }).unwrap();
            prop_assert_eq!(&profile["hits"], &hits.to_string());
        }
    }

    #[test]
    fn every_field_without_presence_is_printed_in_the_order_of_numbers() {
        let probe = v1::Probe {
            name: "kprobes/open".to_owned(),
            state: v1::ProbeState::Armed.into(),
            create_time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 5_000_000 }),
            ..v1::Probe::default()
        };
        let value = json(&probe).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let fields: Vec<_> = POOL.get_message_by_name("kprobed.v1.Probe").unwrap().fields().collect();
        let expected =
            fields.iter().filter(|field| !field.supports_presence() || field.name() == "create_time");
        assert_eq!(keys, expected.map(prost_reflect::FieldDescriptor::name).collect::<Vec<_>>());
        assert_eq!((&value["state"], &value["filter"]), (&"PROBE_STATE_ARMED".into(), &"".into()));
        assert_eq!(value["create_time"], "2023-11-14T22:13:20.005Z");
        let no_time = prost_types::Timestamp { seconds: i64::MAX, nanos: -1 };
        assert!(json(&v1::Probe { create_time: Some(no_time), ..v1::Probe::default() }).is_err());
    }
}
