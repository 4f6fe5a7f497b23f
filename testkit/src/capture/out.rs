//! Buffered output to a sink.

use super::program::{Hole, Op, Program, Text};
use std::io::{Result, Write};

/// Buffers bytes, and writes them in large chunks.
#[derive(Debug)]
pub(super) struct Out<W: Write> {
    sink: W,
    bytes: Vec<u8>,
}

const PIECE: usize = 1 << 18;

impl<W: Write> Out<W> {
    pub(super) fn new(sink: W) -> Self {
        Self {
            sink,
            bytes: Vec::with_capacity(2 * PIECE),
        }
    }

    pub(super) fn str(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(super) fn number(&mut self, mut value: u64) {
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
    pub(super) fn us(&mut self, ns: u64) {
        self.number(ns / 1000);
        let part = ns % 1000;
        let digit = |n: u64| b'0' + (n % 10) as u8;
        let rest = [b'.', digit(part / 100), digit(part / 10), digit(part)];
        self.bytes.extend_from_slice(&rest);
    }

    /// Writes a text without tensors.
    pub(super) fn numbered(&mut self, text: &Text, number: u64) {
        for (part, hole) in text {
            self.str(part);
            if *hole == Hole::Number {
                self.number(number);
            }
        }
    }

    /// Writes a text. Its holes are filled with the ids of the operator's tensors and storages.
    pub(super) fn filled(&mut self, text: &Text, slots: &[u32], ids: [&[u64]; 2], number: u64) {
        let mut slots = slots.iter();
        for (part, hole) in text {
            self.str(part);
            match hole {
                Hole::End => {}
                Hole::Number => self.number(number),
                Hole::Tensor => {
                    let slot = slots.next().expect("every tensor has a slot");
                    self.number(ids[0][*slot as usize]);
                    self.str(",");
                    self.number(ids[1][*slot as usize]);
                }
            }
        }
    }

    /// Writes a chunk if the buffer contains at least one.
    pub(super) fn pass(&mut self) -> Result<()> {
        if self.bytes.len() >= PIECE {
            self.sink.write_all(&self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Writes the rest of the buffer.
    pub(super) fn finish(mut self) -> Result<()> {
        self.sink.write_all(&self.bytes)?;
        self.sink.flush()
    }
}

/// Returns the value of an operator's [`Hole::Number`] in a step.
pub(super) fn number(op: &Op, step: u32) -> u64 {
    u64::from(op.number.0) + u64::from(op.number.1) * u64::from(step)
}

/// Returns the slots of an operator's tensors.
pub(super) fn slots<'p>(program: &'p Program, op: &Op) -> &'p [u32] {
    let from = op.args as usize;
    &program.args[from..from + usize::from(op.inputs) + usize::from(op.outputs)]
}
