//! Reads the collectives of a profile's programs from `HloProto`, with their kinds, sizes and
//! device groups.

use super::space::{HostProfilePlanes, MessageBytesAndOffset, XplaneStatValue, for_each_field};
use chakram_trace::format::wire::{WireCursor, WireValue};
use chakram_trace::format::{CollectiveKind, TraceError};
use std::collections::BTreeMap;

/// Name of the plane that contains programs, and of the stat that stores a program.
const PROGRAMS: (&str, &str) = ("/host:metadata", "Hlo Proto");
/// Maximum nesting depth of tuples.
const DEEPEST: u32 = 8;
/// Maximum number of members that a formula may generate, summed over all groups of a collective.
const MOST_MEMBERS: u64 = 1 << 20;

/// A collective in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HloCollective {
    pub kind: CollectiveKind,
    /// Bytes of the result that one member gets.
    pub output: u64,
    /// Groups of devices; devices are numbered across the job. Empty if all devices form one group.
    pub groups: Vec<Vec<u64>>,
}

impl HloCollective {
    /// Returns the collective's `comm_size` among `members` members: one member's input for an
    /// all-gather, and the whole buffer for other kinds.
    pub fn comm_size(&self, members: u64) -> Option<u64> {
        match self.kind {
            CollectiveKind::AllGather => Some(self.output / members.max(1)),
            CollectiveKind::ReduceScatter => self.output.checked_mul(members),
            _ => Some(self.output),
        }
        .filter(|bytes| *bytes <= i64::MAX as u64)
    }
}

/// A program: its name, and its collectives, keyed by instruction name. The value of a collective is `None` if its
/// groups cannot be determined.
#[derive(Debug, Default)]
struct HloModuleCollectives {
    name: String,
    collectives: BTreeMap<String, Option<HloCollective>>,
}

/// Programs of a job.
#[derive(Debug, Default)]
pub(super) struct HloModules {
    /// Programs of each file, by program number.
    files: Vec<BTreeMap<u64, HloModuleCollectives>>,
    /// Number of the file's first device within the job.
    first: u64,
}

impl HloModules {
    /// Starts a file whose first device has the number `first`.
    pub fn begin_file(&mut self, first: u64) {
        self.files.push(BTreeMap::new());
        self.first = first;
    }

    /// Returns the index of the file that is being read.
    pub fn index_of_file_being_read(&self) -> usize {
        self.files.len() - 1
    }

    /// Reads the programs of a file.
    pub fn read_programs(&mut self, space: &HostProfilePlanes<'_>) -> Result<(), TraceError> {
        for plane in space.planes.iter().filter(|plane| plane.name == PROGRAMS.0) {
            for (&id, kind) in &plane.event_kinds {
                // Newer profiles store the program in a stat; older ones store it in the metadata of the event's kind.
                let mut found = kind.metadata;
                for &stat in &kind.stats {
                    plane.decode_stat_and_visit_name_and_value(stat, &mut |name, value| {
                        if let (true, XplaneStatValue::Bytes(bytes)) = (name == PROGRAMS.1, value) {
                            found = Some(bytes);
                        }
                    })?;
                }
                if let Some(proto) = found {
                    let module = read_module_collectives(proto)?;
                    let last = self.files.last_mut().expect("a file has begun");
                    last.insert(id as u64, module);
                }
            }
        }
        Ok(())
    }

    /// Returns the collective of the instruction `op` in a file's program. The result is `None` if the instruction is
    /// not a collective, and `Some(None)` if its groups are unknown.
    pub fn find_collective(
        &self,
        file: usize,
        program: Option<u64>,
        module: Option<&str>,
        op: &str,
    ) -> Option<Option<&HloCollective>> {
        let modules = self.files.get(file)?;
        let found = match program.and_then(|id| modules.get(&id)) {
            Some(found) => found,
            // Several programs may have the same name. If only one of them has the instruction, it is used.
            None => {
                let has = |m: &&HloModuleCollectives| {
                    m.collectives.contains_key(op) && module.is_none_or(|name| m.name == name)
                };
                let mut all = modules.values().filter(has);
                all.next().filter(|_| all.next().is_none())?
            }
        };
        found.collectives.get(op).map(Option::as_ref)
    }
}

/// The devices that run a program: one for each pair of a partition and a replica.
#[derive(Debug, Default)]
struct ProgramDeviceAssignment {
    partitions: Vec<Vec<u64>>,
}

impl ProgramDeviceAssignment {
    fn parse(message: MessageBytesAndOffset<'_>) -> Result<Self, TraceError> {
        let mut this = Self::default();
        for_each_field(message, |number, value| {
            if let (3, WireValue::Bytes(devices, offset)) = (number, value) {
                let mut ids = Vec::new();
                for_each_field((devices, offset), |number, value| {
                    if number == 1 {
                        append_numbers(value, &mut ids)?;
                    }
                    Ok(())
                })?;
                this.partitions.push(ids);
            }
            Ok(())
        })?;
        Ok(this)
    }

    fn replica_count(&self) -> u64 {
        self.partitions.first().map_or(0, |ids| ids.len() as u64)
    }

    /// Returns the device to which the number `id` in a group refers. If there are several replicas and several
    /// partitions, a device is identified only by a global number (`global`).
    fn device_of_group_number(&self, id: u64, global: bool) -> Option<u64> {
        let (replicas, partitions) = (self.replica_count(), self.partitions.len() as u64);
        let (replica, partition) = match () {
            () if partitions == 0 => return Some(id),
            () if partitions == 1 => (id, 0),
            () if replicas == 1 => (0, id),
            () if global => (id / partitions, id % partitions),
            () => return None,
        };
        let ids = self.partitions.get(partition as usize)?;
        ids.get(replica as usize).copied()
    }

    /// Returns all devices, in order of global number.
    fn all_devices(&self) -> Vec<u64> {
        let partitions = &self.partitions;
        let replica = |replica: usize| partitions.iter().filter_map(move |ids| ids.get(replica));
        (0..self.replica_count() as usize)
            .flat_map(replica)
            .copied()
            .collect()
    }
}

/// Appends the numbers of a packed field, or a single number.
fn append_numbers(value: WireValue<'_>, into: &mut Vec<u64>) -> Result<(), TraceError> {
    match value {
        WireValue::Varint(number) => into.push(number),
        WireValue::Bytes(bytes, offset) => {
            let mut cursor = WireCursor::new(bytes, offset);
            while !cursor.is_empty() {
                into.push(cursor.read_varint()?);
            }
        }
        _ => {}
    }
    Ok(())
}

/// An instruction that is a collective, or that wraps one.
#[derive(Debug, Default)]
struct HloCollectiveInstruction {
    name: String,
    opcode: String,
    /// Bytes of the whole result, and bytes of its last element if the result is a tuple.
    bytes: Option<(u64, u64)>,
    groups: Vec<Vec<u64>>,
    /// True if the groups are written in a notation that this reader does not support.
    unknown_groups: bool,
    global: bool,
    called: Vec<u64>,
}

/// Opcodes that are collectives.
const OPCODES: [(&str, CollectiveKind); 7] = [
    ("all-reduce", CollectiveKind::AllReduce),
    ("all-reduce-start", CollectiveKind::AllReduce),
    ("all-gather", CollectiveKind::AllGather),
    ("all-gather-start", CollectiveKind::AllGather),
    ("reduce-scatter", CollectiveKind::ReduceScatter),
    ("all-to-all", CollectiveKind::AllToAll),
    ("collective-broadcast", CollectiveKind::Broadcast),
];
/// Opcode that runs a computation asynchronously.
const ASYNC: &str = "async-start";

impl HloCollectiveInstruction {
    fn collective_kind(&self) -> Option<CollectiveKind> {
        let known = OPCODES.iter().find(|(opcode, _)| *opcode == self.opcode);
        known.map(|(_, kind)| *kind)
    }

    fn parse(message: MessageBytesAndOffset<'_>) -> Result<Self, TraceError> {
        let mut this = Self::default();
        for_each_field(message, |number, value| {
            match (number, value) {
                (1, WireValue::Bytes(name, _)) => {
                    this.name = super::space::decode_utf8_lossily(name).into_owned()
                }
                (2, WireValue::Bytes(code, _)) => {
                    this.opcode = super::space::decode_utf8_lossily(code).into_owned();
                }
                (3, WireValue::Bytes(shape, offset)) => {
                    this.bytes = shape_bytes((shape, offset), DEEPEST)?;
                }
                (38, value) => append_numbers(value, &mut this.called)?,
                (49, WireValue::Bytes(group, offset)) => this.read_group((group, offset))?,
                (71, WireValue::Varint(global)) => this.global = global != 0,
                (87, WireValue::Bytes(list, offset)) => this.read_device_list((list, offset))?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(this)
    }

    fn read_group(&mut self, message: MessageBytesAndOffset<'_>) -> Result<(), TraceError> {
        let mut ids = Vec::new();
        for_each_field(message, |number, value| match number {
            1 => append_numbers(value, &mut ids),
            _ => Ok(()),
        })?;
        self.groups.push(ids);
        Ok(())
    }

    fn read_device_list(&mut self, message: MessageBytesAndOffset<'_>) -> Result<(), TraceError> {
        self.groups.clear();
        for_each_field(message, |number, value| {
            match (number, value) {
                (1, WireValue::Bytes(group, offset)) => self.read_group((group, offset))?,
                (2, WireValue::Bytes(formula, offset)) => match expand_iota((formula, offset))? {
                    Some(groups) => self.groups = groups,
                    None => self.unknown_groups = true,
                },
                _ => self.unknown_groups = true,
            }
            Ok(())
        })
    }

    /// Returns the collective that this instruction runs among the devices of `assignment`.
    fn to_collective(&self, assignment: &ProgramDeviceAssignment) -> Option<HloCollective> {
        let kind = self.collective_kind()?;
        let (all, last) = self.bytes?;
        // The result of `all-gather-start` also contains the inputs, so use only the last element.
        let output = if self.opcode == "all-gather-start" {
            last
        } else {
            all
        };
        if self.unknown_groups {
            return None;
        }
        let device = |id: &u64| assignment.device_of_group_number(*id, self.global);
        let groups = self.groups.iter().filter(|group| !group.is_empty());
        let groups = groups.map(|ids| ids.iter().map(device).collect());
        let mut groups = groups.collect::<Option<Vec<Vec<u64>>>>()?;
        if groups.is_empty() && !assignment.partitions.is_empty() {
            // If there are several replicas and several partitions, an empty list of groups may
            // mean the devices of only one partition.
            if assignment.replica_count() > 1 && assignment.partitions.len() > 1 && !self.global {
                return None;
            }
            groups.push(assignment.all_devices());
        }
        Some(HloCollective {
            kind,
            output,
            groups,
        })
    }
}

/// Expands groups that are given as a formula: the integers starting at 0 are arranged in a grid, transposed, and
/// divided into equal groups.
fn expand_iota(message: MessageBytesAndOffset<'_>) -> Result<Option<Vec<Vec<u64>>>, TraceError> {
    let (mut count, mut each) = (0, 0);
    let (mut grid, mut order) = (Vec::new(), Vec::new());
    for_each_field(message, |number, value| {
        match (number, value) {
            (1, WireValue::Varint(number)) => count = number,
            (2, WireValue::Varint(number)) => each = number,
            (3, value) => append_numbers(value, &mut grid)?,
            (4, value) => append_numbers(value, &mut order)?,
            _ => {}
        }
        Ok(())
    })?;
    let total = |sizes: &[u64]| sizes.iter().try_fold(1_u64, |all, n| all.checked_mul(*n));
    let members = total(&grid);
    let mut axes = order.clone();
    axes.sort_unstable();
    let sound = members == total(&[count, each])
        && members.is_some_and(|n| (1..=MOST_MEMBERS).contains(&n))
        && axes.iter().copied().eq(0..grid.len() as u64);
    if !sound {
        return Ok(None);
    }
    // Stride of each axis of the device grid, in the order of traversal.
    let strides = order.iter().map(|&axis| {
        let inner = &grid[axis as usize + 1..];
        (grid[axis as usize], inner.iter().product::<u64>())
    });
    let strides: Vec<(u64, u64)> = strides.collect();
    let member = |index: u64| {
        let walk = |(rest, id): (u64, u64), &(size, stride): &(u64, u64)| {
            (rest / size, id + rest % size * stride)
        };
        strides.iter().rev().fold((index, 0), walk).1
    };
    let group = |group: u64| (group * each..(group + 1) * each).map(member).collect();
    Ok(Some((0..count).map(group).collect()))
}

/// Returns the number of bits per element of the XLA element type with the number `kind`.
fn element_bits(kind: u64) -> Option<u64> {
    Some(match kind {
        26 | 27 => 2,
        21 | 22 | 32 => 4,
        1 | 2 | 6 | 19 | 20 | 23 | 24 | 25 | 28 | 29 | 33 => 8,
        3 | 7 | 10 | 16 => 16,
        4 | 8 | 11 => 32,
        5 | 9 | 12 | 15 => 64,
        18 => 128,
        // The HLO type `TOKEN` only orders operations and carries no data.
        17 => 0,
        _ => return None,
    })
}

/// Returns the bytes of a shape; for a tuple, also returns the bytes of its last element. Returns `None` if the sizes
/// are unknown.
fn shape_bytes(
    message: MessageBytesAndOffset<'_>,
    deepest: u32,
) -> Result<Option<(u64, u64)>, TraceError> {
    let (mut kind, mut sizes, mut elements) = (0, Vec::new(), Vec::new());
    for_each_field(message, |number, value| {
        match (number, value) {
            (2, WireValue::Varint(number)) => kind = number,
            (3, value) => append_numbers(value, &mut sizes)?,
            (4, WireValue::Bytes(element, offset)) => elements.push((element, offset)),
            _ => {}
        }
        Ok(())
    })?;
    if kind != 13 {
        let bits = element_bits(kind);
        let bits = sizes
            .iter()
            .try_fold(bits, |bits, n| Some(bits?.checked_mul(*n)));
        let bytes = bits.flatten().map(|bits: u64| bits.div_ceil(8));
        return Ok(bytes.map(|bytes| (bytes, bytes)));
    }
    if deepest == 0 {
        return Ok(None);
    }
    let (mut all, mut last) = (0_u64, 0);
    for element in elements {
        let Some((bytes, _)) = shape_bytes(element, deepest - 1)? else {
            return Ok(None);
        };
        let Some(sum) = all.checked_add(bytes) else {
            return Ok(None);
        };
        (all, last) = (sum, bytes);
    }
    Ok(Some((all, last)))
}

/// Reads the collectives of a program.
fn read_module_collectives(
    proto: MessageBytesAndOffset<'_>,
) -> Result<HloModuleCollectives, TraceError> {
    let mut module = HloModuleCollectives::default();
    let mut assignment = ProgramDeviceAssignment::default();
    // `found` contains the collectives, each with the id of its computation. `wrappers` contains
    // the instructions that call a computation.
    let mut found: Vec<(u64, HloCollectiveInstruction)> = Vec::new();
    let mut wrappers: Vec<HloCollectiveInstruction> = Vec::new();
    for_each_field(proto, |number, value| {
        let (1, WireValue::Bytes(bytes, offset)) = (number, value) else {
            return Ok(());
        };
        for_each_field((bytes, offset), |number, value| {
            match (number, value) {
                (1, WireValue::Bytes(name, _)) => {
                    module.name = super::space::decode_utf8_lossily(name).into_owned();
                }
                (3, WireValue::Bytes(computation, offset)) => {
                    let first = found.len();
                    let mut id = 0;
                    for_each_field((computation, offset), |number, value| {
                        match (number, value) {
                            (2, WireValue::Bytes(bytes, offset)) => {
                                let instruction = HloCollectiveInstruction::parse((bytes, offset))?;
                                if instruction.collective_kind().is_some() {
                                    found.push((0, instruction));
                                } else if instruction.opcode == ASYNC {
                                    wrappers.push(instruction);
                                }
                            }
                            (5, WireValue::Varint(number)) => id = number,
                            _ => {}
                        }
                        Ok(())
                    })?;
                    found[first..].iter_mut().for_each(|(own, _)| *own = id);
                }
                (15, WireValue::Bytes(devices, offset)) => {
                    assignment = ProgramDeviceAssignment::parse((devices, offset))?;
                }
                _ => {}
            }
            Ok(())
        })
    })?;
    for wrapper in wrappers {
        let mut inner = found.iter().filter(|(at, _)| wrapper.called.contains(at));
        if let Some((_, inner)) = inner.next() {
            let collective = inner.to_collective(&assignment);
            module.collectives.insert(wrapper.name, collective);
        }
    }
    for (_, instruction) in found {
        let collective = instruction.to_collective(&assignment);
        module.collectives.insert(instruction.name, collective);
    }
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::encoder::ProtobufMessageBuilder;

    fn encode_message_filled_by_closure(make: impl FnOnce(&mut ProtobufMessageBuilder)) -> Vec<u8> {
        let mut message = ProtobufMessageBuilder::default();
        make(&mut message);
        message.as_bytes().to_vec()
    }

    fn encode_shape(kind: u64, sizes: &[u64], elements: &[Vec<u8>]) -> Vec<u8> {
        encode_message_filled_by_closure(|m| {
            m.append_varint(2, kind);
            m.append_packed(3, sizes);
            elements.iter().for_each(|e| m.append_bytes(4, e));
        })
    }

    #[test]
    fn shapes_have_the_bytes_of_their_elements() {
        let of = |shape: &[u8]| shape_bytes((shape, 0), DEEPEST).unwrap();
        // 3 x 5 elements take 30 B as bf16 numbers, and 60 bits as 4-bit integers. A scalar of f32
        // takes 4 B.
        let bf16 = encode_shape(16, &[3, 5], &[]);
        assert_eq!(of(&bf16), Some((30, 30)));
        assert_eq!(of(&encode_shape(21, &[3, 5], &[])), Some((8, 8)));
        let f32 = encode_shape(11, &[], &[]);
        assert_eq!(of(&encode_shape(13, &[], &[bf16, f32])), Some((34, 4)));
        assert_eq!(of(&encode_shape(11, &[1 << 40, 1 << 40], &[])), None);
        assert_eq!(of(&encode_shape(99, &[1], &[])), None);
    }

    #[test]
    fn formulas_make_groups() {
        let of = |count, each, grid: &[u64], order: &[u64]| {
            let formula = encode_message_filled_by_closure(|m| {
                m.append_varint(1, count);
                m.append_varint(2, each);
                m.append_packed(3, grid);
                m.append_packed(4, order);
            });
            expand_iota((&formula, 0)).unwrap()
        };
        // The notation [2,4]<=[8] lists the numbers in ascending order.
        let rows = vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
        assert_eq!(of(2, 4, &[8], &[0]), Some(rows));
        // The notation [4,2]<=[2,4]T(1,0) lists the columns of a grid whose rows are 0 1 2 3 and 4 5 6 7.
        let columns = vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
        assert_eq!(of(4, 2, &[2, 4], &[1, 0]), Some(columns));
        assert_eq!(of(4, 2, &[2, 3], &[1, 0]), None);
        assert_eq!(of(2, 4, &[8], &[1]), None);
        assert_eq!(of(1 << 40, 1 << 20, &[1 << 60], &[0]), None);
    }

    #[test]
    fn numbers_of_groups_are_replicas_or_partitions_or_both() {
        let of = |partitions: &[&[u64]], id, global| {
            let partitions = partitions.iter().map(|ids| ids.to_vec()).collect();
            ProgramDeviceAssignment { partitions }.device_of_group_number(id, global)
        };
        assert_eq!(of(&[], 5, false), Some(5));
        assert_eq!(of(&[&[7, 6, 5]], 1, false), Some(6));
        assert_eq!(of(&[&[3], &[4], &[9]], 2, true), Some(9));
        // The job has two replicas of two partitions. So the global number 2 refers to partition 0 of replica 1.
        assert_eq!(of(&[&[0, 2], &[1, 3]], 2, true), Some(2));
        assert_eq!(of(&[&[0, 2], &[1, 3]], 1, false), None);
        assert_eq!(of(&[&[0]], 1, false), None);
    }

    #[test]
    fn programs_tell_their_collectives() {
        let instruction =
            |name: &str, opcode: &str, shape: &[u8], rest: &dyn Fn(&mut ProtobufMessageBuilder)| {
                encode_message_filled_by_closure(|m| {
                    m.append_bytes(1, name.as_bytes());
                    m.append_bytes(2, opcode.as_bytes());
                    m.append_bytes(3, shape);
                    rest(m);
                })
            };
        let f32s = encode_shape(11, &[256], &[]);
        let group = |ids: &[u64]| encode_message_filled_by_closure(|m| m.append_packed(1, ids));
        let grouped = |m: &mut ProtobufMessageBuilder| {
            m.append_bytes(49, &group(&[0, 1]));
            m.append_bytes(49, &group(&[2, 3]));
        };
        let pair = encode_shape(13, &[], &[encode_shape(11, &[64], &[]), f32s.clone()]);
        let inner = encode_message_filled_by_closure(|m| {
            m.append_varint(5, 77);
            m.append_bytes(2, &instruction("rs", "reduce-scatter", &f32s, &|_| {}));
        });
        let entry = encode_message_filled_by_closure(|m| {
            m.append_bytes(2, &instruction("add.1", "add", &f32s, &|_| {}));
            m.append_bytes(
                2,
                &instruction("all-reduce.1", "all-reduce", &f32s, &grouped),
            );
            m.append_bytes(2, &instruction("ag", "all-gather-start", &pair, &|_| {}));
            m.append_bytes(
                2,
                &instruction("rs-start", "async-start", &pair, &|m| {
                    m.append_packed(38, &[77])
                }),
            );
        });
        let proto = encode_message_filled_by_closure(|m| {
            m.append_bytes(
                1,
                &encode_message_filled_by_closure(|m| {
                    m.append_bytes(1, b"jit_step");
                    m.append_bytes(3, &inner);
                    m.append_bytes(3, &entry);
                }),
            );
        });
        let module = read_module_collectives((&proto, 0)).unwrap();
        assert_eq!(module.name, "jit_step");
        let names: Vec<&String> = module.collectives.keys().collect();
        assert_eq!(names, ["ag", "all-reduce.1", "rs", "rs-start"]);
        let of = |name: &str| module.collectives[name].clone().unwrap();
        // 256 numbers of 4 B are 1,024 B.
        let reduced = of("all-reduce.1");
        assert_eq!(
            (reduced.kind, reduced.output),
            (CollectiveKind::AllReduce, 1024)
        );
        assert_eq!(reduced.groups, [[0, 1], [2, 3]]);
        // The second element of the result of `all-gather-start` is the output, and each of four members contributes a
        // quarter of it.
        let gathered = of("ag");
        assert_eq!(
            (gathered.kind, gathered.output),
            (CollectiveKind::AllGather, 1024)
        );
        assert_eq!(gathered.comm_size(4), Some(256));
        assert_eq!(of("rs-start").comm_size(4), Some(4096));
    }
}
