//! Tests that sound jobs have no defects, and that each kind of injected defect is found at its
//! place.

use super::chance::{
    Dice, UnwrittenJob, find_integer_attribute_mut, has_attribute, is_collective, is_message,
    make_attribute_with_value, make_group_declaration_node, make_integer_attribute,
};
use super::format_defects;
use crate::corpus::sample_every_nth;
use chakram::internals::proto::Node;
use chakram::internals::proto::attribute_proto::Value;
use chakram::validate::{DefectKind, Severity};
use prost::Message;
use std::collections::BTreeSet;

/// The place of an injected defect: its rank and its node, if any.
type DefectPlace = (Option<u32>, Option<u64>);

/// The number of defects of each kind.
const TIMES: u64 = 1000;
/// Returns the seeds to use: one in four by default.
fn list_seeds() -> Vec<u64> {
    sample_every_nth(4, 0..TIMES)
}

/// Injects a defect of one kind into a sound job.
type DefectInjector = fn(&mut UnwrittenJob, &mut Dice) -> DefectPlace;

/// Every kind of defect, with the function that injects it.
pub const ALL: &[(DefectKind, DefectInjector)] = &[
    (DefectKind::Unreadable, truncate_random_file),
    (DefectKind::InvalidNode, make_random_node_invalid),
    (DefectKind::DuplicateId, duplicate_random_node),
    (DefectKind::SelfData, |job, dice| {
        change_any_random_node(job, dice, |node| node.data_deps.push(node.id))
    }),
    (DefectKind::DanglingData, |job, dice| {
        change_any_random_node(job, dice, |node| node.data_deps.push(7))
    }),
    (DefectKind::Cycle, |job, dice| {
        inject_dependency_cycle(job, dice, |node| &mut node.data_deps)
    }),
    (
        DefectKind::Unreachable,
        inject_nodes_behind_missing_dependency,
    ),
    (DefectKind::WrongRank, inject_wrong_message_rank),
    (DefectKind::DeclaredTwice, inject_group_declared_twice),
    (DefectKind::Undeclared, inject_use_of_undeclared_group),
    (DefectKind::NotMember, inject_non_member),
    (DefectKind::MemberTwice, inject_member_listed_twice),
    (DefectKind::GroupZero, inject_group_named_zero),
    (DefectKind::RankTwice, |job, dice| {
        job.twice = Some(dice.roll(job.ranks.len()) as u32);
        (job.twice, None)
    }),
    (DefectKind::BeyondJob, inject_peer_beyond_job),
    (DefectKind::MissingRank, |job, dice| {
        job.options.ranks = Some(job.ranks.len() as u32);
        job.absent = Some(dice.roll(job.ranks.len()) as u32);
        (job.absent, None)
    }),
    (DefectKind::Collectives, |job, dice| {
        increment_size_of_random_node(job, dice, |node| {
            is_collective(node) && !has_attribute(node, "involved_dim") && !is_barrier(node)
        })
    }),
    (DefectKind::Root, inject_invalid_root),
    (DefectKind::Oversized, inject_oversized_gather),
    (DefectKind::Unmatched, |job, dice| {
        change_random_node(job, dice, is_message, |node| {
            *find_integer_attribute_mut(node, "comm_tag").expect("it has one") = 77
        })
    }),
    (DefectKind::MessageSize, |job, dice| {
        increment_size_of_random_node(job, dice, is_message)
    }),
    (DefectKind::InSwitch, |job, dice| {
        change_random_node(
            job,
            dice,
            |node| has_attribute(node, "in_switch"),
            |node| {
                *find_integer_attribute_mut(node, "tensor_size").expect("it has one") += 1;
            },
        )
    }),
    (DefectKind::Deadlock, inject_send_waiting_for_its_reply),
    (DefectKind::SelfControl, |job, dice| {
        change_any_random_node(job, dice, |node| node.ctrl_deps.push(node.id))
    }),
    (DefectKind::DanglingControl, |job, dice| {
        change_any_random_node(job, dice, |node| node.ctrl_deps.push(7))
    }),
    (DefectKind::ControlCycle, |job, dice| {
        inject_dependency_cycle(job, dice, |node| &mut node.ctrl_deps)
    }),
    (DefectKind::HostCommunication, |job, dice| {
        let communicates = |node: &Node| has_attribute(node, "comm_size");
        let host = make_attribute_with_value("is_cpu_op", Value::BoolVal(true));
        change_random_node(job, dice, communicates, |node| node.attr.push(host.clone()))
    }),
    (DefectKind::Redeclared, inject_redeclared_group),
    (DefectKind::DivergentDimensions, |job, dice| {
        increment_size_of_random_node(job, dice, |node| has_attribute(node, "involved_dim"))
    }),
    (DefectKind::NoWork, |job, dice| {
        let kernel = |node: &Node| node.r#type == 4 && node.attr.is_empty();
        change_random_node(job, dice, kernel, |node| node.duration_micros = 0)
    }),
    (DefectKind::Overfreed, |job, dice| {
        change_any_random_node(job, dice, |node| {
            node.attr
                .push(make_integer_attribute("allocates.activations", 5));
            node.attr
                .push(make_integer_attribute("frees.activations", 7));
        })
    }),
    (DefectKind::DuplicateDependency, |job, dice| {
        let waits = |node: &Node| !node.data_deps.is_empty();
        change_random_node(job, dice, waits, |node| {
            node.data_deps.push(node.data_deps[0])
        })
    }),
    (DefectKind::Isolated, |job, dice| {
        let rank = dice.roll(job.ranks.len());
        let lone = Node {
            id: 9999,
            r#type: 4,
            duration_micros: 1,
            ..Node::default()
        };
        job.ranks[rank].push(lone);
        (Some(rank as u32), Some(9999))
    }),
    (DefectKind::NoDuration, |job, dice| {
        let host = |node: &Node| has_attribute(node, "is_cpu_op");
        change_random_node(job, dice, host, |node| node.duration_micros = 0)
    }),
];

/// Applies `what` to a random node that `wanted` accepts.
fn change_random_node(
    job: &mut UnwrittenJob,
    dice: &mut Dice,
    wanted: impl Fn(&Node) -> bool,
    what: impl Fn(&mut Node),
) -> DefectPlace {
    let (rank, i) = dice.pick(&job.positions_of_nodes_where(wanted));
    what(&mut job.ranks[rank][i]);
    (Some(rank as u32), Some(job.ranks[rank][i].id))
}

fn change_any_random_node(
    job: &mut UnwrittenJob,
    dice: &mut Dice,
    what: impl Fn(&mut Node),
) -> DefectPlace {
    change_random_node(job, dice, |_| true, what)
}

fn increment_size_of_random_node(
    job: &mut UnwrittenJob,
    dice: &mut Dice,
    wanted: impl Fn(&Node) -> bool,
) -> DefectPlace {
    change_random_node(job, dice, wanted, |node| {
        *find_integer_attribute_mut(node, "comm_size").expect("it has one") += 1
    })
}

fn is_barrier(node: &Node) -> bool {
    find_integer_attribute_mut(&mut node.clone(), "comm_type") == Some(&mut 9)
}

/// Truncates a file within a record.
fn truncate_random_file(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let rank = dice.roll(job.ranks.len());
    let lengths = job.ranks[rank].iter().map(Node::encoded_len);
    let mut end = 1;
    let mut ends = vec![0, end];
    for length in lengths {
        end += length + prost::length_delimiter_len(length);
        ends.push(end);
    }
    let left = (0..end)
        .filter(|left| !ends.contains(left))
        .collect::<Vec<_>>();
    job.cut = Some((rank, dice.pick(&left)));
    (Some(rank as u32), None)
}

fn make_random_node_invalid(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    match dice.roll(3) {
        0 => change_any_random_node(job, dice, |node| node.r#type = 9),
        1 => change_random_node(job, dice, is_message, |node| {
            node.attr.retain(|a| a.name == "comm_size")
        }),
        _ => change_random_node(job, dice, is_collective, |node| {
            node.attr.retain(|a| a.name != "comm_type")
        }),
    }
}

fn duplicate_random_node(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let (rank, i) = dice.pick(&job.positions_of_nodes_where(|_| true));
    let again = job.ranks[rank][i].clone();
    let id = again.id;
    let place = 1 + dice.roll(job.ranks[rank].len());
    job.ranks[rank].insert(place, again);
    (Some(rank as u32), Some(id))
}

/// Makes a node depend on a node that depends on it by data, directly or indirectly.
fn inject_dependency_cycle(
    job: &mut UnwrittenJob,
    dice: &mut Dice,
    deps: fn(&mut Node) -> &mut Vec<u64>,
) -> DefectPlace {
    let (rank, i) = dice.pick(&job.positions_of_nodes_where(|node| !node.data_deps.is_empty()));
    let nodes = &mut job.ranks[rank];
    let last = nodes[i].id;
    let mut first = dice.pick(&nodes[i].data_deps);
    for _ in 0..dice.roll(4) {
        let node = nodes
            .iter()
            .find(|node| node.id == first)
            .expect("it exists");
        if node.data_deps.is_empty() {
            break;
        }
        first = dice.pick(&node.data_deps);
    }
    let node = nodes
        .iter_mut()
        .find(|node| node.id == first)
        .expect("it exists");
    deps(node).push(last);
    (Some(rank as u32), Some(first))
}

/// Returns all nodes on `rank` that depend on `id`, directly or indirectly.
fn list_dependents(job: &UnwrittenJob, rank: usize, id: u64) -> BTreeSet<u64> {
    let mut behind = BTreeSet::from([id]);
    loop {
        let count = behind.len();
        for node in &job.ranks[rank] {
            if node
                .data_deps
                .iter()
                .chain(&node.ctrl_deps)
                .any(|dep| behind.contains(dep))
            {
                behind.insert(node.id);
            }
        }
        if behind.len() == count {
            behind.remove(&id);
            return behind;
        }
    }
}

fn inject_nodes_behind_missing_dependency(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let places = job.positions_of_nodes_where(|_| true).into_iter();
    let places =
        places.filter(|&(rank, i)| !list_dependents(job, rank, job.ranks[rank][i].id).is_empty());
    let (rank, i) = dice.pick(&places.collect::<Vec<_>>());
    job.ranks[rank][i].data_deps.push(7);
    let behind = list_dependents(job, rank, job.ranks[rank][i].id);
    assert_eq!(
        job.findings().count_of_kind(DefectKind::Unreachable),
        behind.len() as u64
    );
    let last = behind.into_iter().next_back().expect("there are some");
    (Some(rank as u32), Some(last))
}

fn inject_wrong_message_rank(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let (rank, i) = dice.pick(&job.positions_of_nodes_where(is_message));
    let node = &mut job.ranks[rank][i];
    let (near, far) = match node.r#type {
        5 => ("comm_src", "comm_dst"),
        _ => ("comm_dst", "comm_src"),
    };
    match dice.roll(2) {
        0 => node
            .attr
            .push(make_integer_attribute(near, rank as i64 + 1)),
        _ => *find_integer_attribute_mut(node, far).expect("it has one") = rank as i64,
    }
    (Some(rank as u32), Some(node.id))
}

fn inject_group_declared_twice(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let rank = dice.roll(job.ranks.len());
    let mut other = job.groups.clone();
    let members = other.get_mut("tp").expect("it is declared");
    members.swap(0, 1);
    let node = Node {
        id: 6,
        ..make_group_declaration_node(&other)
    };
    job.ranks[rank].push(node);
    (Some(rank as u32), Some(6))
}

fn inject_use_of_undeclared_group(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    change_random_node(
        job,
        dice,
        |node| has_attribute(node, "pg_name"),
        |node| {
            let group = node.attr.iter_mut().find(|attr| attr.name == "pg_name");
            group.expect("it has one").value = Some(Value::StringVal("nobody".to_owned()));
        },
    )
}

/// Returns the group of a node, if it names one.
pub fn group_of(node: &Node) -> Option<&str> {
    let attr = node.attr.iter().find(|attr| attr.name == "pg_name")?;
    match &attr.value {
        Some(Value::StringVal(name)) => Some(name),
        _ => None,
    }
}

fn inject_non_member(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let (rank, i) = dice.pick(&job.positions_of_nodes_where(|node| has_attribute(node, "pg_name")));
    let name = group_of(&job.ranks[rank][i])
        .expect("it names one")
        .to_owned();
    let mut groups = job.groups.clone();
    let members = groups.get_mut(&name).expect("it is declared");
    members.retain(|&member| member != rank as u32);
    job.ranks[rank][0] = make_group_declaration_node(&groups);
    let calls = job.ranks[rank]
        .iter()
        .filter(|node| group_of(node) == Some(&name));
    (Some(rank as u32), calls.map(|node| node.id).min())
}

fn inject_member_listed_twice(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let members = job.positions_of_nodes_where(|node| has_attribute(node, "pg_name"));
    let (rank, i) = dice.pick(&members);
    let name = group_of(&job.ranks[rank][i])
        .expect("it names one")
        .to_owned();
    let group = job.groups.get_mut(&name).expect("it is declared");
    group.push(group[0]);
    for nodes in &mut job.ranks {
        nodes[0] = make_group_declaration_node(&job.groups);
    }
    (None, None)
}

fn inject_group_named_zero(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let rank = dice.roll(job.ranks.len()) as u32;
    job.options.declared.insert("0".to_owned(), vec![rank]);
    (None, None)
}

fn inject_peer_beyond_job(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let ranks = job.ranks.len() as i64;
    job.options.ranks = Some(ranks as u32);
    let more = ranks + dice.roll(3) as i64;
    change_random_node(job, dice, is_message, |node| {
        let far = if node.r#type == 5 {
            "comm_dst"
        } else {
            "comm_src"
        };
        *find_integer_attribute_mut(node, far).expect("it has one") = more;
    })
}

fn inject_invalid_root(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    change_random_node(
        job,
        dice,
        |node| has_attribute(node, "comm_root"),
        |node| {
            *find_integer_attribute_mut(node, "comm_root").expect("it has one") = 99;
        },
    )
}

/// Makes an all-gather exceed 2^63 bytes on all ranks.
fn inject_oversized_gather(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    for nodes in &mut job.ranks {
        let last = nodes
            .iter()
            .map(|node| node.id)
            .max()
            .expect("there are some");
        nodes.push(Node {
            id: 20_000,
            r#type: 7,
            data_deps: vec![last],
            attr: vec![
                make_integer_attribute("comm_type", 2),
                make_integer_attribute("comm_size", 1 << 62),
            ],
            ..Node::default()
        });
    }
    (Some(dice.roll(job.ranks.len()) as u32), Some(20_000))
}

/// Makes the send of a message wait for a reply to it.
fn inject_send_waiting_for_its_reply(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let (from, i) = dice.pick(&job.positions_of_nodes_where(|node| node.r#type == 5));
    let send = job.ranks[from][i].clone();
    let channel = |node: &Node, kind: i32, far: &str, rank: i64| {
        let mut node = node.clone();
        let tag = find_integer_attribute_mut(&mut send.clone(), "comm_tag").copied();
        node.r#type == kind
            && find_integer_attribute_mut(&mut node, far) == Some(&mut { rank })
            && find_integer_attribute_mut(&mut node, "comm_tag").copied() == tag
    };
    let to = *find_integer_attribute_mut(&mut send.clone(), "comm_dst").expect("it has one");
    let sends = job.ranks[from].iter();
    let k = sends
        .filter(|node| channel(node, 5, "comm_dst", to) && node.id < send.id)
        .count();
    let receives = job.ranks[to as usize].iter();
    let receives = receives.filter(|node| channel(node, 6, "comm_src", from as i64));
    let mut receives: Vec<u64> = receives.map(|node| node.id).collect();
    receives.sort_unstable();
    let answer = |id: u64, kind: i32, far: &str, rank: usize, deps: Vec<u64>| Node {
        id,
        r#type: kind,
        data_deps: deps,
        attr: vec![
            make_integer_attribute(far, rank as i64),
            make_integer_attribute("comm_tag", 55),
            make_integer_attribute("comm_size", 8),
        ],
        ..Node::default()
    };
    job.ranks[from][i].data_deps.push(send.id - 1);
    job.ranks[from].push(answer(send.id - 1, 6, "comm_src", to as usize, vec![]));
    let received = receives[k];
    job.ranks[to as usize].push(answer(received + 1, 5, "comm_dst", from, vec![received]));
    (None, None)
}

fn inject_redeclared_group(job: &mut UnwrittenJob, dice: &mut Dice) -> DefectPlace {
    let rank = dice.roll(job.ranks.len());
    let mut other = job.groups.clone();
    let members = other.get_mut("tp").expect("it is declared");
    members.swap(0, 1);
    job.ranks[rank][0] = make_group_declaration_node(&other);
    // The first declaration counts as correct.
    (Some(rank.max(1) as u32), None)
}

#[test]
fn a_sound_job_has_no_defect() {
    for seed in 0..TIMES {
        let job = UnwrittenJob::random_sound_job(&mut Dice(seed), seed % 2 == 0);
        let findings = job.findings();
        let tally = findings.count_by_severity();
        let all = tally.errors + tally.warnings + tally.notes;
        assert_eq!(all, 0, "seed {seed}: {}", format_defects(&findings));
    }
}

/// Injects defects of `kind` into jobs, and checks that each is found.
fn inject_defects_and_check_found(kind: DefectKind, inject: DefectInjector) {
    for seed in list_seeds() {
        let dice = &mut Dice(seed);
        let mut job = UnwrittenJob::random_sound_job(dice, kind == DefectKind::InSwitch);
        let (rank, node) = inject(&mut job, dice);
        let findings = job.findings();
        let is_there = findings.first_defects_of_kind(kind).iter().any(|defect| {
            let here = (defect.rank, defect.site.node);
            let against = defect.against.as_ref();
            let there = against.map(|(rank, site)| (Some(*rank), site.node));
            let is = |(r, n): DefectPlace| {
                (rank.is_none() || r == rank) && (node.is_none() || n == node)
            };
            is(here) || there.is_some_and(is)
        });
        let told = || {
            format!(
                "{kind} {rank:?} {node:?}, seed {seed}:\n{}",
                format_defects(&findings)
            )
        };
        assert!(is_there, "not found: {}", told());
        // Warnings and notes do not count as errors.
        let errors = findings.count_by_severity().errors > 0;
        let expected = kind.severity() == Severity::Error || kind == DefectKind::Redeclared;
        assert!(expected || !errors, "an error: {}", told());
    }
}

#[test]
fn every_defect_is_found_where_it_is() {
    let kinds: Vec<_> = ALL.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        DefectKind::iter_all().collect::<Vec<_>>(),
        "all are injected"
    );
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for part in ALL.chunks(ALL.len().div_ceil(threads)) {
            scope.spawn(|| {
                part.iter()
                    .for_each(|(kind, inject)| inject_defects_and_check_found(*kind, *inject))
            });
        }
    });
}
