//! Quota: what of a batch the history keeps, if those who made its probes may have only so much of it.
//!
//! Owns who has reached its limit. If nearly all of it is used, nothing of its events is kept until some of them have
//! expired, or the limit is raised: one gap, and not one for every batch that does not fit. Never writes an entry: the
//! recorder does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::left_out::LeftOut;
use super::shares;
use crate::pipeline::{Delivery, Maker};
use crate::spool::{RECORD_HEAD_BYTES, Shares, Spool};
use crate::wire::{GroupPlace, groups_of, without_groups};

/// A limit counts as used up if less than this part of it is free.
const FREE: u64 = 16;

/// Accounts that have reached a limit, with the limit, and the bytes that they had when something
/// was left out last. Makers with one account can have different limits.
#[derive(Debug, Default)]
pub(super) struct Quota(HashMap<(Arc<str>, u64), u64>);

/// What is stored of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// What is left out, and takes the first places of the batch in the log.
    pub(super) left_out: Option<LeftOut>,
    /// The rest. Absent if nothing is stored.
    pub(super) rest: Option<Rest>,
}

/// What is stored of a batch: the last of its events.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rest {
    /// The message.
    pub(super) message: Bytes,
    /// Events in it.
    pub(super) events: u64,
    /// The schemas of the batch that do not occur in it.
    pub(super) without: HashSet<u32>,
    /// Whose it is.
    pub(super) shares: Shares,
}

impl Quota {
    /// What of a batch is stored.
    pub(super) fn keep(&mut self, delivery: &Delivery, spool: &Spool) -> Kept {
        let makers: HashMap<u32, Arc<dyn Maker>> =
            delivery.origins.iter().filter_map(|origin| Some((origin.schema_id, origin.maker()?))).collect();
        let message = delivery.message();
        let whole = |shares| {
            let (message, events) = (message.clone(), delivery.log_events);
            Kept { left_out: None, rest: Some(Rest { message, events, without: HashSet::new(), shares }) }
        };
        if makers.is_empty() {
            return whole(Shares::default());
        }
        // It is a message of this process: otherwise it belongs to no account.
        let Some(groups) = groups_of(message) else { return whole(Shares::default()) };
        let account_of = |schema_id: u32| makers.get(&schema_id).map(|maker| Arc::clone(maker.account()));
        let shares_of = |groups: &[GroupPlace], message: &Bytes| {
            shares::shares(groups, RECORD_HEAD_BYTES + message.len() as u64, account_of)
        };
        let shares = shares_of(&groups, message);
        let full = self.full(&makers, &shares, spool);
        if full.is_empty() {
            return whole(shares);
        }
        let is_left_out = |group: &GroupPlace| full.contains(&group.schema_id);
        let (left_out, kept): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_left_out);
        let mut by_schema = BTreeMap::<u32, u64>::new();
        for group in left_out {
            *by_schema.entry(group.schema_id).or_default() += group.events;
        }
        let left_out = LeftOut::of(delivery, by_schema);
        let events = delivery.log_events.saturating_sub(left_out.events);
        if kept.is_empty() {
            return Kept { left_out: Some(left_out), rest: None };
        }
        let Some(message) = without_groups(message, is_left_out) else { return whole(shares) };
        let rest = Rest { shares: shares_of(&kept, &message), events, without: full, message };
        Kept { left_out: Some(left_out), rest: Some(rest) }
    }

    /// The schemas of makers that have no room for their shares of a batch.
    fn full(
        &mut self,
        makers: &HashMap<u32, Arc<dyn Maker>>,
        shares: &Shares,
        spool: &Spool,
    ) -> HashSet<u32> {
        // Most probes of a batch have the same maker.
        let mut asked: Vec<(&Arc<dyn Maker>, bool)> = Vec::new();
        let mut full = HashSet::new();
        for (schema_id, maker) in makers {
            let known =
                asked.iter().find(|(known, _)| Arc::ptr_eq(known, maker)).map(|(_, is_full)| *is_full);
            let is_full = known.unwrap_or_else(|| {
                let is_full = self.is_full(&**maker, shares.of(maker.account()), spool);
                asked.push((maker, is_full));
                is_full
            });
            if is_full {
                full.insert(*schema_id);
            }
        }
        full
    }

    /// Whether an account has no room for more bytes.
    fn is_full(&mut self, maker: &dyn Maker, more: u64, spool: &Spool) -> bool {
        let account = maker.account();
        let Some(most) = maker.most_history_bytes() else { return false };
        let held = spool.held(account);
        let limit = (Arc::clone(account), most);
        let then = self.0.get(&limit).copied();
        let is_too_much = held.saturating_add(more) > most;
        let is_used_up = then.is_some_and(|then| held >= then) && most.saturating_sub(held) < most / FREE;
        if is_too_much && then.is_none() {
            maker.history_is_full(held, more);
        }
        if is_too_much {
            self.0.insert(limit, held);
        } else if then.is_some_and(|then| held < then) {
            self.0.remove(&limit);
        }
        is_too_much || is_used_up
    }
}
