//! Writes to a sink through a buffer.

use super::program::{ProgramOperator, StepProgram, TemplateTextHoleKind, TextPartsWithHoles};
use std::io::{Result, Write};

/// Buffers bytes, and writes them in large chunks.
#[derive(Debug)]
pub(super) struct BufferedOutput<W: Write> {
    sink: W,
    bytes: Vec<u8>,
}

const PIECE: usize = 1 << 18;

impl<W: Write> BufferedOutput<W> {
    pub(super) fn new(sink: W) -> Self {
        Self {
            sink,
            bytes: Vec::with_capacity(2 * PIECE),
        }
    }

    pub(super) fn write_str(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(super) fn write_number(&mut self, mut value: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.bytes.extend_from_slice(&digits[at..]);
    }

    /// Writes ns as microseconds with three decimals.
    pub(super) fn write_microseconds(&mut self, ns: u64) {
        self.write_number(ns / 1000);
        let part = ns % 1000;
        let digit = |n: u64| b'0' + (n % 10) as u8;
        let rest = [b'.', digit(part / 100), digit(part / 10), digit(part)];
        self.bytes.extend_from_slice(&rest);
    }

    /// Writes a text that has no tensors; `number` fills its number placeholder.
    pub(super) fn write_text_with_number(&mut self, text: &TextPartsWithHoles, number: u64) {
        for (part, hole) in text {
            self.write_str(part);
            if *hole == TemplateTextHoleKind::Number {
                self.write_number(number);
            }
        }
    }

    /// Writes a text, and fills its placeholders with the ids of the operator's tensors and storages.
    pub(super) fn write_text_with_tensor_ids(
        &mut self,
        text: &TextPartsWithHoles,
        slots: &[u32],
        ids: [&[u64]; 2],
        number: u64,
    ) {
        let mut slots = slots.iter();
        for (part, hole) in text {
            self.write_str(part);
            match hole {
                TemplateTextHoleKind::End => {}
                TemplateTextHoleKind::Number => self.write_number(number),
                TemplateTextHoleKind::Tensor => {
                    let slot = slots.next().expect("every tensor has a slot");
                    self.write_number(ids[0][*slot as usize]);
                    self.write_str(",");
                    self.write_number(ids[1][*slot as usize]);
                }
            }
        }
    }

    /// Writes the buffer if it contains at least one full chunk.
    pub(super) fn flush_full_chunk(&mut self) -> Result<()> {
        if self.bytes.len() >= PIECE {
            self.sink.write_all(&self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Writes the rest of the buffer.
    pub(super) fn flush_rest(mut self) -> Result<()> {
        self.sink.write_all(&self.bytes)?;
        self.sink.flush()
    }
}

/// Returns the integer that replaces an operator's [`TemplateTextHoleKind::Number`] in a step.
pub(super) fn number_placeholder_value_in_step(op: &ProgramOperator, step: u32) -> u64 {
    u64::from(op.number.0) + u64::from(op.number.1) * u64::from(step)
}

/// Returns the slots (indices) of an operator's tensors in the program.
pub(super) fn tensor_slots_of_operator<'p>(
    program: &'p StepProgram,
    op: &ProgramOperator,
) -> &'p [u32] {
    let from = op.args as usize;
    &program.args[from..from + usize::from(op.inputs) + usize::from(op.outputs)]
}
