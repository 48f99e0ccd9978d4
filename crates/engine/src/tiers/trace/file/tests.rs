//! Traces on disk: whole, cut short and damaged.

use super::*;

fn trace() -> Trace {
    let shape = Shape { layers: 3, experts: 300, top_k: 2 };
    let header = Header { fingerprint: "f".into(), shape, expert_bytes: 1 << 40, recorded: true };
    let uses = |list: &[(u32, u32)]| LayerUses {
        uses: list
            .iter()
            .map(|(e, tokens)| Use { expert: ExpertIdx(*e), tokens: *tokens })
            .collect(),
        predicted: list.iter().map(|(e, _)| ExpertIdx(299 - e)).collect(),
    };
    let prefill = vec![uses(&[(0, 500), (299, 12)]), LayerUses::default(), uses(&[(128, 512)])];
    let decode = vec![uses(&[(7, 1), (200, 1)]), LayerUses::default(), uses(&[(1, 1), (0, 1)])];
    let passes = vec![
        Pass { phase: Phase::Prefill, tokens: 512, layers: prefill },
        Pass { phase: Phase::Decode, tokens: 1, layers: decode },
    ];
    Trace { header, passes, complete: true }
}

fn bytes() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    write(&path, &trace()).expect("writes");
    std::fs::read(path).expect("reads")
}

fn parsed(bytes: &[u8]) -> Result<Trace, TraceError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    std::fs::write(&path, bytes).expect("writes");
    read(&path)
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(parsed(&bytes()).expect("reads"), trace());
}

#[test]
fn a_trace_cut_short_keeps_its_whole_passes() {
    let all = bytes();
    let body = all.len() - 33;
    let mut whole_passes = Vec::new();
    for length in MAGIC.len()..all.len() {
        let Ok(found) = parsed(&all[..length]) else { continue };
        assert!(!found.complete, "{length} of {} bytes", all.len());
        assert_eq!(found.passes, trace().passes[..found.passes.len()]);
        whole_passes.push(found.passes.len());
        assert_eq!(found.passes.len() == 2, length >= body, "{length}");
    }
    assert!(whole_passes.is_sorted() && whole_passes.first() == Some(&0));
}

#[test]
fn no_flipped_byte_gives_another_complete_trace() {
    let all = bytes();
    for place in 0..all.len() {
        for bit in 0..8 {
            let mut bytes = all.clone();
            bytes[place] ^= 1 << bit;
            let complete = parsed(&bytes).is_ok_and(|found| found.complete);
            assert!(!complete, "bit {bit} of byte {place} was changed unnoticed");
        }
    }
}

#[test]
fn hostile_headers_are_refused() {
    let check = |header: &str, expect: &str| {
        let bytes = [MAGIC, header.as_bytes(), b"\n"].concat();
        let error = parsed(&bytes).expect_err(header).to_string();
        assert!(error.contains(expect), "{error:?} lacks {expect:?}");
    };
    let header = |layers: u64, experts: u64, top_k: u64| {
        format!(
            r#"{{"fingerprint":"f","layers":{layers},"experts":{experts},"top_k":{top_k},
            "expert_bytes":1,"recorded":true}}"#
        )
        .replace('\n', "")
    };
    check(&header(1 << 40, 4, 1), "layers is 1099511627776, expected 1 to 16384");
    check(&header(4, 0, 1), "experts is 0");
    check(&header(4, 4, 5), "top_k is 5, expected 1 to 4");
    check("{}", "the header cannot be read");
    assert!(matches!(parsed(b"tarfa trace 2\n{}\n"), Err(TraceError::Foreign { .. })));
}
