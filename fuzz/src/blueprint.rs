//! A function's JSON, and the sizes of a call of it: what is accepted keeps what the planner promises.

use pappus_blueprint::limits::{
    BLOCK_THREADS, BUFFER_ALIGN, CLUSTER_BLOCKS, EXPANDED_STEPS, MEMORY_BYTES, SHARING_BUFFERS,
};
use pappus_blueprint::{Array, Blueprint, Known, Placement, Plan, Sizes, Space, Step, describe, parse};

/// Steps that are looked at one by one; a plan of more is only counted.
const LOOKED_AT: u64 = 4096;

/// JSON up to the first zero byte; behind it sizes of inputs, then of weights, then words and shapes of
/// inputs, a byte or nine each.
pub fn read(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (json, rest) = bytes.split_at(end);
    let blueprint = match parse(json) {
        Ok(blueprint) => blueprint,
        Err(mistakes) => return assert!(!mistakes.to_string().is_empty()),
    };
    let mut numbers = Numbers(rest.get(1..).unwrap_or_default());
    let inputs: Vec<_> = blueprint.inputs().iter().map(|_| numbers.next(64)).collect();
    let weights: Vec<_> = blueprint.weights().iter().map(|_| numbers.next(8)).collect();
    let words: Vec<_> = blueprint.words().iter().map(|_| numbers.next(4)).collect();
    let types = blueprint.input_types();
    let shapes: Vec<Vec<u64>> = types
        .iter()
        .map(|declared| {
            declared.iter().flat_map(|d| d.shape.iter().flatten()).map(|_| numbers.next(4)).collect()
        })
        .collect();
    let array = |at: usize| {
        let declared = types[at].as_ref().filter(|declared| declared.shape.is_some());
        declared.map(|declared| Array { dtype: declared.dtype, shape: &shapes[at] })
    };
    let free = match blueprint.bind(&inputs, array) {
        Ok(free) => free,
        Err((at, why)) => {
            assert!(at < inputs.len() && !why.to_string().is_empty());
            blueprint.free_dimensions().iter().map(|_| numbers.next(4)).collect()
        }
    };
    assert_eq!(free.len(), blueprint.free_dimensions().len());
    let sizes = Sizes { inputs: &inputs, weights: &weights, words: &words, free: &free };
    let planned = blueprint.plan(&sizes);
    match &planned {
        Ok(plan) => {
            check(&blueprint, &sizes, plan);
            for (at, array) in (0..inputs.len()).filter_map(|at| Some((at, array(at)?))) {
                let _ = blueprint.check_planned(plan, at, &array);
            }
        }
        Err(error) => assert!(!error.message.is_empty()),
    }
    let names = |ids: &[pappus_blueprint::BufferId], bytes: &[u64]| {
        let name = |id: &pappus_blueprint::BufferId| blueprint.buffers()[id.index()].name.clone();
        ids.iter().map(name).zip(bytes.iter().copied()).collect()
    };
    let known = Known {
        inputs: names(blueprint.inputs(), &inputs),
        weights: names(blueprint.weights(), &weights),
        words: Default::default(),
        free: blueprint
            .free_dimensions()
            .iter()
            .map(|name| name.to_string())
            .zip(free.iter().copied())
            .collect(),
    };
    let described = describe(&blueprint, &known).expect("it names only what there is");
    if let (Ok(plan), true) = (planned, words.is_empty()) {
        assert_eq!(described.pool_bytes.value(), Some(plan.pool_bytes));
        assert!(described.unshared_pool_bytes.value() >= Some(plan.pool_bytes));
    }
}

/// Small numbers are one byte; 255 is followed by eight bytes of a large one.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self, usual: u64) -> u64 {
        let Some((&first, rest)) = self.0.split_first() else { return usual };
        self.0 = rest;
        match (first, rest.split_first_chunk::<8>()) {
            (255, Some((large, rest))) => {
                self.0 = rest;
                u64::from_le_bytes(*large)
            }
            (small, _) => u64::from(small) * 8,
        }
    }
}

/// No two of these overlap.
fn apart(mut placed: Vec<&Placement>) {
    placed.sort_by_key(|at| at.offset);
    assert!(placed.windows(2).all(|pair| pair[0].offset + pair[0].bytes <= pair[1].offset));
}

fn check(blueprint: &Blueprint, sizes: &Sizes<'_>, plan: &Plan) {
    assert!(plan.pool_bytes.is_multiple_of(BUFFER_ALIGN) && plan.pool_bytes <= MEMORY_BYTES);
    assert!(plan.expanded_steps <= EXPANDED_STEPS + SHARING_BUFFERS as u64);
    assert!(plan.launches <= plan.expanded_steps);
    for word in blueprint.words() {
        assert!((word.index + 1) * 8 <= sizes.inputs[word.input as usize]);
    }
    let weights = blueprint.weight_layout(sizes.weights).expect("the plan was made with them");
    let end_of = |space| if space == Space::Pool { plan.pool_bytes } else { weights.total };
    for space in [Space::Pool, Space::Weights] {
        let placed = plan.buffers.iter().filter(|at| at.space == space && at.bytes > 0);
        assert!(placed.clone().all(|at| at.offset + at.bytes <= end_of(space)));
        let own_bytes: u64 = placed.clone().map(|at| at.bytes.next_multiple_of(BUFFER_ALIGN)).sum();
        if space == Space::Weights || own_bytes == plan.pool_bytes {
            apart(placed.collect());
        }
    }
    // Whatever shares memory with others: all inputs are there when a call starts, and all outputs when it ends.
    for ids in [blueprint.inputs(), blueprint.outputs()] {
        apart(ids.iter().map(|id| &plan.buffers[id.index()]).filter(|at| at.bytes > 0).collect());
    }
    for relocation in &plan.params.relocations {
        assert!((relocation.slot as usize) < plan.params.slots.len());
        assert!(relocation.addend <= end_of(relocation.space));
    }
    for map in &plan.params.tensor_maps {
        assert!(map.slot as usize + 16 <= plan.params.slots.len() && !map.shape.is_empty());
        assert!(map.strides.len() + 1 == map.shape.len() && map.box_shape.len() == map.shape.len());
        assert!(map.at.offset < end_of(map.at.space));
    }
    if plan.expanded_steps > LOOKED_AT {
        return;
    }
    let (mut launches, mut steps) = (0, 0);
    for step in plan.expanded() {
        steps += 1;
        match step {
            Step::Launch { grid, block, cluster, params, .. } => {
                launches += 1;
                let threads: u64 = block.iter().map(|side| u64::from(*side)).product();
                assert!(!grid.contains(&0) && (1..=BLOCK_THREADS).contains(&threads));
                let whole = grid.iter().zip(cluster).all(|(grid, side)| *side > 0 && grid % side == 0);
                assert!(whole && cluster.iter().product::<u32>() <= CLUSTER_BLOCKS as u32);
                let params = &plan.params.params[params.start as usize..params.end as usize];
                let end = |param: &pappus_blueprint::Param| param.slot + param.bytes.div_ceil(8);
                assert!(params.iter().all(|param| end(param) as usize <= plan.params.slots.len()));
            }
            Step::Copy { from, to, bytes } => {
                assert!(from.offset + bytes <= end_of(from.space) && to + bytes <= plan.pool_bytes);
            }
            Step::Fill { offset, bytes, .. } => assert!(offset + bytes <= plan.pool_bytes),
            Step::Repeat { .. } => unreachable!("it is expanded"),
        }
    }
    assert_eq!((launches, steps), (plan.launches, plan.expanded_steps));
}
