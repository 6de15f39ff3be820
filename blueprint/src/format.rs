//! The JSON as written: one type per form, read by serde, nothing checked that serde cannot see.
//! The doc comments here are the descriptions in `docs/blueprint.schema.json`.
//!
//! Steps lie in one block of memory with their names, as long as those are short: of many small blocks that are freed at once,
//! the allocator would keep most.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smol_str::SmolStr;

use crate::limits::{BUFFERS, INPUTS, KERNELS, OUTPUTS, PARAMS};
use crate::types::{BoxFill, DType, Swizzle};

/// A function: modules, kernels and the blueprint that runs them. Has either `module_path` or
/// `modules`.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(title = "Pappus function",
    extend("oneOf" = [{"required": ["module_path"]}, {"required": ["modules"]}])))]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Where this schema is, for editors; Pappus does not read it.
    #[cfg_attr(test, schemars(with = "String", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present", rename = "$schema")]
    pub(crate) _schema: Option<String>,
    /// The only module; kernels are then listed by name.
    #[cfg_attr(test, schemars(with = "String", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) module_path: Option<String>,
    /// The modules; each kernel then says which one it is in.
    #[cfg_attr(test, schemars(with = "Vec<Object<Module>>", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) modules: Option<Vec<Object<Module>>>,
    /// The kernels that the blueprint may launch.
    #[serde(deserialize_with = "at_most::<KERNELS, _, _>")]
    pub(crate) kernels: Vec<NameOr<Kernel>>,
    /// Files of the weights, by name.
    #[serde(default)]
    pub(crate) weight_files: Map<String>,
    /// Buffers and control flow.
    pub(crate) blueprint: Object<Blueprint>,
}

/// A file of compiled kernels.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Module {
    /// The name kernels refer to it by.
    pub(crate) module_name: String,
    /// The file.
    pub(crate) path: String,
}

/// A kernel of one of several modules.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernel {
    /// The module it is in.
    pub(crate) module_name: String,
    /// Its symbol in the module.
    pub(crate) kernel_name: String,
    /// The name the blueprint launches it by; its symbol by default.
    #[cfg_attr(test, schemars(with = "String", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) alias: Option<String>,
}

/// Which buffers, which launches, in which order.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Blueprint {
    /// Buffers whose contents come with the call.
    #[serde(deserialize_with = "at_most::<INPUTS, _, _>")]
    pub(crate) inputs: Vec<String>,
    /// Constant buffers that belong to the function; kernels may only read them.
    #[serde(default, deserialize_with = "at_most::<BUFFERS, _, _>")]
    pub(crate) weights: Vec<String>,
    /// Further buffers, zeroed when a call starts, and their size in bytes.
    pub(crate) buffers: Map<Sizing>,
    /// Buffers (or inputs) whose contents are the result.
    #[serde(deserialize_with = "at_most::<OUTPUTS, _, _>")]
    pub(crate) outputs: Vec<String>,
    /// What to execute, in order.
    pub(crate) control_flow: Vec<Action>,
    /// Element type and shape of inputs, weights and buffers, by name.
    #[serde(default)]
    pub(crate) types: Map<Object<Type>>,
}

/// What a buffer holds.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Type {
    /// The type of an element.
    pub(crate) dtype: DType,
    /// Elements along each dimension, outermost first; one dimension as long as the buffer by
    /// default. In the shape of an input, `Free` leaves a dimension to the call.
    #[cfg_attr(test, schemars(with = "Vec<Sizing>", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) shape: Option<Vec<Sizing>>,
}

/// A number of bytes, blocks, threads or repetitions: an unsigned 64-bit value.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) enum Sizing {
    /// The bytes of a buffer.
    Sizeof(SmolStr),
    /// A free dimension, by its name: what the call's arrays have where an input's shape names it.
    Free(SmolStr),
    /// A constant.
    Absolute(u64),
    /// A word of an input, read when the call starts.
    FromInput(Object<Word>),
    /// Added up.
    Sum(Vec<Sizing>),
    /// Multiplied.
    Product(Vec<Sizing>),
    /// The first without the second, which is at most as large.
    Sub(Box<(Sizing, Sizing)>),
    /// The first divided by the second, rounded up.
    CeilDiv(Box<(Sizing, Sizing)>),
    /// The first divided by the second, rounded down.
    FloorDiv(Box<(Sizing, Sizing)>),
    /// What is left of the first when it is divided by the second.
    Mod(Box<(Sizing, Sizing)>),
    /// The smallest.
    Min(Vec<Sizing>),
    /// The largest.
    Max(Vec<Sizing>),
}

/// An unsigned 64-bit little-endian word of an input.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Word {
    /// The input.
    pub(crate) bufname: SmolStr,
    /// Which word, from 0.
    pub(crate) idx: u64,
}

/// A step of the control flow.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) enum Action {
    /// Launch a kernel: its name, its arguments, its launch configuration.
    ExecKernel(
        SmolStr,
        #[serde(deserialize_with = "at_most::<PARAMS, _, _>")] Vec<Argument>,
        Box<Object<Launch>>,
    ),
    /// Execute actions a number of times.
    Repeat(Sizing, Vec<Action>),
    /// Copy bytes between buffers.
    Copy(Object<Copy>),
    /// Set bytes of a buffer.
    Fill(Object<Fill>),
}

/// Grid, block and dynamic shared memory of a launch.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Launch {
    /// Blocks along x.
    pub(crate) grid_dim_x: Sizing,
    /// Blocks along y.
    pub(crate) grid_dim_y: Sizing,
    /// Blocks along z.
    pub(crate) grid_dim_z: Sizing,
    /// Threads of a block along x.
    pub(crate) block_dim_x: Sizing,
    /// Threads of a block along y.
    pub(crate) block_dim_y: Sizing,
    /// Threads of a block along z.
    pub(crate) block_dim_z: Sizing,
    /// Bytes of dynamic shared memory.
    pub(crate) shared_mem_bytes: Sizing,
    /// Blocks of a cluster along x; 1 by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) cluster_dim_x: Option<Sizing>,
    /// Blocks of a cluster along y; 1 by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) cluster_dim_y: Option<Sizing>,
    /// Blocks of a cluster along z; 1 by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) cluster_dim_z: Option<Sizing>,
}

/// Copies bytes from one place to another; the two may not overlap.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Copy {
    /// The buffer, input or weight to read.
    pub(crate) from: SmolStr,
    /// Where to start reading; 0 by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) from_offset: Option<Sizing>,
    /// The buffer or input to write.
    pub(crate) to: SmolStr,
    /// Where to start writing; 0 by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) to_offset: Option<Sizing>,
    /// How many bytes; all that follow `from_offset` by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) bytes: Option<Sizing>,
}

/// Sets bytes of a buffer.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Fill {
    /// The buffer or input to write.
    pub(crate) buffer: SmolStr,
    /// Where to start; 0 by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) offset: Option<Sizing>,
    /// How many bytes; all that follow `offset` by default.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) bytes: Option<Sizing>,
    /// The value of each.
    pub(crate) byte: u8,
}

/// An argument of a kernel.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) enum Argument {
    /// The address of a buffer, or of a byte in it.
    Ptr(NameOr<PointerAt>),
    /// The bytes of a buffer, as u64.
    Sizeof(SmolStr),
    /// A constant i64.
    Constant(i64),
    /// A signed 8-bit integer.
    I8(Integer),
    /// An unsigned 8-bit integer.
    U8(Integer),
    /// A signed 16-bit integer.
    I16(Integer),
    /// An unsigned 16-bit integer.
    U16(Integer),
    /// A signed 32-bit integer.
    I32(Integer),
    /// An unsigned 32-bit integer.
    U32(Integer),
    /// A signed 64-bit integer.
    I64(Integer),
    /// An unsigned 64-bit integer.
    U64(Integer),
    /// A 16-bit float of IEEE 754, rounded to the nearest.
    F16(f64),
    /// A bfloat16, rounded to the nearest.
    BF16(f64),
    /// A 32-bit float.
    F32(f64),
    /// A 64-bit float.
    F64(f64),
    /// A byte that is 0 or 1.
    Bool(bool),
    /// A struct passed by value.
    Struct(Box<Object<Struct>>),
    /// A tensor map passed by value, by which a kernel copies boxes of an array.
    TensorMap(Box<Object<TensorMap>>),
}

/// An array in a buffer, and the box of it that a kernel copies at once.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorMap {
    /// The buffer.
    pub(crate) buffer: SmolStr,
    /// Where in it the array starts; 0 by default, a multiple of 16.
    #[cfg_attr(test, schemars(with = "Sizing", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) offset: Option<Sizing>,
    /// The type of an element.
    pub(crate) dtype: DType,
    /// Elements along each of 1 to 5 dimensions, outermost first.
    pub(crate) shape: Vec<Sizing>,
    /// Bytes from one element to the next along each dimension but the last; multiples of 16.
    pub(crate) strides: Vec<Sizing>,
    /// Elements of the box along each dimension.
    pub(crate) r#box: Vec<u32>,
    /// How the box is arranged in shared memory; `none` by default.
    #[serde(default)]
    pub(crate) swizzle: Swizzle,
    /// What is read where the box lies beyond the array; `zero` by default.
    #[serde(default)]
    pub(crate) fill: BoxFill,
}

/// A byte of a buffer.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct PointerAt {
    /// The buffer.
    pub(crate) buffer: SmolStr,
    /// Bytes from its start.
    pub(crate) offset: Sizing,
}

/// A struct passed by value, laid out as C does on 64-bit Linux.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Struct {
    /// Its bytes; those no field covers are zero.
    pub(crate) size: u64,
    /// Its alignment; that of its most aligned field by default.
    #[cfg_attr(test, schemars(with = "u64", skip_serializing_if = "Option::is_none"))]
    #[serde(default, deserialize_with = "present")]
    pub(crate) align: Option<u64>,
    /// Its fields, in any order.
    pub(crate) fields: Vec<Object<Field>>,
}

/// A field of a struct.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Field {
    /// Bytes from the start of the struct; a multiple of the field's size.
    pub(crate) offset: u64,
    /// Any argument but `Struct`.
    pub(crate) value: Argument,
}

/// An integer as written, or a size.
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(untagged))]
pub(crate) enum Integer {
    /// A literal.
    Literal(i128),
    /// A size, which must fit the argument.
    Size(Sizing),
}

/// A name, or an object that says more.
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(untagged, rename = "{T}OrName"))]
pub(crate) enum NameOr<T> {
    /// Just the name.
    Name(SmolStr),
    /// The long form.
    Object(T),
}

/// A JSON object only: serde's derived code also takes the values without their keys, as a list, which
/// is no spelling of ours.
pub(crate) struct Object<T>(pub(crate) T);

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A JSON object in the order of the document, duplicates included: the resolver refuses those,
/// where serde's own maps would silently keep the last. It speaks of buffers, so it has at most as many keys.
pub(crate) struct Map<V>(pub(crate) Vec<(String, V)>);

impl<V> Default for Map<V> {
    fn default() -> Self {
        Map(Vec::new())
    }
}

// Read by hand, not by `#[serde(untagged)]`, which would forget where in the JSON it was.
impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntegerVisitor;
        impl<'de> Visitor<'de> for IntegerVisitor {
            type Value = Integer;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer or a size")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Integer, E> {
                Ok(Integer::Literal(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Integer, E> {
                Ok(Integer::Literal(value.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Integer, A::Error> {
                let size = Sizing::deserialize(MapAccessDeserializer::new(&mut map))?;
                match map.next_key::<IgnoredAny>()? {
                    None => Ok(Integer::Size(size)),
                    Some(_) => Err(de::Error::custom("a second key in a size, expected one")),
                }
            }
        }
        deserializer.deserialize_any(IntegerVisitor)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NameOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for NameOrVisitor<T> {
            type Value = NameOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or an object")
            }

            fn visit_str<E>(self, name: &str) -> Result<NameOr<T>, E> {
                Ok(NameOr::Name(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NameOr<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(NameOr::Object)
            }
        }
        deserializer.deserialize_any(NameOrVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Map<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for MapVisitor<V> {
            type Value = Map<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map<V>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == BUFFERS {
                        return Err(one_more(BUFFERS));
                    }
                    entries.push(entry);
                }
                Ok(Map(entries))
            }
        }
        deserializer.deserialize_map(MapVisitor(PhantomData))
    }
}

/// A list with a limit, kept while it is read: an entry takes many times the memory of its JSON.
fn at_most<'de, const MOST: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct ListVisitor<const MOST: usize, T>(PhantomData<T>);
    impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for ListVisitor<MOST, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = list.next_element()? {
                if entries.len() == MOST {
                    return Err(one_more(MOST));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }
    deserializer.deserialize_seq(ListVisitor::<MOST, T>(PhantomData))
}

fn one_more<E: de::Error>(most: usize) -> E {
    de::Error::custom(format_args!("one more entry, expected at most {most}"))
}

/// A key that may be left out, but is not `null` where it is there.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
impl<T: JsonSchema> JsonSchema for Object<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}

#[cfg(test)]
impl<V: JsonSchema> JsonSchema for Map<V> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        std::collections::BTreeMap::<String, V>::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        std::collections::BTreeMap::<String, V>::json_schema(generator)
    }
}
