//! `tarfa chat`, driven through stdin.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{ids, json, tarfa};

/// Answers to some lines.
fn answers(args: &[&str], lines: &str) -> Vec<Value> {
    let mut command = tarfa(&[&["chat", "--json"], args].concat());
    let output = command.write_stdin(lines).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn it_answers_and_stops_at_the_end_of_a_turn() {
    let answers = answers(&[], "Hello!\n\nWhere does a penguin live?\n/exit\nno\n");
    assert_eq!(answers.len(), 2);
    let texts: Vec<_> = answers.iter().map(|answer| &answer["text"]).collect();
    assert_eq!(texts[0], "Hello! Would you like to hear a story?");
    assert_eq!(texts[1], "A penguin lives in the cold and icy south.");
    assert!(answers.iter().all(|answer| answer["stop"] == "end_of_text"));
}

/// Feeding only what is new must not show, neither in the bits nor anywhere else.
#[test]
fn a_turn_reads_what_is_new_and_equals_a_run_from_the_start() {
    let answers = answers(&["--system", "You are a friendly helper."], "Hello!\nBye!\n");
    let (first, second) = (&answers[0], &answers[1]);
    let length = |list: &Value| list.as_array().map_or(0, Vec::len) as u64;
    let read = second["figures"]["prefill"]["tokens"].as_u64().expect("a count");
    // All of the first answer but its last token was read while it was generated.
    let held = length(&first["prompt"]) + length(&first["tokens"]) - 1;
    assert_eq!(read, length(&second["prompt"]) - held);
    let prompt = ids(&second["prompt"]);
    let run = json(&["run", "--ids", &prompt]);
    assert_eq!(run["transcript_sha256"], second["transcript_sha256"]);
    assert_eq!(run["text"], second["text"]);
}

#[test]
fn commands_change_the_conversation() {
    let all = answers(&[], "Hello!\n/reset\nHello!\n/system Be kind.\n/reset\nHello!\n/what\n");
    assert_eq!(all.len(), 3);
    assert_eq!(all[0]["transcript_sha256"], all[1]["transcript_sha256"]);
    let with_system = answers(&["--system", "Be kind."], "Hello!\n");
    assert_eq!(all[2]["prompt"], with_system[0]["prompt"]);
    assert_ne!(all[2]["prompt"], all[0]["prompt"]);
}

#[test]
fn sampling_and_length_are_as_asked() {
    let args = ["--temperature", "1.2", "--seed", "3", "--max-tokens", "5"];
    let first = answers(&args, "Tell me a story.\n");
    assert_eq!(first[0]["tokens"], answers(&args, "Tell me a story.\n")[0]["tokens"]);
    assert_eq!(first[0]["tokens"].as_array().map(Vec::len), Some(5));
    assert_eq!(first[0]["stop"], "length");
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_and_not_the_program() {
    // Neither token that ends a text can be chosen, so the answer has 2,000 tokens if not stopped.
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("tarfa"))
        .args(["chat", "--logit-bias", "4093=-1000", "--logit-bias", "4095=-1000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"Tell me a story.\n").expect("listens");
    let mut stdout = child.stdout.take().expect("piped");
    stdout.read_exact(&mut [0; 20]).expect("the answer begins");
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.expect("kill runs").success());
    stdout.read_exact(&mut [0; 5]).expect("the answer's end, or more of it");
    drop(stdin);
    stdout.read_to_end(&mut Vec::new()).expect("the rest");
    let output = child.wait_with_output().expect("ends by itself");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{stderr}");
    let count = stderr.split("then ").nth(1).and_then(|rest| rest.split(' ').next());
    let count: usize = count.expect("a line of figures").parse().expect("a count");
    assert!(count < 1500, "{stderr}");
}
