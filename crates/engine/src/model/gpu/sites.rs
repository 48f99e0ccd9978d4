//! Names for what a GPU reports: kernels know numbers, people want tensors and layers.

use numerics::cuda::{Failed, Site};

use super::super::error::ModelError;
use super::super::weight::Weight;
use crate::index::LayerIdx;

/// Every place of a network where a value can turn out not finite.
#[derive(Default)]
pub(super) struct Sites {
    known: Vec<Known>,
}

struct Known {
    layer: Option<LayerIdx>,
    part: String,
    /// Where it is a projection: its weights may be the reason.
    weight: Option<Weight>,
}

impl Sites {
    pub(super) fn part(&mut self, layer: Option<LayerIdx>, part: &str) -> Site {
        self.add(Known { layer, part: part.to_string(), weight: None })
    }

    pub(super) fn weight(&mut self, layer: Option<LayerIdx>, weight: &Weight) -> Site {
        let part = weight.name().to_string();
        self.add(Known { layer, part, weight: Some(weight.clone()) })
    }

    fn add(&mut self, known: Known) -> Site {
        self.known.push(known);
        Site(self.known.len() as u32)
    }

    /// The error of a report.
    pub(super) fn error(&self, failed: Failed) -> ModelError {
        let known = &self.known[failed.site.0 as usize - 1];
        let bad = known.weight.as_ref().and_then(|w| w.bad_weight(failed.at.row));
        bad.unwrap_or_else(|| ModelError::ActivationNotFinite {
            layer: known.layer.map_or("outside the layers".into(), |l| l.0.to_string()),
            part: known.part.clone(),
            token: failed.at.token,
            row: failed.at.row,
        })
    }
}
