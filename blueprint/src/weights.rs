//! What the bytes of the weights alone decide, before any call: sizes, shapes and steps that are wrong whatever a call
//! brings. A function with such weights is refused when it is registered.

use crate::blueprint::{Blueprint, Buffer, BufferId, Step, place_of_step};
use crate::error::{Error, Path};
use crate::launch;
use crate::size::{Node, SizeId};

/// A size, as far as the weights decide it.
#[derive(Clone, Copy)]
enum Settled {
    Value(u64),
    /// A call decides.
    Open,
    /// The size has no value in any call, because of this innermost size.
    Never(SizeId),
}

/// All sizes of a blueprint.
struct Sizes<'a> {
    blueprint: &'a Blueprint,
    all: Vec<Settled>,
}

impl Blueprint {
    /// Refuses weights of so many bytes, in the order of [`Blueprint::weights`], if no call of the function can be planned
    /// with them.
    pub fn check_weights(&self, weight_bytes: &[u64]) -> Result<(), Error> {
        self.weight_layout(weight_bytes)?;
        let sizes = Sizes::settle(self, weight_bytes);
        self.buffers.iter().try_for_each(|buffer| sizes.check_buffer(buffer))?;
        // Steps inside of a repetition may be repeated zero times.
        let mut at = 0;
        while at < self.steps.len() {
            sizes.check_step(at)?;
            at += match self.steps[at] {
                Step::Repeat { body, .. } => body as usize + 1,
                _ => 1,
            };
        }
        Ok(())
    }
}

impl<'a> Sizes<'a> {
    fn settle(blueprint: &'a Blueprint, weight_bytes: &[u64]) -> Self {
        let nodes = blueprint.sizes.nodes();
        let mut all: Vec<Settled> = Vec::with_capacity(nodes.len());
        for node in nodes {
            all.push(match *node {
                Node::Const(value) => Settled::Value(value),
                Node::Weight(weight) => Settled::Value(weight_bytes[weight as usize]),
                Node::Input(_) | Node::Word(_) | Node::Free(_) => Settled::Open,
                Node::Binary(op, a, b) => match (all[a.index()], all[b.index()]) {
                    (Settled::Never(why), _) | (_, Settled::Never(why)) => Settled::Never(why),
                    (Settled::Value(left), Settled::Value(right)) => match op.apply(left, right) {
                        Some(value) => Settled::Value(value),
                        None => Settled::Never(blueprint.sizes.id(all.len())),
                    },
                    _ => Settled::Open,
                },
            });
        }
        Self { blueprint, all }
    }

    /// A size that every call needs: its value, none where a call decides.
    fn get(&self, id: SizeId) -> Result<Option<u64>, Error> {
        match self.all[id.index()] {
            Settled::Value(value) => Ok(Some(value)),
            Settled::Open => Ok(None),
            Settled::Never(why) => Err(self.explain(why)),
        }
    }

    #[cold]
    fn explain(&self, id: SizeId) -> Error {
        let table = &self.blueprint.sizes;
        let message = match table.nodes()[id.index()] {
            Node::Binary(op, a, b) => match (self.all[a.index()], self.all[b.index()]) {
                (Settled::Value(a), Settled::Value(b)) => op.complaint(a, b),
                _ => "a size without a value".to_owned(),
            },
            _ => "a size without a value".to_owned(),
        };
        Error::new(table.place(id), message + WITH_THESE)
    }

    fn check_buffer(&self, buffer: &Buffer) -> Result<(), Error> {
        let bytes = self.get(buffer.size)?;
        let Some(dtype) = buffer.dtype else { return Ok(()) };
        // What is known of its shape divides its bytes.
        let (mut needed, mut open) = (dtype.bytes(), buffer.shape.is_none());
        for &dim in buffer.shape.iter().flatten() {
            match self.get(dim)? {
                Some(value) => needed = needed.saturating_mul(value),
                None => open = true,
            }
        }
        let Some(bytes) = bytes else { return Ok(()) };
        // Nothing but 0 is a multiple of 0.
        let fits = if open { bytes.is_multiple_of(needed) } else { bytes == needed };
        if fits {
            return Ok(());
        }
        let multiple = if open { "a multiple of " } else { "" };
        let message =
            format!("the buffer has {bytes} bytes, expected {multiple}{needed} for its type and shape");
        Err(Path::Root.key("blueprint").key("types").key(&buffer.name).error(message + WITH_THESE))
    }

    fn check_step(&self, at: usize) -> Result<(), Error> {
        match self.blueprint.steps[at] {
            Step::Launch { dims, .. } => {
                for (key, &dim) in dims.iter().enumerate() {
                    let Some(value) = self.get(dim)? else { continue };
                    launch::check(key, value).map_err(|why| {
                        self.wrong(at, &format!("ExecKernel[2].{}", launch::KEYS[key]), &why.to_string())
                    })?;
                }
                Ok(())
            }
            Step::Copy { from, from_offset, to, to_offset, bytes } => {
                let bytes = match bytes {
                    Some(bytes) => self.get(bytes)?,
                    None => self.left(from, from_offset)?,
                };
                self.check_range(at, from, from_offset, bytes, "Copy.from")?;
                self.check_range(at, to, to_offset, bytes, "Copy.to")
            }
            Step::Fill { buffer, offset, bytes, .. } => {
                let bytes = bytes.map_or(Ok(None), |bytes| self.get(bytes))?;
                self.check_range(at, buffer, offset, bytes, "Fill.buffer")
            }
            Step::Repeat { count, .. } => self.get(count).map(drop),
        }
    }

    /// Bytes of a buffer behind an offset, where both are known.
    fn left(&self, buffer: BufferId, offset: SizeId) -> Result<Option<u64>, Error> {
        let size = self.get(self.blueprint.buffers[buffer.index()].size)?;
        Ok(self.get(offset)?.zip(size).and_then(|(offset, size)| size.checked_sub(offset)))
    }

    /// Checks that so many bytes from an offset on lie inside their buffer, as far as that is known.
    fn check_range(
        &self,
        at: usize,
        buffer: BufferId,
        offset: SizeId,
        bytes: Option<u64>,
        key: &str,
    ) -> Result<(), Error> {
        let Some(size) = self.get(self.blueprint.buffers[buffer.index()].size)? else { return Ok(()) };
        let (offset, bytes) = (self.get(offset)?.unwrap_or(0), bytes.unwrap_or(0));
        if offset.checked_add(bytes).is_some_and(|end| end <= size) {
            return Ok(());
        }
        let name = &self.blueprint.buffers[buffer.index()].name;
        Err(self.wrong(at, key, &format!("{bytes} bytes from {offset} on, but {name:?} has {size}")))
    }

    fn wrong(&self, at: usize, key: &str, why: &str) -> Error {
        let place = place_of_step(&self.blueprint.steps, at);
        Error::new(format!("{place}.{key}"), format!("{why}{WITH_THESE}"))
    }
}

/// What every message ends in.
const WITH_THESE: &str = ", in every call with weights of these sizes";

#[cfg(test)]
mod tests {
    use crate::parse;

    /// A function with weights `W` and `V`, which are copied from.
    fn check(types: &str, buffers: &str, steps: &str, weight_bytes: &[u64; 2]) -> Result<(), String> {
        let json = format!(
            r#"{{"module_path": "m", "kernels": ["k"], "blueprint": {{"inputs": ["A"], "weights": ["W", "V"],
                "buffers": {{{buffers}}}, "outputs": [], "types": {{{types}}}, "control_flow": [{steps}]}}}}"#
        );
        let blueprint = parse(json.as_bytes()).unwrap();
        blueprint.check_weights(weight_bytes).map_err(|why| format!("{}: {}", why.path, why.message))
    }

    fn typed(shape: &str) -> String {
        format!(r#""W": {{"dtype": "f32", "shape": [{shape}]}}"#)
    }

    const FREE: &str = r#", "A": {"dtype": "u8", "shape": [{"Free": "n"}]}"#;

    #[test]
    fn declared_shapes_decide_the_bytes_of_weights() {
        let fixed = typed(r#"{"Absolute": 2}, {"Absolute": 3}"#);
        assert_eq!(check(&fixed, "", "", &[24, 0]), Ok(()));
        let why = check(&fixed, "", "", &[20, 0]).unwrap_err();
        assert!(
            why.starts_with("blueprint.types.W: the buffer has 20 bytes, expected 24 for its type"),
            "{why}"
        );
        // By another one's size.
        let computed = typed(r#"{"CeilDiv": [{"Sizeof": "V"}, {"Absolute": 8}]}"#);
        assert_eq!(check(&computed, "", "", &[8, 16]), Ok(()));
        assert!(check(&computed, "", "", &[8, 24]).unwrap_err().contains("expected 12"));
        // Any number of elements, but whole ones.
        let any = r#""W": {"dtype": "f32"}"#;
        assert_eq!(check(any, "", "", &[24, 0]), Ok(()));
        assert!(check(any, "", "", &[23, 0]).unwrap_err().contains("expected a multiple of 4"));
    }

    #[test]
    fn what_a_call_decides_is_left_to_it() {
        let rows = typed(r#"{"Free": "n"}, {"Absolute": 3}"#) + FREE;
        assert_eq!(check(&rows, "", "", &[24, 0]), Ok(()));
        assert_eq!(check(&rows, "", "", &[36, 0]), Ok(()));
        assert!(check(&rows, "", "", &[28, 0]).unwrap_err().contains("expected a multiple of 12"));
        let of_input = typed(r#"{"Sizeof": "A"}"#);
        assert_eq!(check(&of_input, "", "", &[4, 0]), Ok(()));
    }

    #[test]
    fn sizes_that_never_have_a_value_are_refused() {
        let behind = r#""B": {"Sub": [{"Sizeof": "W"}, {"Absolute": 100}]}"#;
        assert_eq!(check("", behind, "", &[100, 0]), Ok(()));
        let why = check("", behind, "", &[99, 0]).unwrap_err();
        assert!(why.starts_with("blueprint.buffers.B") && why.contains("99 − 100 is negative"), "{why}");
        let rest = r#""B": {"Sum": [{"Sizeof": "A"}, {"FloorDiv": [{"Absolute": 8}, {"Sizeof": "W"}]}]}"#;
        assert!(check("", rest, "", &[0, 0]).unwrap_err().contains("divided by zero"));
    }

    #[test]
    fn steps_that_every_call_takes_are_looked_at() {
        let buffer = r#""B": {"Absolute": 16}"#;
        let copy = r#"{"Copy": {"from": "W", "to": "B"}}"#;
        assert_eq!(check("", buffer, copy, &[16, 0]), Ok(()));
        let why = check("", buffer, copy, &[17, 0]).unwrap_err();
        assert!(
            why.starts_with("blueprint.control_flow[0].Copy.to: 17 bytes from 0 on, but \"B\" has 16"),
            "{why}"
        );
        // It may be repeated zero times.
        let repeated = format!(r#"{{"Repeat": [{{"Sizeof": "A"}}, [{copy}]]}}"#);
        assert_eq!(check("", buffer, &repeated, &[17, 0]), Ok(()));
        let one = r#"{"Absolute": 1}"#;
        let keys = "grid_dim_y grid_dim_z block_dim_x block_dim_y block_dim_z shared_mem_bytes";
        let rest: Vec<String> = keys.split(' ').map(|key| format!(r#""{key}": {one}"#)).collect();
        let grid = r#"{"CeilDiv": [{"Sizeof": "W"}, {"Absolute": 4}]}"#;
        let launch = format!(r#"{{"ExecKernel": ["k", [], {{"grid_dim_x": {grid}, {}}}]}}"#, rest.join(", "));
        assert_eq!(check("", buffer, &launch, &[1, 0]), Ok(()));
        let why = check("", buffer, &launch, &[0, 0]).unwrap_err();
        assert!(why.starts_with("blueprint.control_flow[0].ExecKernel[2].grid_dim_x"), "{why}");
    }
}
