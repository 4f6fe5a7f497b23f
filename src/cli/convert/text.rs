//! Prints the summary of a conversion as text.

use super::super::terminal;
use chakram_base::ids::format_numbers_as_ranges;
use chakram_converters::pytorch::HostKinetoMatchMethod;
use chakram_converters::pytorch::summary::{ConversionSummary, RankConversionSummary};
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TABLE_WIDTH, write_paragraph};
use std::fmt::Display;
use std::io::{self, Write};

/// Maximum number of ranks in a table.
const SHOWN: usize = 16;

fn write_count_of_ranks_not_shown(
    ranks: &[RankConversionSummary],
    out: &mut dyn Write,
) -> io::Result<()> {
    match ranks.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        rest => writeln!(out, "  … {rest} more: --format json"),
    }
}

/// Prints `summary` as text. `input` names the kind of input, such as JSON, before the printed input size.
pub fn write_summary(
    summary: &ConversionSummary,
    input: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let ranks = &summary.ranks;
    let sum = |of: fn(&RankConversionSummary) -> u64| ranks.iter().map(of).sum::<u64>();
    let head = format!(
        "{} of {} ranks, {:.1} MB of {input}: {} nodes, {} dependencies in {}",
        ranks.len(),
        summary.world,
        sum(|r| r.bytes) as f64 / 1e6,
        format_thousands(sum(|r| r.written.nodes)),
        format_thousands(sum(|r| r.written.causes)),
        format_first_and_last_path(ranks),
    );
    write_line_wrapped_to_table(&head, "", out)?;
    let untimed = |rank: &RankConversionSummary| rank.method == HostKinetoMatchMethod::HostAlone;
    if ranks.iter().all(untimed) {
        writeln!(out, "no Kineto trace: operators stand for kernels")?;
    } else if summary.host_computes {
        writeln!(
            out,
            "nothing ran on a device: operators on the host do the compute"
        )?;
    }
    write_node_and_link_counts_by_rank(ranks, out)?;
    print_reliability_of_links_by_order(ranks, out)?;
    write_how_groups_were_inferred(summary, out)?;
    write_rank_times_and_clocks(ranks, out)?;
    write_wait_counts_by_kind(ranks, out)?;
    write_notes(summary, out)
}

fn format_first_and_last_path(ranks: &[RankConversionSummary]) -> String {
    match ranks {
        [] => String::new(),
        [only] => only.path.display().to_string(),
        [first, .., last] => format!("{} to {}", first.path.display(), last.path.display()),
    }
}

fn write_node_and_link_counts_by_rank(
    ranks: &[RankConversionSummary],
    out: &mut dyn Write,
) -> io::Result<()> {
    let table = TextTable::new([
        left_aligned_column("RANK", 10),
        right_aligned_column("host nodes", 12),
        right_aligned_column("linked", 12),
        right_aligned_column("operators", 12),
        right_aligned_column("marks", 12),
        right_aligned_column("runtime", 12),
        right_aligned_column("device", 12),
        right_aligned_column("nodes", 8),
    ]);
    writeln!(out)?;
    terminal::print_plain_table_heading(&table, out)?;
    for rank in ranks.iter().take(SHOWN) {
        let cells: [&dyn Display; 8] = [
            &rank.rank,
            &format_thousands(rank.host_nodes),
            &format_thousands(rank.linked),
            &format_thousands(rank.operators),
            &format_thousands(rank.annotations),
            &format_thousands(rank.runtime),
            &format_thousands(rank.device),
            &format_thousands(rank.written.nodes),
        ];
        terminal::print_table_row(&table, &cells, out)?;
    }
    write_count_of_ranks_not_shown(ranks, out)?;
    let mut reasons: Vec<((&str, String), u64)> = Vec::new();
    for rank in ranks {
        let host = rank.host_left_out.iter();
        let host = host.map(|(reason, n)| (("host node", reason.clone()), *n));
        let events = rank.events_left_out.iter();
        let events =
            events.map(|(reason, n)| (("event", describe_drop_reason(reason).to_owned()), *n));
        for (reason, n) in host.chain(events) {
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, total)) => *total += n,
                None => reasons.push((reason, n)),
            }
        }
    }
    let reasons: Vec<String> = reasons
        .iter()
        .map(|((what, reason), n)| format!("{} ({reason})", format_count_with_noun(*n, what)))
        .collect();
    write_comma_separated_parts_wrapped(out, "  left out: ", &reasons)
}

/// Prints how reliable the links between the two traces are, for each thread that was linked by order.
fn print_reliability_of_links_by_order(
    ranks: &[RankConversionSummary],
    out: &mut dyn Write,
) -> io::Result<()> {
    let linked = ranks
        .iter()
        .filter(|rank| rank.method == HostKinetoMatchMethod::Order);
    let linked: Vec<&RankConversionSummary> = linked.collect();
    if linked.is_empty() {
        return Ok(());
    }
    let table = TextTable::new([
        left_aligned_column("LINKED BY ORDER", 18),
        right_aligned_column("thread", 12),
        right_aligned_column("nodes", 12),
        right_aligned_column("linked", 12),
        right_aligned_column("shapes agree", 16),
        right_aligned_column("events", 20),
        right_aligned_column("confidence", 8),
    ]);
    writeln!(out)?;
    terminal::print_plain_table_heading(&table, out)?;
    for rank in linked.iter().take(SHOWN) {
        for thread in &rank.threads {
            let agreeing = match thread.compared {
                0 => "-".to_owned(),
                compared => format!(
                    "{} of {}",
                    format_thousands(thread.agreeing),
                    format_thousands(compared)
                ),
            };
            let (from, to) = thread.window;
            let mut events = format!("{from}-{to} of {}", thread.events);
            if thread.windows > 1 {
                events += &format!(", {} alike", thread.windows);
            }
            let cells: [&dyn Display; 7] = [
                &rank.rank,
                &thread.thread,
                &format_thousands(thread.nodes),
                &format_thousands(thread.linked),
                &agreeing,
                &events,
                &format!("{:.3}", thread.link_confidence()),
            ];
            terminal::print_table_row(&table, &cells, out)?;
        }
    }
    Ok(())
}

/// Describes why events of a Kineto category or phase are dropped.
fn describe_drop_reason(reason: &str) -> &str {
    match reason {
        "M" => "names of tracks",
        "i" => "instants",
        "Trace" => "the profiler's span",
        other => other,
    }
}

fn write_how_groups_were_inferred(
    summary: &ConversionSummary,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "\nGROUP")?;
    for group in &summary.groups {
        let mut how = Vec::new();
        let mut say = |n: u64, what: &str| {
            if n > 0 {
                how.push(format!("{} {what}", format_thousands(n)));
            }
        };
        say(group.named, "calls name it");
        say(group.only, "inferred: it is the only group");
        say(group.by_worker, "inferred from worker threads");
        say(group.by_size, "inferred from sizes or other calls");
        say(group.messages, "messages inferred: their ends fit");
        let desc = if group.desc.is_empty() {
            String::new()
        } else {
            format!(" ({})", group.desc)
        };
        if how.is_empty() {
            how.push("unused".to_owned());
        }
        let start = format!(
            "  {}{desc}, ranks {}: {}; ",
            group.name,
            format_numbers_as_ranges(&group.ranks),
            format_count_with_noun(group.collectives, "collective")
        );
        write_comma_separated_parts_wrapped(out, &start, &how)?;
    }
    let mut kinds: Vec<String> = summary
        .collectives
        .iter()
        .map(|(kind, n)| format!("{kind} {}", format_thousands(*n)))
        .collect();
    if summary.messages > 0 {
        kinds.push(format!("messages {}", format_thousands(summary.messages)));
    }
    write_comma_separated_parts_wrapped(out, "  ", &kinds)
}

fn write_rank_times_and_clocks(
    ranks: &[RankConversionSummary],
    out: &mut dyn Write,
) -> io::Result<()> {
    let table = TextTable::new([
        left_aligned_column("RANK", 10),
        right_aligned_column("captured", 12),
        right_aligned_column("starts at", 12),
        right_aligned_column("transfer", 12),
        right_aligned_column("waiting", 12),
        right_aligned_column("clock moved", 14),
        right_aligned_column("estimate", 12),
        right_aligned_column("spread", 8),
    ]);
    writeln!(out)?;
    terminal::print_plain_table_heading(&table, out)?;
    for rank in ranks.iter().take(SHOWN) {
        let offset = &rank.offset;
        let clock = match offset.observed {
            0 => [const { String::new() }; 3].map(|_| "-".to_owned()),
            _ => [
                format_signed_ns_as_ms(offset.applied),
                format_signed_ns_as_ms(offset.estimate),
                format_signed_ns_as_ms(offset.spread)
                    .trim_start_matches('+')
                    .to_owned(),
            ],
        };
        let cells: [&dyn Display; 8] = [
            &rank.rank,
            &format_ns_as_ms(rank.own_ns),
            &format_ns_as_ms(rank.captured_ns - rank.own_ns),
            &format_ns_as_ms(rank.transfer_ns as i64),
            &format_ns_as_ms(rank.wait_ns as i64),
            &clock[0],
            &clock[1],
            &clock[2],
        ];
        terminal::print_table_row(&table, &cells, out)?;
    }
    write_count_of_ranks_not_shown(ranks, out)?;
    writeln!(
        out,
        "  all in ms; estimate: median of collective ends against another rank"
    )
}

fn write_wait_counts_by_kind(
    ranks: &[RankConversionSummary],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut said = Vec::new();
    let mut say = |of: fn(&RankConversionSummary) -> u64, what: &str| {
        let n: u64 = ranks.iter().map(of).sum();
        if n > 0 {
            said.push(format!("{} {what}", format_thousands(n)));
        }
    };
    say(|r| r.found.blocking, "by callers that block");
    say(|r| r.found.message_waits, "for messages");
    say(|r| r.found.wait_tensor, "in wait_tensor");
    say(|r| r.found.first_use, "before the result's first use");
    say(|r| r.found.by_time, "that only the times show");
    say(|r| r.found.device_syncs, "of the host for a device");
    say(|r| r.found.stream_waits, "between streams");
    say(|r| r.found.handoffs, "of threads for one another");
    say(|r| r.found.unawaited, "calls that nothing waits for");
    writeln!(out, "\nWAITS")?;
    write_comma_separated_parts_wrapped(out, "  ", &said)
}

/// Describes the inferred ranks, and the captured ranks that they were inferred from.
fn describe_inferred_ranks(summary: &ConversionSummary) -> Option<String> {
    let of =
        |rank: &RankConversionSummary| Some(format!("{} from {}", rank.rank, rank.inferred_from?));
    let ranks: Vec<String> = summary.ranks.iter().filter_map(of).collect();
    let shown = ranks.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    let more = match ranks.len().saturating_sub(SHOWN) {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    let late = match summary.odd.late {
        0 => String::new(),
        n => format!(
            "; in {} one of them is the last, as captured ranks wait for nobody else",
            format_count_with_noun(n, "collective")
        ),
    };
    (!ranks.is_empty()).then(|| {
        format!(
            "ranks without a capture are inferred: {}{more}{late}",
            shown.join(", ")
        )
    })
}

fn write_notes(summary: &ConversionSummary, out: &mut dyn Write) -> io::Result<()> {
    let mut notes = Vec::new();
    let alone = |method| {
        summary
            .ranks
            .iter()
            .filter(|rank| rank.method == method && rank.source.is_none())
            .count() as u64
    };
    match alone(HostKinetoMatchMethod::KinetoAlone) {
        0 => {}
        n => notes.push(format!(
            "{} without a host trace: shapes are Kineto's, and who uses a result follows from times",
            format_count_with_noun(n, "rank")
        )),
    }
    match alone(HostKinetoMatchMethod::HostAlone) {
        0 => {}
        n => notes.push(format!(
            "{} without a Kineto trace: nothing has a time; replay with `--compute roofline`",
            format_count_with_noun(n, "rank")
        )),
    }
    let profiler = summary
        .ranks
        .iter()
        .map(|rank| rank.written.profiler_ns)
        .max();
    if let Some(ns) = profiler.filter(|ns| *ns > 0) {
        notes.push(format!(
            "the profiler is estimated to have added up to {} ms of host time; replay --without profiler",
            format_ns_as_ms(i64::try_from(ns).unwrap_or(i64::MAX))
        ));
    }
    if let Some((steps, step)) = summary.unprofiled {
        notes.push(format!(
            "{} captured; without a profiler a step took {} ms, which replays are held against",
            format_count_with_noun(steps, "step"),
            format_ns_as_ms(i64::try_from(step).unwrap_or(i64::MAX))
        ));
    }
    for (path, reason) in &summary.left_aside {
        notes.push(format!("left aside: {}, {reason}", path.display()));
    }
    for (reason, n) in &summary.alone {
        notes.push(format!(
            "{} communication calls are {reason}: they last as recorded, and nobody waits for them",
            format_thousands(*n)
        ));
    }
    notes.extend(describe_inferred_ranks(summary));
    if summary.partial > 0 {
        notes.push(format!(
            "members without a capture in {}: {} calls have the transfer of others of their size",
            format_count_with_noun(summary.partial, "collective"),
            format_thousands(summary.odd.bounded)
        ));
    }
    if summary.uneven > 0 {
        notes.push(format!(
            "members of different sizes in {}: of an all-to-all the parts that are known count, of others the largest",
            format_count_with_noun(summary.uneven, "collective")
        ));
    }
    if summary.odd.early > 0 {
        notes.push(format!(
            "{} members ended up to {} ms before the last had started; their transfer counts as zero",
            format_thousands(summary.odd.early),
            format_ns_as_ms(summary.odd.most as i64)
        ));
    }
    if summary.odd.estimated > 0 {
        notes.push(format!(
            "{} ends of messages nobody blocked for have the transfer of others of their size",
            format_thousands(summary.odd.estimated)
        ));
    }
    let sum = |of: fn(&RankConversionSummary) -> u64| summary.ranks.iter().map(of).sum::<u64>();
    match sum(|rank| rank.dropped) {
        0 => {}
        n => notes.push(format!(
            "{} of kernels {} no kernel: the profiler dropped them; what they took is unknown",
            format_count_with_noun(n, "launch"),
            if n == 1 { "has" } else { "have" }
        )),
    }
    match sum(|rank| rank.overlaps.events) {
        0 => {}
        n => notes.push(format!(
            "{} clipped at the start of the next on their stream, which they outlast by {} ms in all: {} before \
             programmatic dependent launches, {} in launched graphs",
            format_count_with_noun(n, "kernel"),
            format_ns_as_ms(i64::try_from(sum(|rank| rank.overlaps.ns)).unwrap_or(i64::MAX)),
            format_thousands(sum(|rank| rank.overlaps.programmatic)),
            format_thousands(sum(|rank| rank.overlaps.in_graphs)),
        )),
    }
    let unknown = || summary.ranks.iter().filter(|rank| rank.unknown_comm > 0);
    if let Some(first) = unknown().find_map(|rank| rank.first_unknown_comm.as_ref()) {
        let all: u64 = unknown().map(|rank| rank.unknown_comm).sum();
        let before: u64 = unknown().map(|rank| rank.before).sum();
        let ns = unknown().fold(0_u64, |sum, rank| sum.saturating_add(rank.unknown_comm_ns));
        let before = match before {
            0 => String::new(),
            before => format!(
                ", {} of them launched before the capture began",
                format_thousands(before)
            ),
        };
        notes.push(format!(
            "{} of communication tell neither operation nor partners and last as recorded, {} ms{before}, the \
             first `{first}`; name what they do with `--comm-kernel PART=KIND`",
            format_count_with_noun(all, "kernel"),
            format_ns_as_ms(i64::try_from(ns).unwrap_or(i64::MAX)),
        ));
    }
    let ranks = &summary.ranks;
    let first = ranks.iter().find_map(|rank| rank.never_ran.first());
    notes.extend(describe_ranks_with_nonzero_count(
        ranks,
        |rank| rank.never_ran.len() as u64,
        &format!(
            "communication operators have no known operation or were never seen to run, the first `{}`",
            first.map_or("", String::as_str)
        ),
    ));
    notes.extend(describe_ranks_with_nonzero_count(
        ranks,
        |rank| rank.unlaunched,
        "kernels and copies were launched before the capture began: they follow their stream, and the first of it its start",
    ));
    notes.extend(describe_ranks_with_nonzero_count(
        ranks,
        |rank| rank.unsized_calls,
        "communication calls have no sizes, and last as recorded in replays; capture with record_shapes=True",
    ));
    notes.extend(describe_ranks_with_nonzero_count(
        ranks,
        |rank| rank.found.cut,
        "causes contradicted the times and were left out",
    ));
    for rank in ranks {
        let repairs = rank.repairs.iter();
        notes.extend(repairs.map(|repair| format!("rank {}: mended {repair}", rank.rank)));
    }
    let reference = ranks.first().map(|rank| rank.rank);
    let unclocked = ranks
        .iter()
        .filter(|rank| rank.offset.observed == 0 && Some(rank.rank) != reference);
    let unclocked: Vec<u32> = unclocked.map(|rank| rank.rank).collect();
    if !unclocked.is_empty() {
        notes.push(format!(
            "{}: the relation of their clocks is unknown; times are used unchanged",
            format_rank_list(&unclocked)
        ));
    }
    if notes.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nNOTES")?;
    for note in notes {
        write_line_wrapped_to_table(&note, "  ", out)?;
    }
    Ok(())
}

/// Writes a line of text. Breaks a line wider than a table at spaces, but never within a file name, so that names can
/// be copied.
fn write_line_wrapped_to_table(text: &str, indent: &str, out: &mut dyn Write) -> io::Result<()> {
    if indent.len() + text.chars().count() <= TABLE_WIDTH {
        return writeln!(out, "{indent}{text}");
    }
    let mut lines = String::new();
    write_paragraph(
        &mut lines,
        text,
        indent,
        indent.len() + 2,
        anstyle::Style::new(),
    )
    .expect("a string grows as needed");
    out.write_all(lines.as_bytes())
}

/// Returns a note about all ranks for which the count `of` is above zero: `ranks 0-7: 1,234 kernels …`.
fn describe_ranks_with_nonzero_count(
    ranks: &[RankConversionSummary],
    of: fn(&RankConversionSummary) -> u64,
    what: &str,
) -> Option<String> {
    let with: Vec<u32> = ranks
        .iter()
        .filter(|rank| of(rank) > 0)
        .map(|rank| rank.rank)
        .collect();
    let sum = ranks.iter().map(of).fold(0, u64::saturating_add);
    (!with.is_empty()).then(|| {
        format!(
            "{}: {} {what}",
            format_rank_list(&with),
            format_thousands(sum)
        )
    })
}

/// Formats ranks as `rank 3` or `ranks 0-7`.
fn format_rank_list(of: &[u32]) -> String {
    match of {
        [only] => format!("rank {only}"),
        several => format!("ranks {}", format_numbers_as_ranges(several)),
    }
}

/// Writes `parts`, separated by commas, in lines of at most 100 columns.
fn write_comma_separated_parts_wrapped(
    out: &mut dyn Write,
    start: &str,
    parts: &[String],
) -> io::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let mut line = start.to_owned();
    for (i, part) in parts.iter().enumerate() {
        let comma = if i + 1 < parts.len() { "," } else { "" };
        if line.len() + part.len() + 1 > 100 && line.trim().len() > start.trim().len() {
            writeln!(out, "{}", line.trim_end())?;
            line = " ".repeat(start.len().min(12));
        }
        line += part;
        line += comma;
        line.push(' ');
    }
    writeln!(out, "{}", line.trim_end())
}

fn format_ns_as_ms(ns: i64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

fn format_signed_ns_as_ms(ns: i64) -> String {
    format!("{:+.3}", ns as f64 / 1e6)
}
