//! Steps that run for each item of their inputs, whose outputs lie one behind the other then; and inputs that came in pieces.

use pappus_blueprint::compose::{Items, Step};
use pappus_proto::{Code, v1};

use super::value::{Joined, JoinedPlace, Piece, Uneven, Value};
use super::{Failed, IN_ANSWER_BYTES, Outputs, Run};

impl Run<'_> {
    /// Puts each input that came in several pieces into one: a step may take an input often, and a call has no more pieces than a
    /// client's.
    pub(super) async fn join(&mut self, inputs: &mut [Value]) -> Result<(), Failed> {
        for value in inputs.iter_mut().filter(|value| value.pieces.len() > 1) {
            let bytes = value.bytes();
            let memory = self.memory(bytes.max(1))?;
            let (from, to) = (value.clone(), memory.clone());
            self.on_thread(move || {
                let mut end = 0;
                from.read(|part| {
                    to.write(end, part)?;
                    end += part.len() as u64;
                    Ok(())
                })
            })
            .await?;
            value.pieces = vec![Piece::Own { memory, offset: 0, bytes }];
        }
        Ok(())
    }

    /// Runs one step; `kept` leaves the outputs that are used.
    pub(super) async fn step(
        &mut self,
        step: &Step,
        given: Outputs,
        kept: impl Fn(Outputs) -> Option<Outputs>,
    ) -> Result<Outputs, Failed> {
        let function = match self.own.get(&*step.function) {
            Some(function) => function.clone(),
            None => self.function_of(step).await?,
        };
        let Some(Items { count, inputs }) = &step.each else {
            let outputs = self.times(step, &function, given).await?;
            return kept(outputs).ok_or_else(|| self.gone(step));
        };
        let mut joined: Vec<(String, Joined)> = Vec::new();
        for nth in 0..*count {
            let item = |(name, value): &(String, Value)| match inputs.contains(name) {
                true => value.item(nth, *count).map(|item| (name.clone(), item)).ok_or_else(|| {
                    let message = format!("input {name} does not consist of {count} items");
                    Box::new(v1::Error::new(Code::InvalidArgument, message))
                }),
                false => Ok((name.clone(), value.clone())),
            };
            let item = given.iter().map(item).collect::<Result<Outputs, Failed>>()?;
            let outputs = self.times(step, &function, item).await?;
            let outputs = kept(outputs).ok_or_else(|| self.gone(step))?;
            if nth == 0 {
                joined = self.joined(&outputs, *count)?;
            }
            for ((name, joined), (_, value)) in joined.iter_mut().zip(outputs) {
                let added = self.copying(value.bytes(), || joined.add(nth, &value)).await;
                let written = added.map_err(|Uneven| {
                    let message = format!("the items have different sizes or shapes in output {name}");
                    Box::new(v1::Error::new(Code::InvalidArgument, message))
                })?;
                written.map_err(|why| self.not_written(why))?;
            }
        }
        Ok(joined.into_iter().map(|(name, joined)| (name, joined.value())).collect())
    }

    /// Room for so many items like the first ones, which the caller is charged for: in messages where all outputs together are few
    /// bytes, else in one memory.
    fn joined(&mut self, first: &Outputs, count: u64) -> Result<Vec<(String, Joined)>, Failed> {
        let total = |value: &Value| value.bytes().saturating_mul(count);
        let all = first.iter().map(|(_, value)| total(value)).fold(0u64, u64::saturating_add);
        let memory = (all > IN_ANSWER_BYTES).then(|| self.memory(all)).transpose()?;
        let mut end = 0;
        let joined = first.iter().map(|(name, value)| {
            let place = match &memory {
                Some(memory) => JoinedPlace::Own(memory.clone(), end),
                None => {
                    JoinedPlace::Inline(Vec::with_capacity(total(value) as usize), self.taken(total(value))?)
                }
            };
            end += total(value);
            Ok((name.clone(), Joined::new(value, count, place)))
        });
        joined.collect()
    }
}
