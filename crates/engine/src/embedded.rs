//! The model that is part of the program: models/tiny-moe, trained on stories.

use store::checkpoint::{Checkpoint, CheckpointError};

/// Bytes at an alignment at which weights can be used in place.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

macro_rules! file {
    ($name:literal) => {{
        static BYTES: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!("../../../models/tiny-moe/", $name)));
        ($name, &BYTES.0)
    }};
}

/// The name that reports use for it.
pub const LABEL: &str = "tiny-moe (embedded)";

/// Opens the embedded model through the reader that opens any other.
///
/// # Errors
/// None in a program whose tests passed; the type is the reader's.
pub fn checkpoint() -> Result<Checkpoint, CheckpointError> {
    let files: [(&'static str, &'static [u8]); 9] = [
        file!("config.json"),
        file!("generation_config.json"),
        file!("chat_template.jinja"),
        file!("tokenizer.json"),
        file!("tokenizer_config.json"),
        file!("model.safetensors.index.json"),
        file!("model-00001-of-00003.safetensors"),
        file!("model-00002-of-00003.safetensors"),
        file!("model-00003-of-00003.safetensors"),
    ];
    Checkpoint::from_static(LABEL, &files)
}
