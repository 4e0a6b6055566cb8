//! Makes plans.

use crate::backend::Limits;
use crate::error::Result;
use crate::plan::leaf::{Leaf, PlanOptions};
use crate::plan::plan::{Plan, PlanError};
use crate::plan::rules::Rules;
use crate::plan::{copied_leaves, one_pass, pack};

impl Plan {
    /// Plans the copy of `leaves`.
    ///
    /// Small leaves are packed in the order given if their alignments are equal, otherwise in descending order of
    /// alignment. The shared chunks of a source lie before those of its other leaves.
    ///
    /// # Errors
    ///
    /// [`PlanError`]; every other input has a plan.
    pub fn new(leaves: &[Leaf], options: &PlanOptions, limits: &Limits) -> Result<Self, PlanError> {
        let rules = Rules::new(options, limits);
        match one_pass::plan(leaves, &rules) {
            Some(plan) => Ok(plan),
            None => Self::generally(leaves, &rules),
        }
    }

    pub(crate) fn generally(leaves: &[Leaf], rules: &Rules) -> Result<Self, PlanError> {
        let (routes, copied) = copied_leaves::classify(leaves, rules)?;
        pack::place(leaves, routes, &copied, rules)
    }
}
