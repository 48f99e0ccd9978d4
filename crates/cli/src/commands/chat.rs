//! `tarfa chat`: keeps a conversation, one message a line.

mod line;
mod talk;

use std::io::{BufRead, IsTerminal, Write, stdin, stdout};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::failure::{BadInput, message};
use crate::flags::{MachineArgs, ModelArgs, OutputArgs, SamplingArgs, at_least_one};
use crate::report::check_receipt_folder;
use crate::tiering::TierArgs;
use line::Line;
use talk::Talk;

const EXAMPLES: &str = "\
Examples:
  tarfa chat
  tarfa chat --model DIR --system \"Answer in one sentence.\" --temperature 0.8
  printf 'Hello!\\nWhere does a penguin live?\\n' | tarfa chat --json

In the chat: /reset forgets the conversation, /system TEXT sets the system message, /exit or
Ctrl-D leaves. Ctrl-C stops an answer. An answer ends where the checkpoint's generation config
says so. The receipt is that of the last answer; its prompt is all that came before.";

const COMMANDS: &str = "/exit leaves, /reset forgets the conversation, /system TEXT sets the \
                        system message";

/// Flags of `chat`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// System message to begin with
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Tokens of an answer at most [default: as many as the model has positions for]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_tokens: Option<usize>,

    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    tiers: TierArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl ChatArgs {
    fn receipt(&self) -> Option<&PathBuf> {
        self.output.receipt.as_ref()
    }
}

/// Reads lines until there are no more.
///
/// # Errors
/// A checkpoint that cannot chat; where nobody is at a terminal to read it, also any failed turn.
pub fn run(args: &ChatArgs) -> Result<()> {
    check_receipt_folder(args.receipt().map(PathBuf::as_path))?;
    let mut talk = Talk::begin(args)?;
    let at_terminal = stdin().is_terminal();
    while let Some(line) = next_line(at_terminal && !args.output.json)? {
        let done = match Line::parse(&line) {
            Line::Blank => Ok(()),
            Line::Exit => return Ok(()),
            Line::Reset => {
                talk.reset();
                Ok(())
            }
            Line::System(text) => {
                talk.set_system(text);
                Ok(())
            }
            Line::Unknown(command) => {
                eprintln!("{command} is no command: {COMMANDS}");
                Ok(())
            }
            Line::Say(text) => talk.turn(text),
        };
        match done {
            Err(error) if at_terminal => eprintln!("error: {}", message(&error)),
            done => done?,
        }
    }
    Ok(())
}

/// The next line without its end; `None` at the end of input.
fn next_line(ask: bool) -> Result<Option<String>> {
    if ask {
        let mut out = stdout().lock();
        out.write_all(b"> ")?;
        out.flush()?;
    }
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line);
    match read.map_err(|source| BadInput::Message { source })? {
        0 if ask => {
            writeln!(stdout().lock())?;
            Ok(None)
        }
        0 => Ok(None),
        _ => Ok(Some(line)),
    }
}
