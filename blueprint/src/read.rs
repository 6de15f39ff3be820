//! Reading a document into the types of its format, by what `format` declares of each. A value that is none of its type is
//! noted with its place, and reading goes on behind it: so all mistakes of a document are found at once.

use std::fmt;

use smol_str::SmolStr;

use crate::cursor::{Broken, Cursor, Key, Kind};
use crate::error::{Notes, Path};
use crate::hints::{listed, nearest};
use crate::limits::BUFFERS;

/// A type of the format.
pub(crate) trait Read: Sized {
    /// Reads the next value. Nothing where it is no such value, which is noted then.
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self>;
}

/// JSON that is being read, and what was wrong with it up to here.
pub(crate) struct Json<'j> {
    cursor: Cursor<'j>,
    notes: Notes<'j>,
    /// True if the text is no JSON from here on: nothing more is read.
    broken: bool,
}

/// Reads a document: what it says as far as it could be read, what was wrong, and whether it is JSON to its end.
pub(crate) fn document<T: Read>(text: &str) -> (Option<T>, Notes<'_>, bool) {
    let mut json = Json { cursor: Cursor::new(text), notes: Notes::new(text), broken: false };
    let read = T::read(&mut json, &Path::Root);
    if !json.broken {
        let end = json.cursor.end();
        json.well(end);
    }
    (read, json.notes, !json.broken)
}

impl<'j> Json<'j> {
    /// What was read of the text; nothing where it is no JSON, which is noted then.
    fn well<T>(&mut self, read: Result<T, Broken>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(Broken { at, why }) => {
                self.broken = true;
                let begins = Cursor::new(self.notes.text()).next_at();
                let such = if at == begins {
                    "; expected a configuration such as kernels/configs/vec_add.json"
                } else {
                    ""
                };
                self.notes.note_at(at, &Path::Root, format_args!("it is no JSON: {why}{such}"));
                None
            }
        }
    }

    fn kind(&mut self) -> Option<Kind> {
        if self.broken {
            return None;
        }
        let kind = self.cursor.kind();
        self.well(kind)
    }

    fn skip(&mut self) {
        if !self.broken {
            let skipped = self.cursor.skip();
            self.well(skipped);
        }
    }

    /// Notes that the next value is not what it should be, and passes over it.
    pub(crate) fn wrong<T>(&mut self, place: &Path<'_>, message: impl fmt::Display) -> Option<T> {
        let at = self.cursor.next_at();
        self.skip();
        if !self.broken {
            self.notes.note_at(at, place, message);
        }
        None
    }

    /// Expects a value of this kind next; a value of another kind is noted and passed over.
    fn expect(&mut self, kind: Kind, place: &Path<'_>, what: impl fmt::Display) -> Option<()> {
        match self.kind()? {
            found if found == kind => Some(()),
            found => self.unlike(found, place, what),
        }
    }

    /// Notes that the next value, of this kind, is not `what`.
    pub(crate) fn unlike<T>(&mut self, found: Kind, place: &Path<'_>, what: impl fmt::Display) -> Option<T> {
        let mut ahead = self.cursor;
        let found = match found {
            Kind::Object => "an object".to_owned(),
            Kind::List => "a list".to_owned(),
            Kind::Text => format!("the text {:?}", ahead.string().unwrap_or_default()),
            Kind::Number => format!("the number {}", ahead.number().unwrap_or_default()),
            Kind::Bool | Kind::Null => ahead.word().unwrap_or_default().to_owned(),
        };
        self.wrong(place, format_args!("found {found}, expected {what}"))
    }

    /// Reads an object: `each` reads the value of the key that it is given. Where the object begins.
    pub(crate) fn object(
        &mut self,
        place: &Path<'_>,
        what: impl fmt::Display,
        mut each: impl FnMut(&mut Self, Key<'j>),
    ) -> Option<usize> {
        self.expect(Kind::Object, place, what)?;
        let begin = self.cursor.next_at();
        let opened = self.cursor.open();
        self.well(opened)?;
        let mut first = true;
        loop {
            let key = self.cursor.next_key(&mut first);
            match self.well(key)? {
                Some(key) => each(self, key),
                None => return Some(begin),
            }
            if self.broken {
                return None;
            }
        }
    }

    /// Reads a list: `each` reads the entry of the number that it is given.
    pub(crate) fn list(
        &mut self,
        place: &Path<'_>,
        what: impl fmt::Display,
        mut each: impl FnMut(&mut Self, usize, &Path<'_>),
    ) -> Option<usize> {
        self.expect(Kind::List, place, what)?;
        let opened = self.cursor.open();
        self.well(opened)?;
        let mut first = true;
        for index in 0.. {
            let more = self.cursor.next_entry(&mut first);
            if !self.well(more)? {
                return Some(index);
            }
            each(self, index, &place.index(index));
            if self.broken {
                break;
            }
        }
        None
    }

    /// Reads a list of so many entries.
    pub(crate) fn fixed(
        &mut self,
        count: usize,
        place: &Path<'_>,
        what: &str,
        mut each: impl FnMut(&mut Self, usize, &Path<'_>),
    ) -> Option<()> {
        let begin = self.cursor.next_at();
        let found = self.list(place, what, |json, index, place| match index < count {
            true => each(json, index, place),
            false => json.skip(),
        })?;
        if found != count {
            self.notes.note_at(begin, place, format_args!("a list of {found}, expected {what}"));
            return None;
        }
        Some(())
    }

    /// Reads the value of a key that may come once.
    pub(crate) fn field<T: Read>(&mut self, slot: &mut Option<Option<T>>, key: &Key<'_>, place: &Path<'_>) {
        let place = &place.key(&key.text);
        if slot.is_some() {
            self.notes.note_at(
                key.at,
                place,
                format_args!("the key {:?} a second time, expected once", key.text),
            );
            return self.skip();
        }
        *slot = Some(T::read(self, place));
    }

    /// Notes a key that an object of this kind does not have, and passes over its value.
    pub(crate) fn unknown(&mut self, what: &str, key: &Key<'_>, known: &[&'static str], place: &Path<'_>) {
        let (name, known) = (&*key.text, known.iter().copied());
        self.notes.note_at(
            key.at,
            &place.key(name),
            format_args!("unknown {what} {name:?}{}; known: {}", nearest(name, known.clone()), listed(known)),
        );
        self.skip();
    }

    /// Notes that a key is missing in the object that begins at this byte.
    pub(crate) fn missing(&mut self, at: usize, key: &str, what: &str, place: &Path<'_>) {
        self.notes.note_at(at, place, format_args!("the key {key:?} is missing in {what}"));
    }

    /// Reads an object of one key, which says what its value is: `each` reads the value, or says that the key is unknown.
    pub(crate) fn one_of<T>(
        &mut self,
        place: &Path<'_>,
        (what, written): (&str, &str),
        keys: &[&'static str],
        mut each: impl FnMut(&mut Self, &str, &Path<'_>) -> Option<Option<T>>,
    ) -> Option<T> {
        let mut read: Option<Option<T>> = None;
        let begin = self.object(place, written, |json, key| {
            if read.is_some() {
                let second = &key.text;
                let message = format_args!("a second key {second:?} in {what}, expected one: {written}");
                json.notes.note_at(key.at, place, message);
                return json.skip();
            }
            let known = each(json, &key.text, &place.key(&key.text));
            read = Some(known.unwrap_or_else(|| {
                let noun = what.split_once(' ').map_or(what, |(_, noun)| noun);
                json.unknown(noun, &key, keys, place);
                None
            }));
        })?;
        if read.is_none() {
            self.notes.note_at(begin, place, format_args!("an empty object, expected {written}"));
        }
        read.flatten()
    }

    /// Reads an integer in a range.
    pub(crate) fn integer(&mut self, place: &Path<'_>, (min, max): (i128, i128)) -> Option<i128> {
        self.expect(Kind::Number, place, format_args!("a whole number from {min} to {max}"))?;
        let mut ahead = self.cursor;
        let read = ahead.number();
        let text = self.well(read)?;
        if text.contains(['.', 'e', 'E']) {
            return self.wrong(
                place,
                format_args!("the value is {text}, expected a whole number from {min} to {max}"),
            );
        }
        // What is longer than 128 bits is out of every range.
        match text.parse::<i128>().ok().filter(|value| (min..=max).contains(value)) {
            Some(value) => {
                self.cursor = ahead;
                Some(value)
            }
            None => self.wrong(place, format_args!("the value is {text}, expected {min} to {max}")),
        }
    }

    /// Reads a number as it is written.
    pub(crate) fn number(&mut self, place: &Path<'_>) -> Option<&'j str> {
        self.expect(Kind::Number, place, "a number")?;
        let read = self.cursor.number();
        self.well(read)
    }

    /// The kind of the next value, for those that may be written in several ways.
    pub(crate) fn peek(&mut self) -> Option<Kind> {
        self.kind()
    }

    fn text(&mut self, place: &Path<'_>, what: impl fmt::Display) -> Option<std::borrow::Cow<'j, str>> {
        self.expect(Kind::Text, place, what)?;
        let read = self.cursor.string();
        self.well(read)
    }

    /// Reads one of several words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        place: &Path<'_>,
        what: &str,
        all: impl Iterator<Item = (&'static str, T)> + Clone,
    ) -> Option<T> {
        let known = all.clone().map(|(name, _)| name);
        self.expect(Kind::Text, place, format_args!("{what}: {}", listed(known.clone())))?;
        let mut ahead = self.cursor;
        let read = ahead.string();
        let text = self.well(read)?;
        match all.clone().find(|(name, _)| *name == text) {
            Some((_, choice)) => {
                self.cursor = ahead;
                Some(choice)
            }
            None => {
                let near = nearest(&text, known.clone());
                self.wrong(place, format_args!("unknown {what} {text:?}{near}; known: {}", listed(known)))
            }
        }
    }
}

impl Read for String {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        json.text(place, "a text in double quotes").map(Into::into)
    }
}

impl Read for SmolStr {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        json.text(place, "a name in double quotes").map(Into::into)
    }
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Read for $type {
            fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
                json.integer(place, (Self::MIN.into(), Self::MAX.into())).and_then(|value| value.try_into().ok())
            }
        })*
    };
}

integers!(u8, u32, u64, i64);

impl Read for f64 {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let before = json.cursor;
        let text = json.number(place)?;
        match text.parse().ok().filter(|value: &f64| value.is_finite()) {
            Some(value) => Some(value),
            None => {
                json.cursor = before;
                json.wrong(place, format_args!("{text} is too large, expected at most {:e}", Self::MAX))
            }
        }
    }
}

impl Read for bool {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        json.expect(Kind::Bool, place, "`true` or `false`")?;
        let read = json.cursor.word();
        Some(json.well(read)? == "true")
    }
}

impl<T: Read> Read for Box<T> {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        T::read(json, place).map(Self::new)
    }
}

/// A list that is there as far as its entries could be read: the others have their places still. It has at most so many, which
/// is a limit while it is read: an entry takes many times the memory of its JSON.
pub(crate) struct List<T, const MOST: usize = { usize::MAX }>(pub(crate) Vec<Option<T>>);

impl<T, const MOST: usize> List<T, MOST> {
    /// The entries that could be read, with their places in the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.as_ref()?)))
    }
}

impl<T: Read, const MOST: usize> Read for List<T, MOST> {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let mut entries = Vec::new();
        json.list(place, "a list", |json, index, entry| match index < MOST {
            true => entries.push(T::read(json, entry)),
            false if index == MOST => {
                json.wrong(place, format_args!("one more entry, expected at most {MOST}")).unwrap_or(())
            }
            false => json.skip(),
        })?;
        Some(Self(entries))
    }
}

/// A list of which nothing is left where one of its entries could not be read.
impl<T: Read> Read for Vec<T> {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let mut entries = Vec::new();
        let mut whole = true;
        json.list(place, "a list", |json, _, entry| match T::read(json, entry) {
            Some(entry) => entries.push(entry),
            None => whole = false,
        })?;
        whole.then_some(entries)
    }
}

/// A list of two.
impl<T: Read> Read for (T, T) {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let (mut one, mut other) = (None, None);
        json.fixed(2, place, "a list of 2", |json, index, place| match index {
            0 => one = T::read(json, place),
            _ => other = T::read(json, place),
        })?;
        one.zip(other)
    }
}

/// An object in the order of the document, keys that come twice included: the resolver refuses those. It speaks of buffers,
/// so it has at most as many keys.
pub(crate) struct Map<V>(pub(crate) Vec<(String, Option<V>)>);

impl<V> Default for Map<V> {
    fn default() -> Self {
        Map(Vec::new())
    }
}

impl<V: Read> Read for Map<V> {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let mut entries = Vec::new();
        let mut too_many = false;
        json.object(place, "an object", |json, key| {
            if entries.len() < BUFFERS {
                let value = V::read(json, &place.key(&key.text));
                return entries.push((key.text.into_owned(), value));
            }
            if !std::mem::replace(&mut too_many, true) {
                let message = format_args!("one more entry, expected at most {BUFFERS}");
                json.notes.note_at(key.at, place, message);
            }
            json.skip();
        })?;
        Some(Map(entries))
    }
}

/// Declares an object of the format: its type, how it is read, and what the schema says of it. `need` is a key without which
/// nothing is left of the object, `part` one that is needed as well, `may` one that can be left out.
macro_rules! object {
    ($(#[doc = $about:literal])* $name:ident, $what:literal {
        $($(#[doc = $doc:literal])* $presence:ident $key:literal $field:ident: $type:ty,)*
    }) => {
        $(#[doc = $about])*
        pub(crate) struct $name {
            $($(#[doc = $doc])* pub(crate) $field: object!(@kept $presence $type),)*
        }

        impl Read for $name {
            fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
                $(let mut $field: Option<Option<$type>> = None;)*
                let begin = json.object(place, concat!($what, ", which is an object"), |json, key| match &*key.text {
                    $($key => json.field(&mut $field, &key, place),)*
                    _ => json.unknown("key", &key, &[$($key),*], place),
                })?;
                $(object!(@check $presence $field, json, begin, $key, $what, place);)*
                Some(Self { $($field: object!(@take $presence $field)),* })
            }
        }

        impl $crate::write::Write for $name {
            fn write(&self, out: &mut String) {
                out.push('{');
                $(object!(@write $presence &self.$field, $key, out);)*
                out.push('}');
            }
        }

        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let keys = [$($crate::read::schema::Key {
                    name: $key,
                    about: &[$($doc),*],
                    is_needed: stringify!($presence) != "may",
                    value: generator.subschema_for::<$type>(),
                }),*];
                $crate::read::schema::object(&[$($about),*], keys.into())
            }
        }
    };
    (@kept need $type:ty) => { $type };
    (@kept $presence:ident $type:ty) => { Option<$type> };
    (@check may $field:ident, $($rest:tt)*) => {};
    (@check $presence:ident $field:ident, $json:ident, $begin:ident, $key:literal, $what:literal, $place:ident) => {
        if $field.is_none() {
            $json.missing($begin, $key, $what, $place);
        }
    };
    (@write need $value:expr, $key:literal, $out:ident) => { $crate::write::field($key, $value, $out) };
    (@write $presence:ident $value:expr, $key:literal, $out:ident) => {
        if let Some(value) = $value {
            $crate::write::field($key, value, $out);
        }
    };
    (@take need $field:ident) => { $field.flatten()? };
    (@take $presence:ident $field:ident) => { $field.flatten() };
}

/// Declares an object of one key: the enum of its keys, how it is read, and how it is written, for messages.
macro_rules! one_of {
    ($(#[$attribute:meta])* $name:ident, $what:literal, $written:literal {
        $($(#[$about:meta])* $variant:ident($type:ty),)*
    }) => {
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        $(#[$attribute])*
        pub(crate) enum $name {
            $($(#[$about])* $variant($type),)*
        }

        impl $crate::write::Write for $name {
            fn write(&self, out: &mut String) {
                out.push('{');
                match self {
                    $(Self::$variant(value) => $crate::write::field(stringify!($variant), value, out),)*
                }
                out.push('}');
            }
        }

        impl $name {
            fn of_key(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
                let keys = &[$(stringify!($variant)),*];
                json.one_of(place, ($what, $written), keys, |json, key, place| match key {
                    $(stringify!($variant) => Some(<$type>::read(json, place).map(Self::$variant)),)*
                    _ => None,
                })
            }
        }
    };
}

pub(crate) use {object, one_of};

/// What the published schema says of the types here.
#[cfg(test)]
pub(crate) mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use serde_json::{Value, json};

    use super::{List, Map};

    /// A key of an object.
    pub(crate) struct Key {
        pub(crate) name: &'static str,
        pub(crate) about: &'static [&'static str],
        pub(crate) is_needed: bool,
        pub(crate) value: Schema,
    }

    /// An object of these keys and no others.
    pub(crate) fn object(about: &[&str], keys: Vec<Key>) -> Schema {
        let text = |about: &[&str]| about.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n");
        let needed: Vec<&str> = keys.iter().filter(|key| key.is_needed).map(|key| key.name).collect();
        let mut properties = serde_json::Map::new();
        for mut key in keys {
            key.value.insert("description".into(), text(key.about).into());
            properties.insert(key.name.into(), key.value.into());
        }
        json_schema!({
            "description": text(about),
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
            "required": needed,
        })
    }

    /// For a type that is an object, or something shorter.
    pub(crate) fn or(schema: &mut Schema, shorter: Value) {
        let long = ["oneOf", "anyOf"].into_iter().find_map(|key| schema.remove(key));
        let all =
            [vec![shorter], long.and_then(|long| long.as_array().cloned()).unwrap_or_default()].concat();
        schema.insert("oneOf".into(), json!(all));
    }

    impl<T: JsonSchema, const MOST: usize> JsonSchema for List<T, MOST> {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            Vec::<T>::schema_name()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            Vec::<T>::json_schema(generator)
        }
    }

    impl<V: JsonSchema> JsonSchema for Map<V> {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            std::collections::BTreeMap::<String, V>::schema_name()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            std::collections::BTreeMap::<String, V>::json_schema(generator)
        }
    }
}
