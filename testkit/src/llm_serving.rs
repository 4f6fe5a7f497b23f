//! A plain, step-by-step serving engine for language models, which tests compare with the fast engine.
//!
//! The code was written only from a description of the rules, and prefers simplicity to speed. The free list is a
//! vector that the code searches, block contents are token lists that it compares as a whole, queues are vectors that
//! it sorts, and time is a sum.

/// A token's id, such as its index in a vocabulary.
pub type TokenId = u64;

/// A request to the engine.
#[derive(Clone, Debug)]
pub struct PlainRequestWithTokenIds {
    pub arrival: u64,
    pub prompt: Vec<TokenId>,
    /// All tokens of the answer, which the engine generates one by one.
    pub answer: Vec<TokenId>,
    pub priority: i64,
}

/// The engine's rules, and the times of its steps.
#[derive(Clone, Debug)]
pub struct EngineRulesAndStepTimes {
    pub blocks: usize,
    pub block_size: usize,
    pub budget: usize,
    pub most_running: usize,
    pub most_length: Option<usize>,
    pub threshold: usize,
    pub chunked: bool,
    pub caching: bool,
    pub by_priority: bool,
    pub whole_must_fit: bool,
    /// Number of blocks that must stay free when the engine admits a request while other requests
    /// run.
    pub watermark: usize,
    /// Static batching: `true` if the engine admits requests only when no other request runs.
    pub is_static: bool,
    /// `true` if a step has only prompts whenever any prompt fits.
    pub prompts_first: bool,
    /// `true` if the engine reserves blocks for all tokens of a request when it admits the request.
    pub reserves_whole: bool,
    /// Number of blocks that a request occupies after its admission, besides the blocks for its tokens.
    pub state: usize,
    /// Number of steps without prompts after which the engine checks its mail. It also checks its mail if no request
    /// runs, and after a step with prompts.
    pub look_interval: usize,
    /// `true` if the engine composes a step as soon as the step before it begins.
    pub ahead: bool,
    /// Terms of a step's time: a constant, the time per computed token, the time per request, and
    /// the time per read token.
    pub times: [u64; 4],
}

/// A step of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainEngineStep {
    pub begin: u64,
    pub end: u64,
    /// Requests of the step, in order. Each entry has the request, the number of its tokens computed before this step,
    /// and the number computed in this step.
    pub parts: Vec<(usize, usize, usize)>,
    /// Preempted requests, in order of preemption.
    pub put_back: Vec<usize>,
    /// Number of free blocks at the start of the step.
    pub free: usize,
}

/// Times of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainLlmRequestTimes {
    pub scheduled: u64,
    pub first: u64,
    pub last: u64,
    pub tokens: usize,
    /// Number of cached tokens when the engine first admitted the request.
    pub hit: usize,
    pub put_back: usize,
    pub is_refused: bool,
}

#[derive(Clone, Debug, Default)]
struct PlainKvBlock {
    holders: usize,
    /// The request's tokens, from its first token to the block's last token; `None` if unknown.
    content: Option<Vec<TokenId>>,
    /// Logical time when the block was filled.
    since: u64,
}

struct PlainKvBlockPool {
    cells: Vec<PlainKvBlock>,
    /// Free blocks; the first is used next.
    free: Vec<usize>,
    clock: u64,
}

impl PlainKvBlockPool {
    fn find_block(&self, content: &[TokenId]) -> Option<usize> {
        let alike =
            (0..self.cells.len()).filter(|&at| self.cells[at].content.as_deref() == Some(content));
        alike.min_by_key(|&at| self.cells[at].since)
    }

    fn hold_block(&mut self, at: usize) {
        self.free.retain(|&other| other != at);
        self.cells[at].holders += 1;
    }

    fn take_block(&mut self) -> usize {
        let at = self.free.remove(0);
        self.cells[at].content = None;
        self.cells[at].holders = 1;
        at
    }

    fn fill_block(&mut self, at: usize, content: &[TokenId]) {
        if self.cells[at].content.is_none() {
            self.clock += 1;
            self.cells[at].since = self.clock;
            self.cells[at].content = Some(content.to_vec());
        }
    }

    fn release_blocks(&mut self, held: &mut Vec<usize>) {
        for at in held.drain(..).rev() {
            self.cells[at].holders -= 1;
            if self.cells[at].holders == 0 {
                self.free.push(at);
            }
        }
    }
}

struct RequestProgress {
    computed: usize,
    answered: usize,
    /// Number of the request's tokens whose computation is part of an unfinished step.
    coming: usize,
    target: usize,
    held: Vec<usize>,
    times: PlainLlmRequestTimes,
    was_admitted: bool,
}

/// Serves requests, which must be in order of arrival. Returns each step, and each request's times.
pub fn serve_step_by_step(
    engine: &EngineRulesAndStepTimes,
    requests: &[PlainRequestWithTokenIds],
) -> (Vec<PlainEngineStep>, Vec<PlainLlmRequestTimes>) {
    let size = engine.block_size;
    let blocks_for = |tokens: usize| tokens.div_ceil(size) + engine.state;
    let mut memory = PlainKvBlockPool {
        cells: vec![PlainKvBlock::default(); engine.blocks],
        free: (0..engine.blocks).collect(),
        clock: 0,
    };
    let mut all: Vec<RequestProgress> = requests
        .iter()
        .map(|request| {
            let room = engine
                .most_length
                .map_or(usize::MAX, |most| most.saturating_sub(request.prompt.len()));
            let target = request.answer.len().min(room);
            let too_long = room == 0;
            let too_wide = !engine.chunked && request.prompt.len() > engine.budget;
            let too_large = blocks_for(request.prompt.len() + target.max(1) - 1) > engine.blocks;
            RequestProgress {
                computed: 0,
                answered: 0,
                coming: 0,
                target,
                held: Vec::new(),
                times: PlainLlmRequestTimes {
                    is_refused: too_long || too_wide || too_large,
                    ..PlainLlmRequestTimes::default()
                },
                was_admitted: false,
            }
        })
        .collect();
    let text = |all: &[RequestProgress], who: usize| -> Vec<TokenId> {
        let request = &requests[who];
        let mut text = request.prompt.clone();
        text.extend(&request.answer[..all[who].answered]);
        text
    };
    let (mut waiting, mut running): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let (mut now, mut next) = (0_u64, 0_usize);
    let (mut mail, mut blind_steps, mut prompts_before): (Vec<usize>, usize, bool) =
        (Vec::new(), 0, false);
    let mut steps: Vec<PlainEngineStep> = Vec::new();
    // `composed` is a step that has not begun, and `flying` is the running step with its end time.
    let mut composed: Option<PlainComposedStep> = None;
    let mut flying: Option<(u64, PlainComposedStep)> = None;
    loop {
        while next < requests.len() && requests[next].arrival <= now {
            if !all[next].times.is_refused {
                mail.push(next);
            }
            next += 1;
        }
        if composed.is_some() && flying.is_none() {
            flying = Some(log_step_and_compute_end(
                engine,
                now,
                composed.take().unwrap(),
                &mut steps,
            ));
        }
        if flying.is_some()
            && composed.is_none()
            && (!engine.ahead || mail.is_empty() && waiting.is_empty() && running.is_empty())
        {
            let (end, step) = flying.take().unwrap();
            now = end;
            add_generated_tokens(
                end,
                step,
                engine,
                requests,
                &mut all,
                &mut memory,
                [&mut running, &mut waiting],
            );
            continue;
        }
        if mail.is_empty() && waiting.is_empty() && running.is_empty() {
            if next == requests.len() {
                break;
            }
            now = requests[next].arrival;
            continue;
        }
        blind_steps += 1;
        if running.is_empty() || prompts_before || blind_steps >= engine.look_interval {
            waiting.append(&mut mail);
            blind_steps = 0;
        }
        if engine.by_priority {
            waiting.sort_by_key(|&who| (requests[who].priority, who));
        }
        let mut budget = engine.budget;
        let mut parts: Vec<(usize, usize, usize)> = Vec::new();
        let mut put_back: Vec<usize> = Vec::new();
        let joined_before = running.len();
        // If prompts go first, a step computes prompts of running and waiting requests; if there are no prompts, it
        // computes answers.
        let passes: &[Option<bool>] = match engine.prompts_first {
            true => &[Some(true), Some(false)],
            false => &[None],
        };
        for &prompts in passes {
            if prompts == Some(false) && (!parts.is_empty() || !put_back.is_empty()) {
                break;
            }
            // First, compose the running requests in order of admission.
            let mut queue = running.clone();
            queue.reverse();
            'next: while let Some(who) = queue.pop() {
                if budget == 0 {
                    break;
                }
                if !running.contains(&who) {
                    continue;
                }
                if all[who].answered + all[who].coming == all[who].target {
                    continue;
                }
                let known = text(&all, who);
                let mut count = known.len() + all[who].coming - all[who].computed;
                if prompts.is_some_and(|prompts| prompts != (count > 1)) {
                    continue;
                }
                if engine.threshold > 0 {
                    count = count.min(engine.threshold);
                }
                count = count.min(budget);
                let needed = blocks_for(all[who].computed + count);
                while needed > all[who].held.len() + memory.free.len() {
                    let victim = match engine.by_priority {
                        false => running[running.len() - 1],
                        true => *running
                            .iter()
                            .max_by_key(|&&who| (requests[who].priority, who))
                            .unwrap(),
                    };
                    running.retain(|&other| other != victim);
                    if let Some(place) = parts.iter().position(|part| part.0 == victim) {
                        budget += parts.remove(place).2;
                    }
                    let of = &mut all[victim];
                    memory.release_blocks(&mut of.held);
                    of.computed = 0;
                    of.times.put_back += 1;
                    put_back.push(victim);
                    waiting.insert(0, victim);
                    if victim == who {
                        break 'next;
                    }
                }
                while all[who].held.len() < needed {
                    let cell = memory.take_block();
                    all[who].held.push(cell);
                }
                if engine.caching {
                    // Tokens that are not generated yet are unknown, so their blocks get no
                    // content.
                    let end = (all[who].computed + count).min(known.len());
                    for block in 0..end / size {
                        memory.fill_block(all[who].held[block], &known[..(block + 1) * size]);
                    }
                }
                parts.push((who, all[who].computed, count));
                budget -= count;
            }
            if engine.by_priority {
                waiting.sort_by_key(|&who| (requests[who].priority, who));
            }
            // Then, admit waiting requests.
            let may_join = (!engine.is_static || joined_before == 0) && prompts != Some(false);
            while put_back.is_empty()
                && may_join
                && budget > 0
                && running.len() < engine.most_running
                && !waiting.is_empty()
            {
                let who = waiting[0];
                let known = text(&all, who);
                let mut shared: Vec<usize> = Vec::new();
                if engine.caching {
                    while (shared.len() + 1) * size < known.len() {
                        match memory.find_block(&known[..(shared.len() + 1) * size]) {
                            Some(cell) => shared.push(cell),
                            None => break,
                        }
                    }
                }
                let hit = shared.len() * size;
                let mut count = known.len() - hit;
                if engine.threshold > 0 {
                    count = count.min(engine.threshold);
                }
                if !engine.chunked && count > budget {
                    break;
                }
                count = count.min(budget);
                let woken = shared
                    .iter()
                    .filter(|&&cell| memory.cells[cell].holders == 0)
                    .count();
                let margin = if running.is_empty() {
                    0
                } else {
                    engine.watermark
                };
                let free = memory.free.len();
                let fits = |tokens: usize| {
                    blocks_for(tokens).saturating_sub(shared.len()) + woken + margin <= free
                };
                let first = match engine.reserves_whole {
                    true => requests[who].prompt.len() + all[who].target - 1,
                    false => hit + count,
                };
                if !fits(first) || engine.whole_must_fit && !fits(known.len()) {
                    break;
                }
                waiting.remove(0);
                running.push(who);
                shared.iter().for_each(|&cell| memory.hold_block(cell));
                all[who].held = shared;
                while all[who].held.len() < blocks_for(first) {
                    let cell = memory.take_block();
                    all[who].held.push(cell);
                }
                if engine.caching {
                    for block in 0..(hit + count) / size {
                        memory.fill_block(all[who].held[block], &known[..(block + 1) * size]);
                    }
                }
                let of = &mut all[who];
                if !of.was_admitted {
                    of.was_admitted = true;
                    of.times.scheduled = now;
                    of.times.hit = hit;
                }
                of.computed = hit;
                parts.push((who, hit, count));
                budget -= count;
            }
        }
        prompts_before = parts.is_empty() || parts.iter().any(|part| part.1 == 0 || part.2 > 1);
        let yields = |&(who, past, count): &(usize, usize, usize)| {
            past + count == requests[who].prompt.len() + all[who].answered + all[who].coming
        };
        let step = PlainComposedStep {
            yields: parts.iter().map(yields).collect(),
            parts,
            put_back,
            free: memory.free.len(),
        };
        for (at, &(who, past, count)) in step.parts.iter().enumerate() {
            all[who].computed = past + count;
            all[who].coming += usize::from(step.yields[at]);
        }
        match (&flying, step.parts.is_empty()) {
            // The first running request preempted itself, so this step computes no token, and the
            // next step is composed immediately.
            (None, true) => assert!(!step.put_back.is_empty(), "a step with something to do"),
            (None, false) => composed = Some(step),
            // The next step was composed in advance; if it is empty, it is composed again when the
            // running step has ended.
            (Some(_), is_empty) => {
                let (end, running_step) = flying.take().unwrap();
                // Requests that arrive during this step wait for the step after the next.
                now = end;
                add_generated_tokens(
                    end,
                    running_step,
                    engine,
                    requests,
                    &mut all,
                    &mut memory,
                    [&mut running, &mut waiting],
                );
                composed = (!is_empty).then_some(step);
            }
        }
    }
    assert_eq!(memory.free.len(), engine.blocks);
    (steps, all.into_iter().map(|one| one.times).collect())
}

/// A composed step.
struct PlainComposedStep {
    parts: Vec<(usize, usize, usize)>,
    /// For each part, `true` if its computation yields a token of the answer.
    yields: Vec<bool>,
    put_back: Vec<usize>,
    free: usize,
}

/// Logs the step, and returns it with its end time.
fn log_step_and_compute_end(
    engine: &EngineRulesAndStepTimes,
    now: u64,
    step: PlainComposedStep,
    steps: &mut Vec<PlainEngineStep>,
) -> (u64, PlainComposedStep) {
    let [base, token, request, read] = engine.times;
    let mut time = base;
    for &(_, past, count) in &step.parts {
        time += token * count as u64 + request + read * (past + count) as u64;
    }
    let end = now + time;
    steps.push(PlainEngineStep {
        begin: now,
        end,
        parts: step.parts.clone(),
        put_back: step.put_back.clone(),
        free: step.free,
    });
    (end, step)
}

/// Adds the tokens that a completed step generated to their requests.
fn add_generated_tokens(
    end: u64,
    step: PlainComposedStep,
    engine: &EngineRulesAndStepTimes,
    requests: &[PlainRequestWithTokenIds],
    all: &mut [RequestProgress],
    memory: &mut PlainKvBlockPool,
    [running, waiting]: [&mut Vec<usize>; 2],
) {
    for (at, (who, ..)) in step.parts.into_iter().enumerate() {
        if !step.yields[at] {
            continue;
        }
        let of = &mut all[who];
        of.coming -= 1;
        of.answered += 1;
        if engine.ahead && engine.caching && running.contains(&who) {
            let request = &requests[who];
            let mut text = request.prompt.clone();
            text.extend(&request.answer[..of.answered]);
            for block in 0..(of.computed - of.coming) / engine.block_size {
                memory.fill_block(of.held[block], &text[..(block + 1) * engine.block_size]);
            }
        }
        if of.answered == 1 {
            of.times.first = end;
        }
        if of.answered == of.target {
            of.times.last = end;
            of.times.tokens = of.answered;
            memory.release_blocks(&mut of.held);
            running.retain(|&other| other != who);
            waiting.retain(|&other| other != who);
        }
    }
}
