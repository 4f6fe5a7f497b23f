//! Communication of the host in flight.

use super::super::calls::{Act, Calls};
use super::super::rank::{NONE, Rank};
use super::chain::Chains;
use super::waits::by_worker;
use super::{Doing, Lane, Work, Works};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Lanes by the time at which they become free.
type Free = BinaryHeap<Reverse<(i64, u32)>>;

/// Places the activity of every call that the host carried out, with dependencies.
pub(super) fn place(rank: &Rank, calls: &Calls, chains: &Chains, works: &mut Works) {
    let mut order: Vec<u32> = (0..calls.list.len() as u32)
        .filter(|&call| !calls.list[call as usize].on_device())
        .collect();
    order.sort_by_key(|&call| (calls.list[call as usize].start, call));
    // Calls of a worker queue for it, and messages to one peer for their connection. Nothing else queues, whatever
    // the times of the capture: a lane for each, and more where calls were in flight at once.
    let mut lanes: BTreeMap<(u32, Option<u32>, bool), Free> = BTreeMap::new();
    let mut count = 0;
    for index in order {
        let call = &calls.list[index as usize];
        let free = lanes
            .entry(match call.worker {
                NONE => (NONE, call.asked.peer, call.act == Act::Send),
                worker => (worker, None, false),
            })
            .or_default();
        let lane = match free.peek() {
            Some(&Reverse((from, lane))) if from <= call.start => {
                free.pop();
                lane
            }
            _ => {
                count += 1;
                count - 1
            }
        };
        free.push(Reverse((call.end, lane)));
        let work = works.push(Work {
            doing: Doing::Call(index),
            lane: Lane::Flight(lane),
            begin: call.start,
            end: call.end,
            asked: call.launched,
        });
        works.of_call[index as usize] = work;
        let caller = rank.items[call.item as usize].thread;
        let launch = chains.before(caller, call.launched, &works.list);
        works.cause(launch, work);
    }
    for (worker, list) in by_worker(calls) {
        for (place, &index) in list.iter().enumerate() {
            let call = &calls.list[index as usize];
            let work = works.of_call[index as usize];
            let caller = rank.items[call.item as usize].thread;
            let launch = chains.before(caller, call.launched, &works.list);
            // It was queued if its worker was still busy when it was launched.
            let busy = chains.before(worker, call.start, &works.list);
            if busy != NONE && works.list[busy as usize].end > call.launched {
                works.cause(busy, work);
            }
            let before = place.checked_sub(1).map(|before| list[before]);
            if let Some(before) = before
                && calls.list[before as usize].end > call.launched
            {
                works.cause(works.of_call[before as usize], work);
            }
            // The worker's next activity follows, unless that belongs to its next call.
            let next = list.get(place + 1).map(|&next| &calls.list[next as usize]);
            let next = chains.between(worker, call.end, next.map_or(i64::MAX, |n| n.start), works);
            works.cause(work, next);
            // Its previous activity was for this call if that had been launched.
            let preparing = chains.between(worker, call.launched, call.start, works);
            works.cause(launch, preparing);
        }
    }
}
