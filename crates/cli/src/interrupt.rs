//! Ctrl-C while chatting: stops an answer; at the prompt, twice, the program.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Result;

use crate::failure::BadInput;

/// Waiting for a line.
const WAITING: u8 = 0;
/// Waiting for a line, and Ctrl-C was pressed once.
const WARNED: u8 = 1;
/// Answering.
const ANSWERING: u8 = 2;
/// Answering, and Ctrl-C was pressed.
const STOPPED: u8 = 3;

/// What Ctrl-C means now.
#[derive(Clone)]
pub struct Interrupts {
    state: Arc<AtomicU8>,
}

impl Interrupts {
    /// Takes Ctrl-C over from the operating system.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> Result<Interrupts> {
        let interrupts = Interrupts { state: Arc::new(AtomicU8::new(WAITING)) };
        let heard = interrupts.clone();
        ctrlc::set_handler(move || heard.pressed())
            .map_err(|source| BadInput::Interrupts { source })?;
        Ok(interrupts)
    }

    /// From here on, Ctrl-C stops the answer.
    pub fn answering(&self) {
        self.state.store(ANSWERING, Ordering::SeqCst);
    }

    /// From here on, Ctrl-C leaves.
    pub fn waiting(&self) {
        self.state.store(WAITING, Ordering::SeqCst);
    }

    /// Whether the answer should stop.
    pub fn check(&self) -> ControlFlow<()> {
        match self.state.load(Ordering::SeqCst) {
            STOPPED => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// On the handler's own thread. Nothing is lost by leaving here: answers and receipts are
    /// written before the program waits.
    fn pressed(&self) {
        match self.state.load(Ordering::SeqCst) {
            WAITING => {
                self.state.store(WARNED, Ordering::SeqCst);
                eprintln!("\nCtrl-C again or Ctrl-D leaves");
            }
            WARNED => std::process::exit(0),
            _ => self.state.store(STOPPED, Ordering::SeqCst),
        }
    }
}

/// Ctrl-C during long work: it ends after the step that it is at.
pub struct Stop {
    pressed: Arc<AtomicU8>,
}

impl Stop {
    /// Takes Ctrl-C over from the operating system; pressed twice, it ends the program.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> Result<Stop> {
        let pressed = Arc::new(AtomicU8::new(0));
        let heard = pressed.clone();
        ctrlc::set_handler(move || {
            if heard.fetch_add(1, Ordering::SeqCst) > 0 {
                std::process::exit(130);
            }
        })
        .map_err(|source| BadInput::Interrupts { source })?;
        Ok(Stop { pressed })
    }

    /// Whether to stop.
    pub fn check(&self) -> ControlFlow<()> {
        match self.pressed.load(Ordering::SeqCst) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}
