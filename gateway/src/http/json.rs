//! Requests of inference in JSON, read within limits: lists are bounded while they are read, and what is not known is skipped
//! without being kept.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use crate::data_type::Number;
use crate::limits::{MAX_RANK, MAX_TENSORS};
use crate::sequences::SequenceId;

/// A request.
#[derive(Debug, Deserialize)]
pub struct Request {
    /// Comes back in the answer.
    #[serde(default)]
    pub id: String,
    /// Of the whole request.
    #[serde(default)]
    pub parameters: RequestParameters,
    /// Inputs.
    #[serde(default, deserialize_with = "tensors")]
    pub inputs: Vec<Input>,
    /// Outputs; none for all.
    #[serde(default, deserialize_with = "tensors")]
    pub outputs: Vec<Output>,
}

/// Parameters of a request.
#[derive(Debug, Default, Deserialize)]
pub struct RequestParameters {
    /// True if outputs that say nothing else come as bytes.
    #[serde(default)]
    pub binary_data_output: bool,
    /// Microseconds that the request may take.
    #[serde(default)]
    pub timeout: Option<u64>,
    /// Of a sequence of requests with a state of their own.
    #[serde(default, deserialize_with = "sequence_id")]
    pub sequence_id: Option<SequenceId>,
    /// True if the request is the first one of its sequence.
    #[serde(default)]
    pub sequence_start: bool,
    /// True if the request is the last one.
    #[serde(default)]
    pub sequence_end: bool,
}

/// An input.
#[derive(Debug, Deserialize)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its element type; none where the function declares that.
    #[serde(default)]
    pub datatype: Option<String>,
    /// Its dimensions; none where they follow from the data.
    #[serde(default)]
    pub shape: Option<Shape>,
    /// Where its bytes are.
    #[serde(default)]
    pub parameters: InputParameters,
    /// Its elements.
    #[serde(default)]
    pub data: Option<Data>,
}

/// Parameters of an input.
#[derive(Debug, Default, Deserialize)]
pub struct InputParameters {
    /// Its bytes behind the JSON.
    #[serde(default)]
    pub binary_data_size: Option<u64>,
    /// A region of shared memory.
    #[serde(default)]
    pub shared_memory_region: Option<String>,
    /// Where the tensor begins in the region.
    #[serde(default)]
    pub shared_memory_offset: u64,
    /// Bytes of the tensor there.
    #[serde(default)]
    pub shared_memory_byte_size: u64,
}

/// An output.
#[derive(Debug, Deserialize)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// How it comes.
    #[serde(default)]
    pub parameters: OutputParameters,
}

/// Parameters of an output.
#[derive(Debug, Default, Deserialize)]
pub struct OutputParameters {
    /// True if it comes as bytes behind the JSON; none for what the request says of all.
    #[serde(default)]
    pub binary_data: Option<bool>,
    /// A region of shared memory.
    #[serde(default)]
    pub shared_memory_region: Option<String>,
    /// Where the tensor begins in the region.
    #[serde(default)]
    pub shared_memory_offset: u64,
    /// Bytes that the tensor may have there.
    #[serde(default)]
    pub shared_memory_byte_size: u64,
    /// Classes to be chosen from the output, which is not done here.
    #[serde(default)]
    pub classification: Option<u64>,
}

/// A region that is to be registered.
#[derive(Debug, Deserialize)]
pub struct NewRegion {
    /// Its object.
    pub key: String,
    /// Where it begins there.
    #[serde(default)]
    pub offset: u64,
    /// Its bytes.
    pub byte_size: u64,
}

/// Dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape(pub Vec<u64>);

/// Numbers of a list, or of lists in lists.
#[derive(Debug, Default, PartialEq)]
pub struct Data {
    /// Row by row.
    pub numbers: Vec<Number>,
    /// How many each list has, the outermost first.
    pub shape: Vec<u64>,
}

fn sequence_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SequenceId>, D::Error> {
    struct Any;
    impl Visitor<'_> for Any {
        type Value = Option<SequenceId>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number or a text")
        }
        fn visit_u64<E>(self, id: u64) -> Result<Self::Value, E> {
            Ok(SequenceId::of_number(id))
        }
        fn visit_i64<E>(self, id: i64) -> Result<Self::Value, E> {
            Ok(SequenceId::of_number(id as u64))
        }
        fn visit_str<E>(self, id: &str) -> Result<Self::Value, E> {
            Ok(SequenceId::of_text(id))
        }
    }
    deserializer.deserialize_any(Any)
}

/// A list of few things.
struct Few<T>(std::marker::PhantomData<T>, usize);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {}", self.1)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            if all.len() == self.1 {
                return Err(A::Error::custom(format_args!("more than {} in one list", self.1)));
            }
            all.push(one);
        }
        Ok(all)
    }
}

fn tensors<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(Few(std::marker::PhantomData, MAX_TENSORS))
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Few(std::marker::PhantomData, MAX_RANK)).map(Self)
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut gathered = Gathered::default();
        Level { into: &mut gathered, depth: 0 }.deserialize(deserializer)?;
        // A list of lists without elements has the dimensions that were seen.
        let shape = gathered.shape.into_iter().map(Option::unwrap_or_default).collect();
        Ok(Self { numbers: gathered.numbers, shape })
    }
}

#[derive(Default)]
struct Gathered {
    numbers: Vec<Number>,
    /// By depth, once a list there ended.
    shape: Vec<Option<u64>>,
    /// The depth at which numbers are.
    leaves: Option<usize>,
}

/// One value of the data: a number, or a list one level deeper.
struct Level<'a> {
    into: &'a mut Gathered,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Level<'_> {
    fn number<E: Error>(self, number: Number) -> Result<(), E> {
        match self.into.leaves {
            _ if self.depth == 0 => return Err(E::custom("the data are a list, also of one number")),
            Some(depth) if depth != self.depth => return Err(E::custom("numbers beside lists of numbers")),
            _ => self.into.leaves = Some(self.depth),
        }
        self.into.numbers.push(number);
        Ok(())
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.number(Number::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.number(Number::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.number(i64::try_from(value).map_or(Number::UInt(value), Number::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.number(Number::Float(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.depth == MAX_RANK {
            return Err(A::Error::custom(format_args!("lists more than {MAX_RANK} deep")));
        }
        if self.into.leaves.is_some_and(|leaves| leaves <= self.depth) {
            return Err(A::Error::custom("lists of numbers beside numbers"));
        }
        let mut count = 0;
        while list.next_element_seed(Level { into: &mut *self.into, depth: self.depth + 1 })?.is_some() {
            count += 1;
        }
        let shape = &mut self.into.shape;
        if shape.len() <= self.depth {
            shape.resize(self.depth + 1, None);
        }
        match shape[self.depth].replace(count) {
            Some(other) if other != count => {
                Err(A::Error::custom("lists of one depth that differ in length"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Result<Data, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_of_lists_are_rows_of_one_shape() {
        let read = data("[[1, 2.5], [true, 18446744073709551615]]").unwrap();
        let numbers = [Number::Int(1), Number::Float(2.5), Number::Bool(true), Number::UInt(u64::MAX)];
        assert_eq!((&read.numbers[..], &read.shape[..]), (&numbers[..], &[2, 2][..]));
        // The double that is nearest, not one unit beside it.
        let exact = data("[0.22520718999059186]").unwrap().numbers;
        assert_eq!(exact, [Number::Float(f64::from_bits(0x3fcc_d396_d5ea_b510))]);
        assert_eq!(data("[]").unwrap(), Data { numbers: vec![], shape: vec![0] });
        assert_eq!(data("[[], []]").unwrap().shape, [2, 0]);
        for (wrong, words) in [
            ("1", "the data are a list"),
            ("[1, [2]]", "lists of numbers beside numbers"),
            ("[[2], 1]", "numbers beside lists"),
            ("[[1], [2, 3]]", "differ in length"),
            ("[\"a\"]", "expected a list of numbers"),
            ("[null]", "expected a list of numbers"),
            (&"[".repeat(60), "deep"),
        ] {
            let why = data(wrong).unwrap_err();
            assert!(why.contains(words), "{wrong}: {why}");
        }
    }

    #[test]
    fn lists_are_bounded_while_they_are_read_and_strangers_are_skipped() {
        let many = format!("{{\"inputs\": [{}]}}", vec!["{\"name\":\"\"}"; MAX_TENSORS + 1].join(","));
        let why = serde_json::from_str::<Request>(&many).unwrap_err().to_string();
        assert!(why.contains("more than 1024 in one list"), "{why}");
        let shape = format!("{{\"name\": \"A\", \"shape\": [{}]}}", vec!["1"; MAX_RANK + 1].join(","));
        assert!(serde_json::from_str::<Input>(&shape).is_err());
        assert!(serde_json::from_str::<Input>("{\"name\": \"A\", \"shape\": [-1]}").is_err());
        let text = "{\"what\": [[{}]], \"parameters\": {\"sequence_id\": 0, \"x\": 1}, \"inputs\": []}";
        let request: Request = serde_json::from_str(text).unwrap();
        assert_eq!((request.parameters.sequence_id, request.outputs.len()), (None, 0));
    }
}
