//! A sequence being read and written: the prompt in chunks, then token by token.

pub mod digest;
pub mod sampler;

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::counters::PhaseCounters;
use crate::index::TokenId;
use crate::model::{Logits, Model, ModelError, State};

/// Tokens of a prompt that go through the layers together, unless the caller says otherwise.
pub const CHUNK_DEFAULT: usize = 512;

/// One sequence on a model.
pub struct Session {
    model: Arc<Model>,
    state: State,
    chunk: usize,
    prefill: PhaseCounters,
    decode: PhaseCounters,
}

impl Session {
    /// Before the first token.
    pub fn new(model: Arc<Model>, chunk: usize) -> Session {
        let state = State::new(model.description());
        Session::resume(model, state, chunk)
    }

    /// From a state that the same model left.
    pub fn resume(model: Arc<Model>, state: State, chunk: usize) -> Session {
        let (prefill, decode) = Default::default();
        Session { model, state, chunk: chunk.max(1), prefill, decode }
    }

    /// Reads a prompt and returns the logits of its last position, `[vocab]`.
    ///
    /// # Errors
    /// As [`Model::forward`]; also a prompt that is empty or does not fit, before any work.
    pub fn prompt(&mut self, ids: &[TokenId]) -> Result<Vec<f32>, ModelError> {
        let logits = self.prompt_until(ids, |_| ControlFlow::Continue(()))?;
        Ok(logits.expect("nobody stopped it"))
    }

    /// The same, asking after each chunk but the last, with the tokens read so far, whether to go
    /// on; `None` if not.
    ///
    /// The session is then whole: its state has the positions that were read.
    ///
    /// # Errors
    /// As `prompt`.
    pub fn prompt_until(
        &mut self,
        ids: &[TokenId],
        mut watch: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        self.fits(ids.len())?;
        let mut read = 0;
        for part in ids.chunks(self.chunk) {
            read += part.len();
            let which = if read == ids.len() { Logits::Last } else { Logits::None };
            let out = self.model.forward(&mut self.state, part, which, &mut self.prefill)?;
            if read == ids.len() {
                return Ok(Some(out));
            }
            if watch(read).is_break() {
                return Ok(None);
            }
        }
        unreachable!("`fits` refused an empty prompt")
    }

    /// Reads a prompt and hands on the logits of every position, one row after the other.
    ///
    /// # Errors
    /// As `prompt`.
    pub fn prompt_rows(
        &mut self,
        ids: &[TokenId],
        mut row: impl FnMut(&[f32]),
    ) -> Result<(), ModelError> {
        self.fits(ids.len())?;
        for part in ids.chunks(self.chunk) {
            let all = self.model.forward(&mut self.state, part, Logits::All, &mut self.prefill)?;
            all.chunks(self.model.description().vocab).for_each(&mut row);
        }
        Ok(())
    }

    /// Reads one generated token and returns the logits that follow it, `[vocab]`.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn step(&mut self, token: TokenId) -> Result<Vec<f32>, ModelError> {
        self.model.forward(&mut self.state, &[token], Logits::Last, &mut self.decode)
    }

    fn fits(&self, more: usize) -> Result<(), ModelError> {
        let limit = self.model.description().positions_max;
        let needed = self.state.positions() + more;
        if more == 0 {
            return Err(ModelError::EmptyPrompt);
        }
        if needed > limit { Err(ModelError::TooLong { needed, limit }) } else { Ok(()) }
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What the sequence has left behind so far.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Work of prompts and of generated tokens.
    pub fn counters(&self) -> (PhaseCounters, PhaseCounters) {
        (self.prefill, self.decode)
    }
}
