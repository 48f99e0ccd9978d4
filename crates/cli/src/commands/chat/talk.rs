//! A conversation and the session that has read most of it.

use std::ops::ControlFlow;

use anyhow::Result;
use engine::generate::Session;
use engine::generate::sampler::Sampler;
use engine::index::TokenId;
use engine::text::{ChatMessage, ChatTemplate, OrderedJson, Tokenizer};
use indicatif::ProgressBar;

use super::ChatArgs;
use crate::answer::{Answer, Request, Watcher, generate};
use crate::failure::BadInput;
use crate::figures::Figures;
use crate::interrupt::Interrupts;
use crate::printer::{self, Printer};
use crate::progress;
use crate::prompt::tokens_max;
use crate::report::{AnswerJson, receipt};
use crate::source::{self, Source};

/// A conversation.
pub struct Talk<'a> {
    args: &'a ChatArgs,
    source: Source,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    eos: Vec<TokenId>,
    sampler: Sampler,
    interrupts: Interrupts,
    system: Option<String>,
    /// What was said, without the system message.
    messages: Vec<ChatMessage>,
    session: Session,
    /// What the session has read.
    read: Vec<TokenId>,
}

/// Shows an answer until Ctrl-C.
struct Show {
    bar: ProgressBar,
    printer: Printer,
    interrupts: Interrupts,
}

impl Watcher for Show {
    fn read(&mut self, tokens: usize) -> ControlFlow<()> {
        self.bar.set_position(tokens as u64);
        self.interrupts.check()
    }

    fn token(&mut self, token: TokenId) -> Result<ControlFlow<()>> {
        self.bar.finish_and_clear();
        self.printer.token(token)?;
        Ok(self.interrupts.check())
    }
}

impl<'a> Talk<'a> {
    /// Opens the model and everything that a chat needs.
    ///
    /// # Errors
    /// A checkpoint that cannot be run or has no tokenizer or template; senseless sampling.
    pub fn begin(args: &'a ChatArgs) -> Result<Talk<'a>> {
        let source = Source::open(&args.model, &args.machine, &args.tiers)?;
        let label = source.checkpoint.label().to_string();
        let tokenizer = source::tokenizer(&source.checkpoint)?;
        let vocab = source.model.description().vocab;
        Ok(Talk {
            tokenizer: tokenizer.ok_or(BadInput::NoTokenizerToChat { label })?,
            template: source::chat_template(&source.checkpoint)?,
            eos: source::eos(&source.checkpoint)?,
            sampler: Sampler::new(args.sampling.params(), vocab)?,
            interrupts: Interrupts::listen()?,
            system: args.system.clone(),
            messages: Vec::new(),
            session: Session::new(source.model.clone(), args.machine.chunk),
            read: Vec::new(),
            args,
            source,
        })
    }

    /// Forgets the conversation; the system message stays.
    pub fn reset(&mut self) {
        self.messages.clear();
    }

    /// Sets the system message; an empty one means none.
    pub fn set_system(&mut self, text: &str) {
        self.system = (!text.is_empty()).then(|| text.to_string());
    }

    /// Says something and prints the answer.
    ///
    /// # Errors
    /// A conversation that does not fit or that the template refuses; it is then as before.
    pub fn turn(&mut self, text: &str) -> Result<()> {
        self.interrupts.answering();
        self.messages.push(ChatMessage::new("user", text));
        let done = self.answer();
        if let Ok(Some(text)) = &done {
            self.messages.push(ChatMessage::new("assistant", text.as_str()));
        } else {
            self.messages.pop();
        }
        self.interrupts.waiting();
        done.map(|_| ())
    }

    /// The answer's text; `None` if it was stopped before it began.
    fn answer(&mut self) -> Result<Option<String>> {
        let prompt = self.rendered()?;
        let limit = self.source.model.description().positions_max;
        let tokens_max = tokens_max(self.args.max_tokens, usize::MAX, prompt.len(), limit)?;
        if !prompt.starts_with(&self.read) || prompt.len() == self.read.len() {
            self.start_over();
        }
        let read = self.read.len();
        let chunk = self.args.machine.chunk;
        let mut show = Show {
            bar: progress::prompt(prompt.len() - read, chunk),
            printer: Printer::new(Some(&self.tokenizer), !self.args.output.json),
            interrupts: self.interrupts.clone(),
        };
        let request = Request { prompt: &prompt, read, tokens_max, eos: &self.eos };
        let answer = generate(&mut self.session, &mut self.sampler, &request, &mut show);
        show.bar.finish_and_clear();
        // After an error the session is not to be used again.
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.start_over();
                return show.printer.abandon().and(Err(error));
            }
        };
        self.read = [answer.prompt.as_slice(), &answer.tokens].concat();
        self.read.truncate(self.session.state().positions());
        let text = show.printer.finish()?.unwrap_or_default();
        self.report(&answer, &text)?;
        Ok((!answer.tokens.is_empty()).then_some(text))
    }

    /// The whole conversation as the template has it, open for the answer.
    fn rendered(&self) -> Result<Vec<TokenId>> {
        let system = self.system.iter().map(|text| ChatMessage::new("system", text.as_str()));
        let messages: Vec<ChatMessage> = system.chain(self.messages.iter().cloned()).collect();
        let text = self.template.render(&messages, true, &OrderedJson::Null)?;
        Ok(self.tokenizer.encode_rendered(&text)?)
    }

    fn start_over(&mut self) {
        self.session = Session::new(self.source.model.clone(), self.args.machine.chunk);
        self.read.clear();
    }

    fn report(&self, answer: &Answer, text: &str) -> Result<()> {
        self.source.keeper.keep(&self.source.model);
        let figures = Figures::of(answer, &self.source);
        if self.args.output.json {
            let json = AnswerJson::new(answer, Some(text), figures);
            printer::line(&serde_json::to_string(&json)?)?;
        } else {
            figures.lines(answer).iter().for_each(|line| eprintln!("{line}"));
        }
        if let Some(path) = self.args.receipt() {
            let params = self.sampler.params();
            receipt(&self.source, answer, params, self.args.machine.chunk).write(path)?;
        }
        Ok(())
    }
}
