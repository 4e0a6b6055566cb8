//! Laying the leaves that are copied into chunks.

use std::num::NonZero;

use crate::alignment::Alignment;
use crate::plan::copied_leaves::Copied;
use crate::plan::leaf::Leaf;
use crate::plan::plan::{Chunk, Counts, Plan, PlanError, Route};
use crate::plan::rules::Rules;

/// Places `copied`, those of `leaves` that are copied, in order of rank, and fills in the routes.
pub(crate) fn place(
    leaves: &[Leaf],
    routes: Vec<Route>,
    copied: &[Copied],
    rules: &Rules,
) -> Result<Plan, PlanError> {
    let mut plan = Plan::empty();
    plan.routes.extend(routes);
    plan.order.extend(copied.iter().map(|leaf| leaf.leaf));
    plan.ends.reserve(copied.len());
    let mut rest = copied;
    while let Some((first, others)) = rest.split_first() {
        let mates = plan.fill_chunk(leaves, first, others, rules)?;
        rest = others.get(mates..).unwrap_or_default();
    }
    let total = plan.chunks.iter().try_fold(0_usize, |sum, chunk| sum.checked_add(chunk.bytes));
    plan.bytes = total.ok_or(rules.uncountable())?;
    plan.counts = Counts::of(&plan.routes);
    Ok(plan)
}

impl Plan {
    /// Opens a chunk for `first` and lets as many of `others` join it as belong and fit there. Returns how many.
    fn fill_chunk(
        &mut self,
        leaves: &[Leaf],
        first: &Copied,
        others: &[Copied],
        rules: &Rules,
    ) -> Result<usize, PlanError> {
        let source = first.source();
        let base = self.next_base(source).ok_or(rules.uncountable())?;
        let number = self.chunks.len() as u32;
        let start = self.ends.len();

        let lead = rules.skew(leaves, first);
        let mut end = first.bytes.checked_add(lead).ok_or(rules.uncountable())?;
        self.ends.push(base.saturating_add(end));
        let mut mates = 0_usize;
        for leaf in others.iter().take_while(|leaf| leaf.source() == source) {
            let skew = rules.skew(leaves, leaf);
            let Some((offset, behind)) = rules.behind(end, leaf, skew) else { break };
            end = behind;
            self.ends.push(base.saturating_add(end));
            self.settle(leaf.leaf, Route::Packed { chunk: number, offset });
            mates = mates.saturating_add(1);
        }
        let alone = Route::Alone { chunk: number, offset: lead };
        let shared = Route::Packed { chunk: number, offset: lead };
        self.settle(first.leaf, if mates == 0 { alone } else { shared });

        let bytes = rules.buffer_size(end)?;
        base.checked_add(bytes).ok_or(rules.uncountable())?;
        self.chunks.push(Chunk { source, bytes, base, order: start..self.ends.len() });
        Ok(mates)
    }

    /// Where the next chunk of `source` starts in its linear space.
    pub(crate) fn next_base(&self, source: u16) -> Option<usize> {
        match self.chunks.last().filter(|chunk| chunk.source == source) {
            Some(last) => Rules::BASE.round_up(last.base.checked_add(last.bytes)?),
            None => Some(0),
        }
    }

    #[inline]
    pub(crate) fn settle(&mut self, leaf: u32, route: Route) {
        if let Some(place) = self.routes.get_mut(leaf as usize) {
            *place = route;
        }
    }
}

impl Rules {
    /// How far behind a granule a leaf begins. Most devices have granules of a byte: nothing is looked at there.
    #[inline]
    fn skew(&self, leaves: &[Leaf], copied: &Copied) -> usize {
        if self.granularity == Alignment::ONE {
            return 0;
        }
        leaves.get(copied.leaf as usize).map_or(0, |leaf| self.skew_of(leaf))
    }

    /// Where a leaf starts and ends in a shared chunk whose other leaves end at `end`; `None` if it must not be there.
    #[inline]
    fn behind(&self, end: usize, leaf: &Copied, skew: usize) -> Option<(usize, usize)> {
        let offset = self.round_up(end, leaf.alignment()?)?.checked_add(skew)?;
        let behind = offset.checked_add(leaf.bytes)?;
        (behind <= self.largest_shared).then_some((offset, behind))
    }

    /// The next multiple of all that an offset in a shared chunk must be a multiple of.
    #[inline]
    fn round_up(&self, end: usize, alignment: Alignment) -> Option<usize> {
        if self.odd_multiple == NonZero::<usize>::MIN {
            return alignment.round_up(end);
        }
        end.checked_next_multiple_of(alignment.bytes().checked_mul(self.odd_multiple.get())?)
    }

    fn buffer_size(&self, bytes: usize) -> Result<usize, PlanError> {
        let rounded = self.granularity.round_up(bytes);
        rounded.filter(|bytes| *bytes <= self.largest_buffer).ok_or(PlanError::TooLarge {
            requested: rounded.unwrap_or(usize::MAX),
            limit: self.largest_buffer,
        })
    }

    fn uncountable(&self) -> PlanError {
        PlanError::TooLarge { requested: usize::MAX, limit: self.largest_buffer }
    }
}
