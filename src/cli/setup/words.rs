//! A plan in words, for the terminal: told before anything is done.

use crate::postgres::setup::{Partial, SetupPlan, Step};

/// Longest line. Unit: characters.
const WIDTH: usize = 100;

/// What is about to be done, or that there is nothing to do.
pub(super) fn of_plan(pipeline: &str, plan: &SetupPlan) -> String {
    let mut lines = vec![match plan.steps.len() {
        0 => format!("{pipeline}: nothing is missing"),
        1 => format!("{pipeline}: one thing to do"),
        count => format!("{pipeline}: {count} things to do, in this order"),
    }];
    lines.extend(steps(&plan.steps));
    lines.join("\n")
}

/// What is done, and what was there.
pub(super) fn of_done(done: &SetupPlan) -> String {
    let steps = done.steps.iter().map(|step| format!("done           {}", step.title));
    let adopted = done.adopted.iter().map(|object| format!("there already  {object}"));
    steps.chain(adopted).collect::<Vec<_>>().join("\n")
}

/// What is done, what was there, what was refused, and what was not begun since it needs what was refused.
pub(super) fn of_partial(partial: &Partial) -> String {
    let refused =
        partial.refused.iter().map(|step| format!("refused        {}: {}", step.title, step.why));
    let left = partial
        .left
        .iter()
        .map(|title| format!("not begun      {title}: it needs what was refused"));
    let done = Some(of_done(&partial.done)).filter(|text| !text.is_empty());
    done.into_iter().chain(refused).chain(left).collect::<Vec<_>>().join("\n")
}

/// Each step with its number and its reason.
pub(super) fn steps(steps: &[Step]) -> impl Iterator<Item = String> {
    (1..).zip(steps).flat_map(|(number, step): (usize, &Step)| {
        [format!("  {number}. {}", step.title), folded("     ", step.why)]
    })
}

/// A text behind a mark, its further lines under the first.
pub(in crate::cli) fn folded(mark: &str, text: &str) -> String {
    let indent = " ".repeat(mark.chars().count());
    let mut lines = Vec::new();
    let mut line = mark.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, indent.clone()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::setup::StepKind;
    use expect_test::expect;

    #[test]
    fn steps_are_told_with_number_and_reason() {
        let step = Step {
            kind: StepKind::Slot,
            title: "create slot \"s\"".to_owned(),
            why: "Events committed from here on are kept for the relay. It waits for every transaction that is \
                  running now.",
            sql: String::new(),
        };
        let plan = SetupPlan { steps: vec![step], adopted: Vec::new() };
        expect![[r#"
            orders: one thing to do
              1. create slot "s"
                 Events committed from here on are kept for the relay. It waits for every transaction that is
                 running now."#]].assert_eq(&of_plan("orders", &plan));
        let nothing = SetupPlan { steps: Vec::new(), adopted: Vec::new() };
        assert_eq!(of_plan("orders", &nothing), "orders: nothing is missing");
    }
}
