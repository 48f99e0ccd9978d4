//! `tarfa run`: goes on from a text.

use std::ops::ControlFlow;

use anyhow::Result;
use clap::Args;
use engine::generate::Session;
use engine::generate::sampler::Sampler;
use engine::index::TokenId;
use indicatif::ProgressBar;

use crate::answer::{Request, Watcher, generate};
use crate::figures::Figures;
use crate::flags::{MachineArgs, ModelArgs, OutputArgs, SamplingArgs, at_least_one};
use crate::printer::{self, Printer};
use crate::progress;
use crate::prompt::{PromptArgs, tokens_max};
use crate::report::{AnswerJson, check_receipt_folder, receipt};
use crate::source::{self, Source};
use crate::tiering::TierArgs;

const EXAMPLES: &str = "\
Examples:
  tarfa run \"Once upon a time\"
  tarfa run --temperature 0.8 --top-p 0.95 --seed 7 \"One day, a cat\"
  tarfa run --model DIR --max-tokens 500 --receipt answer.json \"The sea\"
  tarfa run --ids 446,420,312 --json

The answer goes to stdout as it comes, one line of figures to stderr.";

/// Tokens to generate, unless asked otherwise.
const TOKENS_DEFAULT: usize = 200;

/// Flags of `run`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    model: ModelArgs,

    /// Tokens to generate at most [default: 200]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_tokens: Option<usize>,

    /// Stop where the model ends its text (the default)
    #[arg(long, overrides_with = "ignore_eos")]
    stop_at_eos: bool,

    /// Go on where the model would end its text
    #[arg(long, overrides_with = "stop_at_eos")]
    ignore_eos: bool,

    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    tiers: TierArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Shows an answer while it grows.
struct Show<'a> {
    bar: ProgressBar,
    printer: Printer,
    source: &'a Source,
}

impl Watcher for Show<'_> {
    fn read(&mut self, tokens: usize) -> ControlFlow<()> {
        self.bar.set_position(tokens as u64);
        ControlFlow::Continue(())
    }

    fn token(&mut self, token: TokenId) -> Result<ControlFlow<()>> {
        self.bar.finish_and_clear();
        self.printer.token(token)?;
        self.source.keeper.now_and_then(&self.source.model);
        Ok(ControlFlow::Continue(()))
    }
}

/// Answers, prints, and writes the receipt.
///
/// # Errors
/// Bad input, or an output that cannot be written.
pub fn run(args: &RunArgs) -> Result<()> {
    check_receipt_folder(args.output.receipt.as_deref())?;
    let source = Source::open(&args.model, &args.machine, &args.tiers)?;
    let prompt = args.prompt.ids(&source)?;
    let description = source.model.description();
    let params = args.sampling.params();
    let mut sampler = Sampler::new(params.clone(), description.vocab)?;
    let limit = description.positions_max;
    let eos = if args.ignore_eos { Vec::new() } else { source::eos(&source.checkpoint)? };
    let request = Request {
        prompt: &prompt,
        read: 0,
        tokens_max: tokens_max(args.max_tokens, TOKENS_DEFAULT, prompt.len(), limit)?,
        eos: &eos,
    };
    let tokenizer = source::tokenizer(&source.checkpoint)?;
    let mut show = Show {
        bar: progress::prompt(prompt.len(), args.machine.chunk),
        printer: Printer::new(tokenizer.as_ref(), !args.output.json),
        source: &source,
    };
    let mut session = Session::new(source.model.clone(), args.machine.chunk);
    let answer = generate(&mut session, &mut sampler, &request, &mut show);
    show.bar.finish_and_clear();
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return show.printer.abandon().and(Err(error)),
    };
    let text = show.printer.finish()?;
    source.finish()?;
    let figures = Figures::of(&answer, &source);
    if args.output.json {
        printer::json(&AnswerJson::new(&answer, text.as_deref(), figures))?;
    } else {
        figures.lines(&answer).iter().for_each(|line| eprintln!("{line}"));
    }
    if let Some(path) = &args.output.receipt {
        receipt(&source, &answer, &params, args.machine.chunk).write(path)?;
    }
    Ok(())
}
