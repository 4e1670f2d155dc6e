//! From a tree to whatever serde can make of it, with the place of what it cannot.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::place::Place;
use crate::tree::{Node, Value};

/// Why there is nothing that could be made of a tree.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) message: String,
    /// Absent until it is known.
    pub(crate) place: Option<Place>,
}

impl Unread {
    /// At a place, unless it has one further inside.
    fn at(mut self, place: Place) -> Self {
        self.place.get_or_insert(place);
        self
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Unread {}

impl de::Error for Unread {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), place: None }
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        let result = match &self.value {
            Value::Sequence(items) => visitor.visit_seq(Items(items.iter())),
            Value::Mapping(entries) => visitor.visit_map(Entries { rest: entries.iter(), value: None }),
            Value::Scalar { text, plain } => match text.as_str() {
                _ if self.is_null() => visitor.visit_unit(),
                "true" if *plain => visitor.visit_bool(true),
                "false" if *plain => visitor.visit_bool(false),
                text => match (text.parse::<u64>(), text.parse::<i64>()) {
                    (Ok(number), _) if *plain => visitor.visit_u64(number),
                    (_, Ok(number)) if *plain => visitor.visit_i64(number),
                    _ => visitor.visit_borrowed_str(text),
                },
            },
        };
        result.map_err(|error| error.at(self.place))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    /// A name is taken as it is written, if it is all digits too.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        match &self.value {
            Value::Scalar { text, .. } if !self.is_null() => {
                visitor.visit_borrowed_str(text).map_err(|error: Unread| error.at(self.place))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        let result = match &self.value {
            Value::Scalar { text, .. } => {
                let name: StrDeserializer<'_, Unread> = text.as_str().into_deserializer();
                visitor.visit_enum(name)
            }
            Value::Mapping(entries) => match entries.as_slice() {
                [(key, value)] => visitor.visit_enum(Variant { key, value }),
                _ => Err(de::Error::custom("a mapping with a single key is expected here")),
            },
            Value::Sequence(_) => Err(de::Error::custom("a list cannot stand here")),
        };
        result.map_err(|error| error.at(self.place))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct newtype_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct Items<'de>(std::slice::Iter<'de, Node>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Unread;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Unread> {
        self.0.next().map(|item| seed.deserialize(item)).transpose()
    }
}

struct Entries<'de> {
    rest: std::slice::Iter<'de, (Node, Node)>,
    value: Option<&'de Node>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Unread;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unread> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some(value);
        let Value::Scalar { text, .. } = &key.value else {
            return Err(Unread { message: "a key must be a word".to_owned(), place: Some(key.place) });
        };
        let name: StrDeserializer<'_, Unread> = text.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|error| error.at(key.place))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unread> {
        match self.value.take() {
            Some(value) => seed.deserialize(value).map_err(|error| error.at(value.place)),
            None => Err(de::Error::custom("a key has no value")),
        }
    }
}

/// An alternative: a mapping with its name as the only key.
struct Variant<'de> {
    key: &'de Node,
    value: &'de Node,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Unread;
    type Variant = &'de Node;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, &'de Node), Unread> {
        let Value::Scalar { text, .. } = &self.key.value else {
            return Err(Unread { message: "a key must be a word".to_owned(), place: Some(self.key.place) });
        };
        let name: StrDeserializer<'_, Unread> = text.as_str().into_deserializer();
        let name = seed.deserialize(name).map_err(|error| error.at(self.key.place))?;
        Ok((name, self.value))
    }
}

impl<'de> VariantAccess<'de> for &'de Node {
    type Error = Unread;

    fn unit_variant(self) -> Result<(), Unread> {
        if self.is_null() {
            return Ok(());
        }
        Err(Unread { message: "nothing is expected here".to_owned(), place: Some(self.place) })
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Unread> {
        seed.deserialize(self).map_err(|error| error.at(self.place))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Unread> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        self.deserialize_any(visitor)
    }
}
