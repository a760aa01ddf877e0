//! The same operations on a system and on the model, and the shortest list that still distinguishes them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::call::{Answer, Call, Errno, Outcome, System, agree};
use crate::model::Model;
use crate::random::{Generator, Mix};
use crate::tree::snapshot;

/// A system that a runner can restart and examine.
pub trait Subject: System {
    /// Ends and starts the system: in order, or as if its process had been killed.
    fn restart(&mut self, _orderly: bool) -> Result<(), String> {
        Ok(())
    }

    /// Whether a restart drops the files that are held.
    fn restarts(&self) -> bool {
        false
    }

    /// Examines the system from outside.
    fn examine(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// One step of a run.
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// An operation; its answers are compared.
    Do(Call),
    /// The whole trees are compared.
    Compare,
    /// The system is restarted, and the trees are compared.
    Restart {
        /// Whether it ends in order, or is killed.
        orderly: bool,
    },
}

impl fmt::Debug for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Do(operation) => operation.fmt(formatter),
            Step::Compare => formatter.write_str("compare"),
            Step::Restart { orderly: true } => formatter.write_str("close and open"),
            Step::Restart { orderly: false } => formatter.write_str("kill and open"),
        }
    }
}

/// Steps of a seed: `count` operations, with a comparison and now and then a restart in between.
pub fn steps(seed: u64, mix: &Mix, count: usize) -> Vec<Step> {
    let mut generator = Generator::new(seed, mix);
    let mut steps = Vec::with_capacity(count + count / 40);
    for index in 1..=count {
        steps.push(Step::Do(generator.operation()));
        if index % 400 == 0 {
            let orderly = generator.number().is_multiple_of(2);
            steps.push(Step::Restart { orderly });
        } else if index % 50 == 0 {
            steps.push(Step::Compare);
        }
    }
    steps.push(Step::Compare);
    steps
}

/// Runs the steps on both. An error describes the step at which they differ, and how.
pub fn run(
    subject: &mut impl Subject,
    clock: &Arc<AtomicI64>,
    steps: &[Step],
) -> Result<(), String> {
    let mut model = Model::new(clock.clone());
    for (index, step) in steps.iter().enumerate() {
        clock.fetch_add(1000, Ordering::Relaxed);
        let result = match step {
            Step::Do(operation) => compare_answers(subject, &mut model, operation).map(drop),
            Step::Compare => compare_trees(subject, &model),
            Step::Restart { orderly } => restart(subject, &mut model, *orderly),
        };
        result.map_err(|error| format!("at step {index}, {step:?}:\n{error}"))?;
    }
    subject.examine()
}

/// Lets both do one operation. A full pool excuses the system from it.
pub fn compare_answers(
    system: &mut impl System,
    model: &mut Model,
    operation: &Call,
) -> Result<Answer, String> {
    let answer = system.apply(operation);
    let expected = match answer {
        Err(Errno(libc::ENOSPC)) if operation.may_lack_space() => {
            if let Some(done) = operation.without_space() {
                model
                    .apply(&done)
                    .map_err(|error| format!("{done:?}: {error:?}"))?;
            }
            return Ok(answer);
        }
        Ok(Outcome::Written(count)) => model.apply(&operation.shortened(count)),
        _ => model.apply(operation),
    };
    if agree(&answer, &expected) {
        return Ok(answer);
    }
    Err(format!(
        "{operation:?} answers {}, the model {}",
        short(&answer),
        short(&expected)
    ))
}

fn short(answer: &Answer) -> String {
    match answer {
        Ok(Outcome::Bytes(bytes)) if bytes.len() > 64 => {
            format!("{} bytes, {:02x?}…", bytes.len(), &bytes[..16])
        }
        other => format!("{other:?}"),
    }
}

fn compare_trees(subject: &mut impl Subject, model: &Model) -> Result<(), String> {
    let tree = snapshot(subject)?;
    match tree.difference("the system", &model.tree(), "the model") {
        Some(difference) => Err(difference),
        None => Ok(()),
    }
}

fn restart(subject: &mut impl Subject, model: &mut Model, orderly: bool) -> Result<(), String> {
    subject.restart(orderly)?;
    if subject.restarts() {
        model.restart();
    }
    compare_trees(subject, model)?;
    subject.examine()
}

/// The steps that are left when as many as possible are dropped without `fails` becoming false.
pub fn shrink<T: Clone>(mut steps: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut size = steps.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(start..(start + size).min(steps.len()));
            if fails(&fewer) {
                steps = fewer;
            } else {
                start += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    steps
}

/// Runs a seed on systems that `make` makes, and reports a failure with the shortest list of steps.
pub fn run_seed<S: Subject>(
    seed: u64,
    mix: &Mix,
    count: usize,
    make: impl Fn(&Arc<AtomicI64>) -> Result<S, String>,
) -> Result<(), String> {
    let attempt = |steps: &[Step]| {
        let clock = Arc::new(AtomicI64::new(1_000_000_000));
        run(&mut make(&clock)?, &clock, steps)
    };
    let steps = steps(seed, mix, count);
    let Err(first) = attempt(&steps) else {
        return Ok(());
    };
    let minimal = shrink(steps, |steps| attempt(steps).is_err());
    let reason = attempt(&minimal).err().unwrap_or(first);
    Err(format!(
        "seed {seed} fails; {} steps are enough: {minimal:#?}\n{reason}",
        minimal.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_leaves_what_matters() {
        let fails = |steps: &[u32]| steps.contains(&17) && steps.contains(&60);
        assert_eq!(shrink((0..100).collect(), fails), [17, 60]);
        assert!(shrink(vec![1, 2], |_| true).is_empty());
    }

    #[test]
    fn a_wrong_system_is_reported_with_the_steps_it_takes() {
        /// Forgets that symbolic links have targets.
        struct Wrong(Model);

        impl System for Wrong {
            fn apply(&mut self, operation: &Call) -> Answer {
                match operation {
                    Call::ReadLink { .. } => Ok(Outcome::Bytes(Vec::new())),
                    other => self.0.apply(other),
                }
            }
        }

        impl Subject for Wrong {}

        let make = |clock: &Arc<AtomicI64>| Ok(Wrong(Model::new(clock.clone())));
        let failure = run_seed(1, &Mix::usual(), 500, make).expect_err("the system is wrong");
        assert!(failure.starts_with("seed 1 fails"), "{failure}");
        let few = [1, 2, 3].map(|steps| format!("{steps} steps are enough"));
        assert!(few.iter().any(|few| failure.contains(few)), "{failure}");
    }
}
