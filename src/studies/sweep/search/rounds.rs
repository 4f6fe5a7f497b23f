//! Searches layers in turns. In each round, each layer is searched once while all other axes stay at the best point so
//! far.
//!
//! A joint search of several layers visits as many points as the product of the layers' sizes. A round of turns visits
//! only their sum. The search ends after the first round without an improvement. After that round, no change within a
//! single layer can improve the point. In a random layer, this holds only for the values that were drawn.

use super::{StudyExplorer, SweepError};
use crate::sweep::setting::Settings;

/// One layer's turn in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchLayerTurnRecord {
    /// Index of the round, counting from 1.
    pub round: u32,
    /// Index of the layer among the study's layers.
    pub layer: usize,
    /// How many points this turn visited for the first time.
    pub new_points: u64,
    /// The best point after the turn.
    pub best: Option<Settings>,
    /// True if this turn found the best point.
    pub is_better: bool,
}

impl StudyExplorer<'_> {
    /// Returns the turns so far, in order.
    pub fn list_turns_so_far(&self) -> &[SearchLayerTurnRecord] {
        &self.turns
    }

    /// Searches the layers in turns, for at most `rounds` rounds.
    pub(super) fn search_layers_in_turns(&mut self, rounds: u32) -> Result<(), SweepError> {
        let study = self.study;
        // Empty settings select the first value of every axis.
        let mut at = Settings::new();
        for layer in &study.layers {
            at.extend(study.layer_settings_at_index(layer, 0));
        }
        let mut best: Option<f64> = None;
        for round in 1..=rounds {
            let mut found = false;
            for (index, layer) in study.layers.iter().enumerate() {
                let mut fixed = at.clone();
                for axis in &layer.axes {
                    let keys = &study.axes[*axis].keys;
                    fixed.retain(|key, _| !keys.contains(key));
                }
                let known = self.rows.len();
                self.explore_search_layers_from_depth(index, &fixed)?;
                let scores = self.rows[known..].iter().enumerate();
                let scores = scores.filter_map(|(i, row)| Some((self.row_score(row)?, known + i)));
                let least = scores.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                let better = least.filter(|(score, _)| best.is_none_or(|best| *score < best));
                if let Some((score, row)) = better {
                    best = Some(score);
                    at = self.rows[row].point.clone();
                    found = true;
                }
                self.turns.push(SearchLayerTurnRecord {
                    round,
                    layer: index,
                    new_points: (self.rows.len() - known) as u64,
                    best: best.map(|_| at.clone()),
                    is_better: better.is_some(),
                });
            }
            if !found {
                break;
            }
        }
        Ok(())
    }
}
