//! Map of a replay on tiles: cores coloured by stage and tensor group, and links and memory ports coloured by busy
//! time.
//!
//! Drawn elements carry their values as attributes: `data-rank`, `data-stage` and `data-group` for cores, `data-busy`
//! (picoseconds) for links and ports. A stage is a set of ranks connected by tensor groups and replicas. Stages are
//! sorted by their first rank.

use super::Report;
use crate::draw::svg::{DrawingRect, SvgDrawing, TextAnchor};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, format_percent_of};
use chakram_engine::CompiledReplay;
use std::collections::BTreeMap;
use std::fmt::Write;

mod families;

use families::rank_stages_and_tensor_groups;

/// Distance between the left edges of adjacent cores, and side length of a core, in drawing units.
const PITCH: f64 = 26.0;
const CORE: f64 = 16.0;
/// Space between dies and around the map, in drawing units.
const GAP: f64 = 6.0;
const MARGIN: f64 = 20.0;
/// Maximum number of cores on a machine for which a map is drawn.
const MOST_CORES: u32 = 1 << 16;
/// Number of shades for busy times of links and ports.
const SHADES: u64 = 8;

/// Draws the map of `report`, a replay of `prepared`, as SVG.
///
/// # Errors
///
/// Fails if the machine has no tiles or too many cores, or if the network model does not report how long links are
/// busy.
pub fn render_tile_map(report: &Report, prepared: &CompiledReplay<'_>) -> Result<String, String> {
    let machine = prepared.machine();
    let name = machine.name();
    let Some(tiles) = machine.topology().tile_grid() else {
        return Err(format!(
            "{}: machine `{name}` has no tiles\n  try: a machine such as wafer-5x4",
            SettingKey::TileMap
        ));
    };
    let Some(used) = &report.tiles else {
        return Err(format!(
            "{}: this network model does not record how busy links are\n  try: {} exclusive or links",
            SettingKey::TileMap,
            SettingKey::Network
        ));
    };
    let npus = machine.topology().npu_count();
    if npus > MOST_CORES {
        return Err(format!(
            "{}: machine `{name}` has {npus} cores; at most {MOST_CORES} are drawn",
            SettingKey::TileMap
        ));
    }
    let along =
        |d: usize, at: u32| MARGIN + f64::from(at) * PITCH + f64::from(at / tiles.cores[d]) * GAP;
    let size = [0, 1].map(|d| along(d, tiles.cores_along_dimension(d) - 1) + PITCH);
    let (stages, groups) = rank_stages_and_tensor_groups(prepared);
    let mut cores_of_stage: BTreeMap<u32, usize> = BTreeMap::new();
    for stage in &stages {
        *cores_of_stage.entry(*stage).or_default() += 1;
    }
    let width = size[0].max(580.0) + MARGIN;
    let legend = StageLegend::new(&cores_of_stage, width);
    let foot = size[1] + MARGIN;
    let mut svg = SvgDrawing::new(width, foot + legend.legend_height() + 5.5 * LINE);
    let mut occupant = BTreeMap::new();
    for instance in prepared.workload_with_added_launches().instances() {
        occupant.insert(prepared.npu_of_rank(instance.rank).0, instance.rank.0);
    }
    for core in 0..npus {
        let at = tiles.coordinates_of_core(core);
        let frame = DrawingRect {
            x: along(0, at[0]),
            y: along(1, at[1]),
            width: CORE,
            height: CORE,
        };
        let place = format!("core ({}, {})", at[0], at[1]);
        match occupant.get(&core) {
            Some(rank) => {
                let (stage, group) = (stages[*rank as usize], groups[*rank as usize]);
                let title = format!("{place}: rank {rank}, stage {stage}, tensor group {group}");
                let data = [
                    ("rank", rank.to_string()),
                    ("stage", stage.to_string()),
                    ("group", group.to_string()),
                ];
                svg.add_rect(frame, &format!("s{stage} t{}", group % 2), &title, &data);
            }
            None if tiles.faulty_cores.contains(&core) => {
                svg.add_rect(frame, "faulty", &format!("{place}: faulty"), &[]);
            }
            None => svg.add_rect(frame, "free", &format!("{place}: no rank"), &[]),
        }
    }
    let makespan = report.outcome.makespan;
    let most_link = used
        .links
        .iter()
        .map(|link| link.busy)
        .max()
        .unwrap_or(Span::ZERO);
    let most_port = used
        .ports
        .iter()
        .map(|port| port.busy)
        .max()
        .unwrap_or(Span::ZERO);
    for link in &used.links {
        let [a, b] = [link.from, link.to];
        let d = usize::from(a[0] == b[0]);
        // For a link between the two ends of a row or column, draw only a stub at its source core.
        let closes = a[d].abs_diff(b[d]) > 1;
        let up = (b[d] > a[d]) != closes;
        let (start, length) = match (closes, up) {
            (true, true) => (along(d, a[d]) + CORE, PITCH - CORE),
            (true, false) => (along(d, a[d]) - (PITCH - CORE), PITCH - CORE),
            (false, _) => {
                let lower = along(d, a[d].min(b[d])) + CORE;
                (lower, along(d, a[d].max(b[d])) - lower)
            }
        };
        // Draw the two directions on opposite sides.
        let aside = along(1 - d, a[1 - d]) + if up { 3.0 } else { CORE - 6.0 };
        let frame = if d == 0 {
            DrawingRect {
                x: start,
                y: aside,
                width: length,
                height: 3.0,
            }
        } else {
            DrawingRect {
                x: aside,
                y: start,
                width: 3.0,
                height: length,
            }
        };
        let title = format!(
            "link ({}, {}) to ({}, {}): busy {}, {}",
            a[0],
            a[1],
            b[0],
            b[1],
            link.busy,
            format_busy_percent_of_makespan(link.busy, makespan)
        );
        let data = [("busy", link.busy.0.to_string())];
        svg.add_rect(
            frame,
            &format!("l{}", shade_of_busy_time(link.busy, most_link)),
            &title,
            &data,
        );
    }
    for port in &used.ports {
        let [x, y] = port.core;
        let frame = DrawingRect {
            x: along(0, x) + 4.0,
            y: along(1, y) + 4.0,
            width: CORE - 8.0,
            height: CORE - 8.0,
        };
        let title = format!(
            "memory port at ({x}, {y}): busy {}, {}",
            port.busy,
            format_busy_percent_of_makespan(port.busy, makespan)
        );
        let data = [("busy", port.busy.0.to_string())];
        svg.add_rect(
            frame,
            &format!("p{}", shade_of_busy_time(port.busy, most_port)),
            &title,
            &data,
        );
    }
    let text = format!(
        "{name}, {makespan}: links at most {} busy, memory ports {}",
        format_busy_percent_of_makespan(most_link, makespan),
        format_busy_percent_of_makespan(most_port, makespan)
    );
    svg.add_text((MARGIN, foot), TextAnchor::Start, "axis", &text);
    legend.draw_legend(&mut svg, foot + LINE);
    let below = foot + LINE + legend.legend_height();
    for (line, name, class, most) in [
        (0.5, "busy links", 'l', most_link),
        (2.0, "busy memory ports", 'p', most_port),
    ] {
        draw_shade_scale(&mut svg, below + line * LINE, (name, class), most, makespan);
    }
    let count = stages.iter().max().map_or(0, |last| last + 1);
    let inner = svg.into_element(&format!("tiles of {name}"));
    let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";
    let inner = inner.replacen("<svg ", head, 1);
    let open = inner.find('>').map_or(0, |at| at + 1);
    let (tag, marks) = inner.split_at(open);
    Ok(format!(
        "{tag}<style>{}</style>{marks}\n",
        render_style_sheet(count)
    ))
}

/// Height of one text line below the map, in drawing units.
const LINE: f64 = 20.0;
/// Width of a legend entry (a stage's colour and name), in drawing units.
const STAGE: f64 = 150.0;
const MOST_LINES: usize = 8;

/// Legend of the stages: each stage's colour and number of cores, laid out in lines.
struct StageLegend {
    names: Vec<(Option<u32>, String)>,
    in_line: usize,
}

impl StageLegend {
    fn new(cores: &BTreeMap<u32, usize>, width: f64) -> Self {
        let in_line = (((width - 2.0 * MARGIN) / STAGE) as usize).max(1);
        let name = |(stage, count): (&u32, &usize)| {
            let noun = if *count == 1 { "core" } else { "cores" };
            (Some(*stage), format!("stage {stage}, {count} {noun}"))
        };
        let mut names: Vec<_> = cores.iter().map(name).collect();
        let most = in_line * MOST_LINES;
        if names.len() > most {
            let left = names.len() - (most - 1);
            names.truncate(most - 1);
            names.push((None, format!("{left} stages more")));
        }
        Self { names, in_line }
    }

    fn legend_height(&self) -> f64 {
        self.names.len().div_ceil(self.in_line) as f64 * LINE
    }

    fn draw_legend(&self, svg: &mut SvgDrawing, top: f64) {
        for (i, (stage, name)) in self.names.iter().enumerate() {
            let x = MARGIN + (i % self.in_line) as f64 * STAGE;
            let y = top + (i / self.in_line) as f64 * LINE;
            if let Some(stage) = stage {
                // A stage's tensor groups alternate between two shades, so show both.
                for group in 0..2 {
                    let half = DrawingRect {
                        x: x + f64::from(group) * CORE / 2.0,
                        y: y - 10.0,
                        width: CORE / 2.0,
                        height: 12.0,
                    };
                    svg.add_rect(half, &format!("s{stage} t{group}"), name, &[]);
                }
            }
            svg.add_text((x + CORE + 6.0, y), TextAnchor::Start, "axis", name);
        }
    }
}

/// Draws the scale of shades for links or for ports, labelled with busy times up to `most`.
fn draw_shade_scale(
    svg: &mut SvgDrawing,
    y: f64,
    (name, class): (&str, char),
    most: Span,
    makespan: Span,
) {
    if most == Span::ZERO {
        return;
    }
    svg.add_text((MARGIN, y), TextAnchor::Start, "axis", name);
    let (from, width) = (MARGIN + 130.0, 48.0);
    for step in 1..=SHADES {
        let up_to = Span((u128::from(most.0) * u128::from(step) / u128::from(SHADES)) as u64);
        let frame = DrawingRect {
            x: from + (step - 1) as f64 * width,
            y: y - 10.0,
            width,
            height: 8.0,
        };
        let title = format!(
            "busy up to {up_to}, {}",
            format_busy_percent_of_makespan(up_to, makespan)
        );
        svg.add_rect(frame, &format!("{class}{step}"), &title, &[]);
        if step % 2 == 0 {
            let at = (frame.x + width, y + 9.0);
            svg.add_text(
                at,
                TextAnchor::Middle,
                "axis",
                &format_busy_percent_of_makespan(up_to, makespan),
            );
        }
    }
    svg.add_text((from, y + 9.0), TextAnchor::Middle, "axis", "0 %");
}

/// Formats a busy time as a percentage of the makespan, as in `12.5 %`.
fn format_busy_percent_of_makespan(busy: Span, makespan: Span) -> String {
    format_percent_of(busy.0 as f64, makespan.0.max(1) as f64)
}

/// Returns the shade of a busy time, from 1 to [`SHADES`]; a busy time equal to `most` gets the darkest shade.
fn shade_of_busy_time(busy: Span, most: Span) -> u64 {
    let parts = u128::from(busy.0) * u128::from(SHADES);
    (parts.div_ceil(u128::from(most.0.max(1))) as u64).clamp(1, SHADES)
}

/// Returns the style sheet with the colours of stages, links and ports.
fn render_style_sheet(stages: u32) -> String {
    let mut style = String::from(
        "text{font:11px sans-serif;fill:#333}.free{fill:#eee}.faulty{fill:#333}svg{background:#fff}",
    );
    for stage in 0..stages {
        // The multiplier gives consecutive stages very different hues.
        let hue = u64::from(stage) * 137 % 360;
        let rules = write!(
            style,
            ".s{stage}{{fill:hsl({hue},55%,72%)}}.s{stage}.t1{{fill:hsl({hue},55%,58%)}}"
        );
        rules.expect("a string grows as needed");
    }
    for shade in 1..=SHADES {
        let light = 88 - 8 * shade;
        let rules = write!(
            style,
            ".l{shade}{{fill:hsl(0,70%,{light}%)}}.p{shade}{{fill:hsl(220,70%,{light}%)}}"
        );
        rules.expect("a string grows as needed");
    }
    style
}
