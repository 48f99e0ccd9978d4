//! Chat templates against the real jinja2 (`data/make_chat_templates.py`).

use engine::text::{ChatMessage, ChatTemplate, ChatTemplateError, OrderedJson};
use serde::Deserialize;
use serde_json::json;

use crate::TOKENIZER_CONFIG;

#[derive(Deserialize)]
struct ChatCase {
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    text: String,
}

#[test]
fn chats_of_the_embedded_model_equal_transformers() {
    let cases: Vec<ChatCase> =
        serde_json::from_str(include_str!("../data/chat_cases.json")).expect("test data");
    let file = include_str!("../../../../models/tiny-moe/chat_template.jinja");
    for template in [
        ChatTemplate::new(Some(file), Some(TOKENIZER_CONFIG)).expect("the file"),
        ChatTemplate::new(None, Some(TOKENIZER_CONFIG)).expect("the config"),
    ] {
        for case in &cases {
            let text = template.render(&case.messages, case.add_generation_prompt, &none());
            assert_eq!(text.expect("a chat"), case.text);
        }
    }
}

fn none() -> OrderedJson {
    OrderedJson::Null
}

#[derive(Deserialize)]
struct Rendered {
    special_tokens: OrderedJson,
    templates: OrderedJson,
    cases: Vec<RenderedChat>,
    variables: OrderedJson,
    snippets: Vec<RenderedSnippet>,
}

#[derive(Deserialize)]
struct RenderedChat {
    name: String,
    template: String,
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    extra: OrderedJson,
    text: Option<String>,
    raised: Option<String>,
}

#[derive(Deserialize)]
struct RenderedSnippet {
    template: String,
    text: Option<String>,
    raised: Option<String>,
}

/// The moment at which `make_chat_templates.py` rendered.
const RENDERED_AT: u64 = 1_709_210_096;

fn rendered() -> Rendered {
    serde_json::from_str(include_str!("../data/chat_templates.json")).expect("test data")
}

fn compile(source: &str, rendered: &Rendered) -> Result<ChatTemplate, ChatTemplateError> {
    let token = |name| rendered.special_tokens.get(name).and_then(OrderedJson::as_str);
    // One as text, one as a token description: both occur.
    let config = json!({"bos_token": token("bos_token"), "unk_token": null,
                        "eos_token": {"content": token("eos_token"), "special": true}});
    let template = ChatTemplate::new(Some(source), Some(config.to_string().as_bytes()))?;
    Ok(template.at_time(RENDERED_AT))
}

/// What Python gave: text, what the template raised, or another error.
fn outcome(text: &Option<String>, raised: &Option<String>) -> Result<String, Option<String>> {
    text.clone().ok_or(raised.clone())
}

fn ours(result: Result<String, ChatTemplateError>) -> Result<String, Option<String>> {
    result.map_err(|error| match error {
        ChatTemplateError::Raised { reason } => Some(reason),
        _ => None,
    })
}

#[test]
fn whole_templates_render_as_jinja2_renders_them() {
    let rendered = rendered();
    assert!(rendered.cases.len() >= 20);
    for case in &rendered.cases {
        let source = rendered.templates.get(&case.template).and_then(OrderedJson::as_str);
        let template = compile(source.expect("a template"), &rendered).expect("it compiles");
        let text = template.render(&case.messages, case.add_generation_prompt, &case.extra);
        assert_eq!(ours(text), outcome(&case.text, &case.raised), "{}", case.name);
    }
}

/// What the template engine does in its own way, in templates that no model we know of has.
const KNOWN_DEVIATIONS: [&str; 3] = [
    // No formatting by the % operator; the `format` filter and method work.
    "{{ '%s-%d' % ('a', 3) }}",
    // A float inside a printed list: 1e-5, in Python 1e-05.
    "{{ [1e-5] }}",
    // A mapping written in the template itself has sorted keys unless minijinja's
    // `preserve_order` is on; mappings from outside keep theirs.
    "{{ {'b': 1, 'a': 2}|tojson }}",
];

#[test]
fn every_habit_of_jinja2_renders_as_jinja2_renders_it() {
    let rendered = rendered();
    let mut differ = Vec::new();
    for snippet in &rendered.snippets {
        let text = compile(&snippet.template, &rendered)
            .and_then(|template| template.render(&[], false, &rendered.variables));
        let detail = format!("{text:?}");
        let expect = outcome(&snippet.text, &snippet.raised);
        let known = KNOWN_DEVIATIONS.contains(&snippet.template.as_str());
        if ours(text) != expect && !known {
            differ.push(format!("{}\n  jinja2 {expect:?}\n  ours   {detail}", snippet.template));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn a_list_of_templates_means_the_default_one() {
    let config = json!({"chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]});
    let template = ChatTemplate::new(None, Some(config.to_string().as_bytes()));
    assert_eq!(template.expect("a template").render(&[], false, &none()).expect("text"), "plain");
    let config = json!({"chat_template": [{"name": "tool_use", "template": "tools"}]});
    let error = ChatTemplate::new(None, Some(config.to_string().as_bytes())).expect_err("none");
    assert!(error.to_string().contains(r#"lists ["tool_use"] and none is "default""#), "{error}");
}

#[test]
fn template_errors_say_what_to_do() {
    let check = |jinja: Option<&str>, config: Option<&str>, expect: &str| {
        let template = ChatTemplate::new(jinja, config.map(str::as_bytes));
        let error = template.expect_err("refused").to_string();
        assert!(error.contains(expect), "{error}");
    };
    check(None, None, "no chat template");
    check(None, Some("{}"), "send a plain prompt");
    check(None, Some(r#"{"chat_template": null}"#), "put the model's chat_template.jinja beside");
    check(None, Some(r#"{"chat_template": 7}"#), "neither text nor a list");
    check(None, Some("{"), "tokenizer_config.json is not JSON");
    check(Some("a\n{% if %}"), None, "cannot be read, line 2");
    let template = ChatTemplate::new(Some("{{ raise_exception('no system role') }}"), None);
    let raised = template.expect("it compiles").render(&[], true, &none()).expect_err("raised");
    assert_eq!(raised.to_string(), "the chat template refuses these messages: no system role");
}

#[test]
fn messages_keep_their_fields_and_lose_their_nulls() {
    let source = "{{ messages|tojson }}";
    let template = ChatTemplate::new(Some(source), None).expect("it compiles");
    let check = |message: ChatMessage, expect: &str| {
        let text = template.render(&[message], false, &none()).expect("text");
        assert_eq!(text, format!("[{expect}]"));
    };
    check(ChatMessage::new("user", "hi"), r#"{"role": "user", "content": "hi"}"#);
    let read = |json: &str| serde_json::from_str::<ChatMessage>(json).expect("a message");
    check(
        read(r#"{"name":"b","role":"tool","content":null,"a":{"z":1,"a":null},"z":2,"z":3}"#),
        r#"{"name": "b", "role": "tool", "a": {"z": 1, "a": null}, "z": 3}"#,
    );
    check(
        ChatMessage::new("assistant", "hi").with("reasoning", "hm"),
        concat!(
            r#"{"thinking": "hm", "role": "assistant", "content": "hi", "#,
            r#""reasoning": "hm", "reasoning_content": "hm"}"#
        ),
    );
    assert!(serde_json::from_str::<ChatMessage>(r#"{"content":"no role"}"#).is_err());
    assert_eq!(read(r#"{"role":"user"}"#).role(), "user");
}

#[test]
fn tool_arguments_in_text_become_objects() {
    let message: ChatMessage = serde_json::from_value(json!({
        "role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2.0]}"}},
            {"function": {"name": "g", "arguments": "not json"}}]}))
    .expect("a message");
    let source =
        "{% for c in messages[0].tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}";
    let template = ChatTemplate::new(Some(source), None).expect("it compiles");
    let text = template.render(&[message.with_parsed_tool_arguments()], false, &none());
    assert_eq!(text.expect("text"), r#"{"b": 1, "a": [2.0]}"not json""#);
}
