//! `tarfa logits`: the oracle's keys and hashes.

use serde_json::{Value, json};

use crate::{ids, json as run, oracle, tarfa};

#[test]
fn it_equals_the_oracle() {
    for prompt in ["0", "1"] {
        let expect = oracle(prompt);
        let prompt = ids(&expect["prompt"]);
        assert_eq!(run(&["logits", "--ids", &prompt, "--generate", "64"]), expect);
    }
}

#[test]
fn one_process_for_each_token_gives_the_same_hashes() {
    let expect = oracle("2");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state");
    let state = file.to_str().expect("UTF-8");
    let out = ["logits", "--generate", "1", "--state-out", state];
    let mut found = run(&[&out[..], &["--ids", &ids(&expect["prompt"])]].concat());
    assert_eq!(found["prompt_logits_sha256"], expect["prompt_logits_sha256"]);
    for at in 0..8 {
        assert_eq!(found["tokens"], json!([expect["tokens"][at]]), "token {at}");
        assert_eq!(found["logits_sha256"], json!([expect["logits_sha256"][at]]), "token {at}");
        let token = expect["tokens"][at].to_string();
        found = run(&[&out[..], &["--state-in", state, "--ids", &token]].concat());
    }
}

#[test]
fn the_likeliest_tokens_come_in_order() {
    let found = run(&["logits", "--top", "3", "Once upon a time"]);
    let top = found["top"].as_array().expect("a list");
    assert_eq!(top.len(), 3);
    assert_eq!(top[0]["token"], oracle("0")["tokens"][0]);
    assert_eq!(top[0]["text"], ",");
    let logit = |best: &Value| best["logit"].as_f64().expect("a number");
    assert!(top.windows(2).all(|pair| logit(&pair[0]) >= logit(&pair[1])));
    assert!(top.iter().all(|best| best["log_probability"].as_f64() <= Some(0.0)));
}

#[test]
fn people_get_a_table() {
    let expect = oracle("0");
    let output = tarfa(&["logits", "--generate", "2", "--top", "1", "Once upon a time"]).output();
    let text = String::from_utf8(output.expect("runs").stdout).expect("UTF-8");
    for hash in [&expect["prompt_logits_sha256"][3], &expect["logits_sha256"][1]] {
        assert!(text.contains(hash.as_str().expect("a hash")), "{text}");
    }
}
