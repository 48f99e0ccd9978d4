//! Text against the Python libraries: ids, decoded text, streamed text, rendered chats.

mod chats;

use std::sync::LazyLock;

use engine::index::TokenId;
use engine::text::{GenerationDefaults, Tokenizer, TokenizerError, Utf8Stream};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

const TOKENIZER: &[u8] = include_bytes!("../../../../models/tiny-moe/tokenizer.json");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("../../../../models/tiny-moe/tokenizer_config.json");

fn tiny_moe() -> Tokenizer {
    static TINY_MOE: LazyLock<Tokenizer> = LazyLock::new(|| {
        Tokenizer::from_bytes(TOKENIZER, Some(TOKENIZER_CONFIG)).expect("the embedded tokenizer")
    });
    TINY_MOE.clone()
}

fn ids(raw: &[u32]) -> Vec<TokenId> {
    raw.iter().map(|&id| TokenId(id)).collect()
}

fn raw(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

/// Streams ids and checks what every piece promises; returns the concatenation.
fn stream(tokenizer: &Tokenizer, ids: &[TokenId], skip_special: bool) -> String {
    let mut stream = Utf8Stream::new(tokenizer, skip_special);
    let mut text = String::new();
    for &id in ids {
        text.push_str(&stream.push(id).expect("a token"));
    }
    text + &stream.finish().expect("the rest")
}

#[derive(Deserialize)]
struct TokenizerCase {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

fn tokenizer_cases() -> Vec<TokenizerCase> {
    serde_json::from_str(include_str!("../data/tokenizer_cases.json")).expect("test data")
}

#[test]
fn ids_and_text_equal_the_python_library() {
    let tokenizer = tiny_moe();
    let cases = tokenizer_cases();
    assert!(cases.len() >= 20);
    for case in cases {
        assert_eq!(raw(&tokenizer.encode(&case.text).expect("text")), case.ids, "{:?}", case.text);
        let rendered = tokenizer.encode_rendered(&case.text).expect("text");
        assert_eq!(raw(&rendered), case.ids, "{:?}", case.text);
        let decoded = tokenizer.decode(&ids(&case.ids), false).expect("ids");
        assert_eq!(decoded, case.decoded);
        assert_eq!(stream(&tokenizer, &ids(&case.ids), false), case.decoded);
    }
}

#[test]
fn the_vocabulary_can_be_asked() {
    let tokenizer = tiny_moe();
    assert_eq!(tokenizer.vocab_size(), 4096);
    assert_eq!(tokenizer.id_to_token(TokenId(4095)).as_deref(), Some("<|im_end|>"));
    assert_eq!(tokenizer.id_to_token(TokenId(220)).as_deref(), Some("Ġ"));
    assert_eq!(tokenizer.id_to_token(TokenId(4096)), None);
    assert_eq!(tokenizer.token_to_id("<|im_start|>"), Some(TokenId(4094)));
    assert!(tokenizer.is_special(TokenId(4093)) && !tokenizer.is_special(TokenId(220)));
}

#[test]
fn special_tokens_can_be_left_out() {
    let tokenizer = tiny_moe();
    let ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n").expect("text");
    assert_eq!(tokenizer.decode(&ids, true).expect("ids"), "user\nHi\n");
    assert_eq!(stream(&tokenizer, &ids, true), "user\nHi\n");
}

#[test]
fn an_emoji_is_printed_when_its_last_byte_arrives() {
    let tokenizer = tiny_moe();
    let ids = tokenizer.encode("a😀b").expect("text");
    let mut stream = Utf8Stream::new(&tokenizer, false);
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).expect("a token")).collect();
    assert_eq!(pieces, ["a", "", "", "", "😀", "b"]);
    assert_eq!(stream.finish().expect("the rest"), "");
}

#[test]
fn what_is_left_of_a_character_comes_out_at_the_end() {
    let tokenizer = tiny_moe();
    let ids = &tokenizer.encode("漢").expect("text")[..2];
    let mut stream = Utf8Stream::new(&tokenizer, false);
    assert!(ids.iter().all(|&id| stream.push(id).expect("a token").is_empty()));
    assert_eq!(stream.finish().expect("the rest"), "\u{fffd}");
    assert_eq!(tokenizer.decode(ids, false).expect("ids"), "\u{fffd}");
}

#[test]
fn long_texts_stream_in_time_that_does_not_depend_on_what_came_before() {
    let tokenizer = tiny_moe();
    let many: Vec<TokenId> = (0..200_000).map(|i| TokenId(i * 31 % 4096)).collect();
    let text = stream(&tokenizer, &many, false);
    assert_eq!(text, tokenizer.decode(&many, false).expect("ids"));
}

/// A small vocabulary as SentencePiece makes them: 256 byte tokens, then pieces.
fn sentence_piece(decoder: serde_json::Value) -> Tokenizer {
    let bytes = (0..256u32).map(|byte| (format!("<0x{byte:02X}>"), byte));
    let pieces = ["▁", "▁a", "a", "é", "▁▁", "漢", "<0x", "##s", "don't", " .", "x</w>"];
    let pieces = pieces.into_iter().map(str::to_owned).zip(256..);
    let vocab: serde_json::Map<_, _> =
        bytes.chain(pieces).map(|(token, id)| (token, json!(id))).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 3,
            "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": [special(267, "<s>"), special(268, "</s>")],
        "normalizer": null, "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [267], "tokens": ["<s>"]}}},
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": true, "vocab": vocab, "merges": []},
    });
    Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), None).expect("a tokenizer")
}

fn llama_decoder() -> serde_json::Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
}

fn decoders() -> Vec<serde_json::Value> {
    let metaspace = |scheme| {
        json!({"type": "Metaspace", "replacement": "▁",
                                    "prepend_scheme": scheme, "split": true})
    };
    vec![
        llama_decoder(),
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]}),
        json!({"type": "ByteFallback"}),
        metaspace("always"),
        metaspace("never"),
        json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace("first")]}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "BPEDecoder", "suffix": "</w>"}),
        json!({"type": "CTC", "pad_token": "a", "word_delimiter_token": "▁", "cleanup": true}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
               "use_regex": true}),
        json!(null),
    ]
}

#[test]
fn plain_prompts_get_what_the_post_processor_adds_and_rendered_chats_do_not() {
    let tokenizer = sentence_piece(llama_decoder());
    // The truncation to three ids that the file asks for is not applied.
    assert_eq!(raw(&tokenizer.encode("aaaa").expect("text")), [267, 258, 258, 258, 258]);
    assert_eq!(raw(&tokenizer.encode_rendered("aaaa").expect("text")), [258; 4]);
    let written = tokenizer.encode_rendered("<s>a</s>").expect("text");
    assert_eq!(raw(&written), [267, 258, 268]);
}

#[test]
fn the_first_space_is_stripped_and_no_other() {
    let tokenizer = sentence_piece(llama_decoder());
    let words = ids(&[267, 256, 257, 257, 260, 258]);
    assert_eq!(tokenizer.decode(&words, true).expect("ids"), " a a  a");
    assert_eq!(stream(&tokenizer, &words, true), " a a  a");
}

#[test]
fn a_run_of_byte_tokens_is_printed_when_it_ends() {
    let tokenizer = sentence_piece(llama_decoder());
    let mut stream = Utf8Stream::new(&tokenizer, true);
    let mut push = |id| stream.push(TokenId(id)).expect("a token");
    assert_eq!(push(257), "a");
    assert_eq!((push(0xe2), push(0x82), push(0xac)), (String::new(), String::new(), String::new()));
    // Left out, so the run goes on.
    assert_eq!(push(268), "");
    assert_eq!(push(256), "€ ");
    assert_eq!((push(0xe2), push(0x41)), (String::new(), String::new()));
    assert_eq!(push(258), "\u{fffd}\u{fffd}a");
    assert_eq!(push(0xf0), "");
    assert_eq!(stream.finish().expect("the rest"), "\u{fffd}");
}

proptest! {
    #[test]
    fn streamed_text_is_the_decoded_text(
        raw in prop::collection::vec(0u32..4100, 0..60),
        skip_special: bool,
    ) {
        let tokenizer = tiny_moe();
        let ids = ids(&raw);
        let whole = tokenizer.decode(&ids, skip_special).expect("ids");
        prop_assert_eq!(stream(&tokenizer, &ids, skip_special), whole);
    }

    #[test]
    fn streamed_bytes_are_the_decoded_bytes(raw in prop::collection::vec(90u32..260, 0..80)) {
        // Single bytes of the byte-level alphabet: mostly broken UTF-8.
        let tokenizer = tiny_moe();
        let ids = ids(&raw);
        let whole = tokenizer.decode(&ids, false).expect("ids");
        prop_assert_eq!(stream(&tokenizer, &ids, false), whole);
    }

    #[test]
    fn every_kind_of_decoder_streams(
        raw in prop::collection::vec(
            prop_oneof![0u32..256, 256u32..270, 256u32..270, 0xc2u32..0xc4, 0x80u32..0x90], 0..40),
        kind in 0usize..11,
        skip_special: bool,
    ) {
        let tokenizer = sentence_piece(decoders()[kind].clone());
        let ids = ids(&raw);
        let whole = tokenizer.decode(&ids, skip_special).expect("ids");
        prop_assert_eq!(stream(&tokenizer, &ids, skip_special), whole);
    }

    #[test]
    fn text_survives_the_tokenizer(text in "[a-zA-Z0-9 \\n.,!?<>|_éß漢字😀]{0,40}") {
        let tokenizer = tiny_moe();
        let ids = tokenizer.encode(&text).expect("text");
        prop_assert_eq!(tokenizer.decode(&ids, false).expect("ids"), text);
    }
}

#[test]
fn tokens_that_only_the_config_lists_are_added() {
    let config = |id: &str| {
        let token = json!({"content": "<tool>", "lstrip": false, "normalized": false,
                           "rstrip": false, "single_word": false, "special": true});
        json!({"added_tokens_decoder": {id: token}}).to_string()
    };
    let tokenizer = Tokenizer::from_bytes(TOKENIZER, Some(config("4096").as_bytes()));
    let tokenizer = tokenizer.expect("a tokenizer");
    assert_eq!(raw(&tokenizer.encode("a<tool>").expect("text")), [64, 4096]);
    let error = Tokenizer::from_bytes(TOKENIZER, Some(config("5000").as_bytes()));
    let error = error.expect_err("an id that the tokenizer cannot give");
    assert!(
        matches!(error, TokenizerError::AddedTokenId { expected: 5000, found: Some(4096), .. }),
        "{error}"
    );
}

#[test]
fn broken_tokenizer_files_are_errors() {
    let broken = Tokenizer::from_bytes(b"{", None).expect_err("no JSON");
    assert_eq!(broken.to_string(), "tokenizer.json cannot be read");
    let config = Tokenizer::from_bytes(TOKENIZER, Some(b"nope")).expect_err("no JSON");
    assert_eq!(config.to_string(), "tokenizer_config.json is not JSON");
    let mut dropout: serde_json::Value = serde_json::from_slice(TOKENIZER).expect("JSON");
    dropout["model"]["dropout"] = json!(0.1);
    let dropout = Tokenizer::from_bytes(dropout.to_string().as_bytes(), None);
    assert!(matches!(dropout, Err(TokenizerError::Dropout { .. })));
}

#[test]
fn generation_settings_come_from_the_right_file() {
    let eos = |generation: Option<&str>, config: Option<&str>| {
        let defaults = GenerationDefaults::from_bytes(
            generation.map(str::as_bytes),
            config.map(str::as_bytes),
        );
        raw(&defaults.expect("settings").eos)
    };
    assert_eq!(eos(Some(r#"{"eos_token_id": [2, 3]}"#), Some(r#"{"eos_token_id": 9}"#)), [2, 3]);
    assert_eq!(eos(Some(r#"{"eos_token_id": 2}"#), None), [2]);
    assert_eq!(eos(Some("{}"), Some(r#"{"text_config": {"eos_token_id": 5}}"#)), [5]);
    let both = r#"{"eos_token_id": null, "text_config": {"eos_token_id": [5, 6]}}"#;
    assert_eq!(eos(None, Some(both)), [5, 6]);
    assert_eq!(eos(None, None), [0u32; 0]);

    let tiny = include_bytes!("../../../../models/tiny-moe/generation_config.json");
    let defaults = GenerationDefaults::from_bytes(Some(tiny), None).expect("settings");
    let expect = GenerationDefaults {
        eos: ids(&[4095, 4093]),
        do_sample: Some(true),
        temperature: Some(0.8),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: None,
        repetition_penalty: None,
    };
    assert_eq!(defaults, expect);

    let wrong = |generation: &str| {
        let defaults = GenerationDefaults::from_bytes(Some(generation.as_bytes()), None);
        defaults.expect_err("refused").to_string()
    };
    assert_eq!(
        wrong(r#"{"eos_token_id": [1, -1]}"#),
        "generation_config.json: eos_token_id is [1,-1], expected a token id or a list of token ids"
    );
    assert_eq!(
        wrong(r#"{"top_k": 0.5}"#),
        "generation_config.json: top_k is 0.5, expected a whole number"
    );
    assert_eq!(wrong("["), "generation_config.json is not JSON");
}
