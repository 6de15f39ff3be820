//! The JSON as written: one type per form, nothing checked that one value alone does not show. What is declared here is what
//! `read` reads, and what `docs/blueprint.schema.json` says: the doc comments are its descriptions.
//!
//! Where a part of an object could not be read, the rest of it is there still: it may have mistakes of its own. Steps lie in one
//! block of memory with their names, as long as those are short: of many small blocks that are freed at once, the allocator
//! would keep most.

#[cfg(test)]
use schemars::JsonSchema;
use smol_str::SmolStr;

use crate::cursor::Kind;
use crate::error::Path;
use crate::limits::{BUFFERS, INPUTS, KERNELS, OUTPUTS, PARAMS};
use crate::read::{Json, List, Map, Read, object, one_of};
use crate::types::{BoxFill, DType, Isolation, Swizzle};
use crate::write::{self, Write};

object! {
    /// A function: modules, kernels and the blueprint that runs them. Has either `module_path` or
    /// `modules`.
    Config, "a configuration" {
        /// Where this schema is, for editors; Pappus does not read it.
        may "$schema" _schema: String,
        /// The only module; kernels are then listed by name.
        may "module_path" module_path: String,
        /// The modules; every kernel then names its module.
        may "modules" modules: List<Module>,
        /// The kernels that the blueprint may launch.
        part "kernels" kernels: List<NameOr<Kernel>, KERNELS>,
        /// Files of the weights, by name.
        may "weight_files" weight_files: Map<String>,
        /// Whether calls may run in a worker that tenants share; `auto` by default.
        may "isolation" isolation: Isolation,
        /// Buffers and control flow.
        part "blueprint" blueprint: Blueprint,
    }
}

object! {
    /// A file of compiled kernels.
    Module, "a module" {
        /// The name kernels refer to it by.
        need "module_name" module_name: String,
        /// The file.
        need "path" path: String,
    }
}

object! {
    /// A kernel of one of several modules.
    Kernel, "a kernel" {
        /// The module it is in.
        need "module_name" module_name: String,
        /// Its symbol in the module.
        need "kernel_name" kernel_name: String,
        /// The name the blueprint launches it by; its symbol by default.
        may "alias" alias: String,
    }
}

object! {
    /// Which buffers, which launches, in which order.
    Blueprint, "a blueprint" {
        /// Buffers whose contents come with the call.
        part "inputs" inputs: List<String, INPUTS>,
        /// Constant buffers that belong to the function; kernels may only read them.
        may "weights" weights: List<String, BUFFERS>,
        /// Buffers that stay from one call of a session to the next, zeroed when it begins, and their size in bytes, which is the
        /// same for every call.
        may "state" state: Map<Sizing>,
        /// Further buffers, zeroed when a call starts, and their size in bytes.
        part "buffers" buffers: Map<Sizing>,
        /// Buffers (or inputs) whose contents are the result.
        part "outputs" outputs: List<String, OUTPUTS>,
        /// Sizes that others name: each is computed once.
        may "sizes" sizes: Map<Sizing>,
        /// What to execute, in order.
        part "control_flow" control_flow: List<Action>,
        /// Element type and shape of inputs, weights and buffers, by name.
        may "types" types: Map<Type>,
        /// Calls of one caller that wait at the same time may run together, side by side.
        may "batch" batch: Batch,
    }
}

object! {
    /// How calls may run together.
    Batch, "a batch" {
        /// The free dimension along which they are put side by side: the first one of every input and output.
        need "dimension" dimension: String,
        /// The most items along that dimension that calls may have together, from 2.
        need "most" most: u64,
        /// How long a call waits for others that would join it, in microseconds; by default not at all.
        may "delay_us" delay_us: u64,
    }
}

object! {
    /// What a buffer holds.
    Type, "a type" {
        /// The type of an element.
        need "dtype" dtype: DType,
        /// Elements along each dimension, outermost first; one dimension as long as the buffer by
        /// default. In the shape of an input, `Free` leaves a dimension to the call.
        may "shape" shape: List<Sizing>,
    }
}

one_of! {
    /// A number of bytes, blocks, threads or repetitions: an unsigned 64-bit value. A number is itself.
    #[cfg_attr(test, schemars(transform = or_number))]
    Sizing, "a size", r#"a size such as 12, {"Sizeof": "A"}, {"Free": "n"} or {"CeilDiv": [size, 256]}"# {
        /// The bytes of a buffer.
        Sizeof(SmolStr),
        /// One of `sizes`.
        Size(SmolStr),
        /// A free dimension, by its name: what the call's arrays have where an input's shape names it.
        Free(SmolStr),
        /// A constant, as a number alone is.
        Absolute(u64),
        /// A word of an input, read when the call starts.
        FromInput(Word),
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
}

impl Read for Sizing {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        match json.peek()? {
            Kind::Number => u64::read(json, place).map(Self::Absolute),
            _ => Self::of_key(json, place),
        }
    }
}

object! {
    /// An unsigned 64-bit little-endian word of an input.
    Word, "a word of an input" {
        /// The input.
        need "bufname" bufname: SmolStr,
        /// Which word, from 0.
        need "idx" idx: u64,
    }
}

one_of! {
    /// A step of the control flow.
    Action, "a step", r#"a step such as {"ExecKernel": ["kernel", [arguments], {launch}]} or {"Repeat": [size, [steps]]}"# {
        /// Launch a kernel: its name, its arguments, its launch configuration.
        ExecKernel(Exec),
        /// Execute actions a number of times.
        Repeat(Repeat),
        /// Copy bytes between buffers.
        Copy(Copy),
        /// Set bytes of a buffer.
        Fill(Fill),
    }
}

impl Read for Action {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        Self::of_key(json, place)
    }
}

/// What a kernel is launched with.
pub(crate) struct Exec {
    pub(crate) kernel: Option<SmolStr>,
    pub(crate) arguments: Option<List<Argument, PARAMS>>,
    pub(crate) launch: Option<Box<Launch>>,
}

impl Read for Exec {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let mut exec = Self { kernel: None, arguments: None, launch: None };
        json.fixed(
            3,
            place,
            r#"a list of 3: ["kernel", [arguments], {launch}]"#,
            |json, at, place| match at {
                0 => exec.kernel = Read::read(json, place),
                1 => exec.arguments = Read::read(json, place),
                _ => exec.launch = Read::read(json, place),
            },
        )?;
        Some(exec)
    }
}

impl Write for Exec {
    fn write(&self, out: &mut String) {
        let Self { kernel: Some(kernel), arguments: Some(arguments), launch: Some(launch) } = self else {
            return out.push_str("null");
        };
        write::entries(&[kernel, arguments, launch], out);
    }
}

/// Actions, and how many times.
pub(crate) struct Repeat {
    pub(crate) count: Option<Sizing>,
    pub(crate) body: Option<List<Action>>,
}

impl Read for Repeat {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let mut repeat = Self { count: None, body: None };
        json.fixed(2, place, "a list of 2: [size, [steps]]", |json, at, place| match at {
            0 => repeat.count = Read::read(json, place),
            _ => repeat.body = Read::read(json, place),
        })?;
        Some(repeat)
    }
}

impl Write for Repeat {
    fn write(&self, out: &mut String) {
        let Self { count: Some(count), body: Some(body) } = self else { return out.push_str("null") };
        write::entries(&[count, body], out);
    }
}

object! {
    /// Grid, block and dynamic shared memory of a launch.
    Launch, "a launch" {
        /// Blocks along x.
        part "grid_dim_x" grid_dim_x: Sizing,
        /// Blocks along y; 1 by default.
        may "grid_dim_y" grid_dim_y: Sizing,
        /// Blocks along z; 1 by default.
        may "grid_dim_z" grid_dim_z: Sizing,
        /// Threads of a block along x.
        part "block_dim_x" block_dim_x: Sizing,
        /// Threads of a block along y; 1 by default.
        may "block_dim_y" block_dim_y: Sizing,
        /// Threads of a block along z; 1 by default.
        may "block_dim_z" block_dim_z: Sizing,
        /// Bytes of dynamic shared memory; 0 by default.
        may "shared_mem_bytes" shared_mem_bytes: Sizing,
        /// Blocks of a cluster along x; 1 by default.
        may "cluster_dim_x" cluster_dim_x: Sizing,
        /// Blocks of a cluster along y; 1 by default.
        may "cluster_dim_y" cluster_dim_y: Sizing,
        /// Blocks of a cluster along z; 1 by default.
        may "cluster_dim_z" cluster_dim_z: Sizing,
    }
}

object! {
    /// Copies bytes from one place to another; the two may not overlap.
    Copy, "a copy" {
        /// The buffer, input or weight to read.
        need "from" from: SmolStr,
        /// Where to start reading; 0 by default.
        may "from_offset" from_offset: Sizing,
        /// The buffer or input to write.
        need "to" to: SmolStr,
        /// Where to start writing; 0 by default.
        may "to_offset" to_offset: Sizing,
        /// How many bytes; all that follow `from_offset` by default.
        may "bytes" bytes: Sizing,
    }
}

object! {
    /// Sets bytes of a buffer.
    Fill, "a fill" {
        /// The buffer or input to write.
        need "buffer" buffer: SmolStr,
        /// Where to start; 0 by default.
        may "offset" offset: Sizing,
        /// How many bytes; all that follow `offset` by default.
        may "bytes" bytes: Sizing,
        /// The value of each.
        need "byte" byte: u8,
    }
}

one_of! {
    /// An argument of a kernel.
    Argument, "an argument", r#"an argument such as {"Ptr": "A"}, {"I64": 4} or {"F32": 0.5}"# {
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
        Struct(Box<Struct>),
        /// A tensor map passed by value, by which a kernel copies boxes of an array.
        TensorMap(Box<TensorMap>),
    }
}

impl Read for Argument {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        Self::of_key(json, place)
    }
}

object! {
    /// An array in a buffer, and the box of it that a kernel copies at once.
    TensorMap, "a tensor map" {
        /// The buffer.
        need "buffer" buffer: SmolStr,
        /// Where in it the array starts; 0 by default, a multiple of 16.
        may "offset" offset: Sizing,
        /// The type of an element.
        need "dtype" dtype: DType,
        /// Elements along each of 1 to 5 dimensions, outermost first.
        need "shape" shape: Vec<Sizing>,
        /// Bytes from one element to the next along each dimension but the last; multiples of 16.
        need "strides" strides: Vec<Sizing>,
        /// Elements of the box along each dimension.
        need "box" box_shape: Vec<u32>,
        /// How the box is arranged in shared memory; `none` by default.
        may "swizzle" swizzle: Swizzle,
        /// What is read where the box lies beyond the array; `zero` by default.
        may "fill" fill: BoxFill,
    }
}

object! {
    /// A byte of a buffer.
    PointerAt, "a place in a buffer" {
        /// The buffer.
        need "buffer" buffer: SmolStr,
        /// Bytes from its start.
        need "offset" offset: Sizing,
    }
}

object! {
    /// A struct passed by value, laid out as C does on 64-bit Linux.
    Struct, "a struct" {
        /// Its bytes; those no field covers are zero.
        need "size" size: u64,
        /// Its alignment; that of its most aligned field by default.
        may "align" align: u64,
        /// Its fields, in any order.
        need "fields" fields: Vec<Field>,
    }
}

object! {
    /// A field of a struct.
    Field, "a field" {
        /// Bytes from the start of the struct; a multiple of the field's size.
        need "offset" offset: u64,
        /// Any argument but `Struct`.
        need "value" value: Argument,
    }
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

impl Read for Integer {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        match json.peek()? {
            // Whether it fits its argument is the resolver's to say.
            Kind::Number => json.integer(place, (i128::MIN, i128::MAX)).map(Self::Literal),
            Kind::Object => Sizing::read(json, place).map(Self::Size),
            other => json.unlike(other, place, r#"a whole number, or a size such as {"Sizeof": "A"}"#),
        }
    }
}

impl Write for Integer {
    fn write(&self, out: &mut String) {
        match self {
            Self::Literal(value) => value.write(out),
            Self::Size(size) => size.write(out),
        }
    }
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

impl<T: Read> Read for NameOr<T> {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        match json.peek()? {
            Kind::Text => SmolStr::read(json, place).map(Self::Name),
            Kind::Object => T::read(json, place).map(Self::Object),
            other => json.unlike(other, place, "a name in double quotes, or an object"),
        }
    }
}

impl<T: Write> Write for NameOr<T> {
    fn write(&self, out: &mut String) {
        match self {
            Self::Name(name) => name.write(out),
            Self::Object(object) => object.write(out),
        }
    }
}

impl Read for DType {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        json.choice(place, "type of an element", Self::ALL.into_iter().map(|dtype| (dtype.name(), dtype)))
    }
}

impl Write for DType {
    fn write(&self, out: &mut String) {
        write::quoted(self.name(), out);
    }
}

impl Read for Isolation {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        let named = Isolation::ALL.map(|isolation| (isolation.name(), isolation));
        json.choice(place, "isolation", named.into_iter())
    }
}

impl Write for Isolation {
    fn write(&self, out: &mut String) {
        write::quoted(self.name(), out);
    }
}

/// Every swizzle, by its name.
const SWIZZLES: [(&str, Swizzle); 4] = [
    ("none", Swizzle::None),
    ("32B", Swizzle::Bytes32),
    ("64B", Swizzle::Bytes64),
    ("128B", Swizzle::Bytes128),
];

impl Read for Swizzle {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        json.choice(place, "swizzle", SWIZZLES.into_iter())
    }
}

impl Write for Swizzle {
    fn write(&self, out: &mut String) {
        write::word(self, &SWIZZLES, out);
    }
}

/// What is read beyond an array, by its name.
const FILLS: [(&str, BoxFill); 2] = [("zero", BoxFill::Zero), ("nan", BoxFill::Nan)];

impl Read for BoxFill {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        json.choice(place, "fill", FILLS.into_iter())
    }
}

impl Write for BoxFill {
    fn write(&self, out: &mut String) {
        write::word(self, &FILLS, out);
    }
}

#[cfg(test)]
fn or_number(schema: &mut schemars::Schema) {
    let number = serde_json::json!({"description": "A constant.", "type": "integer", "format": "uint64", "minimum": 0});
    crate::read::schema::or(schema, number);
}

#[cfg(test)]
impl JsonSchema for Exec {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Exec".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <(String, Vec<Argument>, Launch)>::json_schema(generator)
    }
}

#[cfg(test)]
impl JsonSchema for Repeat {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Repeat".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <(Sizing, Vec<Action>)>::json_schema(generator)
    }
}
