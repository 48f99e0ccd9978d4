//! Errors as the user sees them: one line, and an exit code that scripts can rely on.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use engine::generate::sampler::SamplingError;
use engine::limits::LimitError;
use engine::model::{ConfigError, ModelError, StateError};
use engine::text::{ChatTemplateError, GenerationDefaultsError, TokenizerError};
use engine::tiers::heat::HeatError;
use engine::tiers::trace::TraceError;
use numerics::cpu::CpuError;
use numerics::cuda::GpuError;
use store::checkpoint::CheckpointError;
use store::convert::ConvertError;
use store::jnf::StoreError;
use store::sidecar::SidecarError;
use store::verify::VerifyError;

/// Exit code of a difference that was found, and of a failure inside.
const FAILED: u8 = 1;
/// Exit code of bad input.
const BAD_INPUT: u8 = 2;

/// What a command refuses, beyond what the crates below refuse.
#[derive(Debug, thiserror::Error)]
pub enum BadInput {
    #[error("the prompt is empty; give some text, or token ids with --ids")]
    EmptyPrompt,

    #[error(
        "{label}: there is no tokenizer.json; give token ids with --ids, or put the model's \
         tokenizer.json beside its weights"
    )]
    NoTokenizer { label: String },

    #[error(
        "{label}: there is no tokenizer.json, and chat needs one; put the model's tokenizer.json \
         beside its weights"
    )]
    NoTokenizerToChat { label: String },

    #[error("{label}: {file} is not UTF-8 text; download it again")]
    NotText { label: String, file: &'static str },

    #[error(
        "--max-tokens {asked} after a prompt of {prompt} is beyond the {limit} positions of the \
         model (max_position_embeddings); at most {room} fit"
    )]
    TooManyTokens { asked: usize, prompt: usize, limit: usize, room: usize },

    #[error("--receipt {path}: the folder does not exist; make it first")]
    ReceiptFolder { path: String },

    #[error("cannot replay")]
    Receipt { source: anyhow::Error },

    #[error(
        "the receipt is of another checkpoint: it was made with {label}, fingerprint {expected}, \
         this is {found_label}, fingerprint {found}; give the right folder with --model"
    )]
    OtherModel { label: String, expected: String, found_label: String, found: String },

    #[error("{label}: there is no reference.npz here; give one with --reference")]
    NoReference { label: String },

    #[error("cannot make the checkpoint")]
    Synth { source: anyhow::Error },

    #[error(
        "{path}: neither it nor a cache folder of yours (HOME, XDG_CACHE_HOME) can be written to; \
         the checksums have no place"
    )]
    NoSidecar { path: PathBuf },

    #[error("{path}: nothing is known yet; run the model first, or count a trace with --trace")]
    NoHeat { path: PathBuf },

    #[error("{path}: cannot be read")]
    Read { path: PathBuf, source: std::io::Error },

    #[error("{path}: cannot be written")]
    Write { path: PathBuf, source: std::io::Error },

    #[error("cannot make the trace up")]
    Synthetic { source: anyhow::Error },

    #[error("{path}: there is no decoded token in this trace; record an answer, not a prompt")]
    NothingDecoded { path: String },

    #[error("cannot read the message")]
    Message { source: std::io::Error },

    #[error("cannot listen for Ctrl-C")]
    Interrupts { source: ctrlc::Error },
}

/// A comparison that failed; the details are printed before.
#[derive(Debug, thiserror::Error)]
pub enum Difference {
    #[error("{different} of {paths} ways to compute differ from the golden hashes")]
    Selftest { different: usize, paths: usize },

    #[error("the replay differs from the receipt: {first}")]
    Replay { first: String },

    #[error("{count} differences were found; restore the files")]
    Weights { count: usize },
}

/// Prints what went wrong and says how to exit; a reader that left is no failure.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if reader_left(error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", message(error));
    ExitCode::from(if is_bad_input(error) { BAD_INPUT } else { FAILED })
}

/// The chain of causes on one line; a cause that its effect already quotes is left out.
pub fn message(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().replace('\n', " ");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// Somebody closed the other end of our output, as `head` does.
fn reader_left(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind)
    };
    error.chain().any(|cause| io(cause) == Some(ErrorKind::BrokenPipe))
}

/// The error of a GPU, by itself or as a model or a state passes it on.
fn of_gpu<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a GpuError> {
    match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(ModelError::Gpu(error)), _) | (_, Some(StateError::Gpu(error))) => Some(error),
        _ => cause.downcast_ref(),
    }
}

/// Every error that the user can cause and mend; a GPU that fails at work is neither.
pub fn is_bad_input(error: &anyhow::Error) -> bool {
    if let Some(error) = error.chain().find_map(of_gpu) {
        let failed = |e: &GpuError| matches!(e, GpuError::Lost { .. } | GpuError::Driver { .. });
        return !failed(error) && !matches!(error, GpuError::NoKernel { .. });
    }
    error.chain().any(|cause| {
        cause.is::<BadInput>()
            || cause.is::<CheckpointError>()
            || cause.is::<ChatTemplateError>()
            || cause.is::<ConfigError>()
            || cause.is::<ConvertError>()
            || cause.is::<CpuError>()
            || cause.is::<GenerationDefaultsError>()
            || cause.is::<HeatError>()
            || cause.is::<LimitError>()
            || cause.is::<ModelError>()
            || cause.is::<SamplingError>()
            || cause.is::<SidecarError>()
            || cause.is::<StateError>()
            || cause.is::<StoreError>()
            || cause.is::<TokenizerError>()
            || cause.is::<TraceError>()
            || cause.is::<VerifyError>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn messages_are_one_line_without_repetition() {
        let check = |error: anyhow::Error, expect: &str| assert_eq!(message(&error), expect);
        check(anyhow!("inner\nmore").context("outer"), "outer: inner more");
        check(anyhow!("a cause").context("quotes a cause"), "quotes a cause");
    }

    #[test]
    fn only_what_the_user_can_mend_is_bad_input() {
        assert!(is_bad_input(&BadInput::EmptyPrompt.into()));
        assert!(is_bad_input(&anyhow::Error::from(ModelError::EmptyPrompt).context("so")));
        assert!(is_bad_input(&GpuError::NoDriver.into()));
        let lost = || GpuError::Lost { doing: "a kernel", message: "gone".into() };
        assert!(!is_bad_input(&lost().into()));
        assert!(!is_bad_input(&ModelError::Gpu(lost()).into()));
        assert!(!is_bad_input(&Difference::Selftest { different: 1, paths: 2 }.into()));
        assert!(!is_bad_input(&anyhow!("anything else")));
    }
}
