//! The findings for people.

use anyhow::Result;

use super::findings::{Findings, ShapeFindings};
use crate::printer::line;
use crate::units;

/// Prints everything that was found.
///
/// # Errors
/// The reader of stdout left.
pub fn print(f: &Findings) -> Result<()> {
    row("checkpoint", &f.label)?;
    row("fingerprint", &f.fingerprint)?;
    row("model_type", f.model_type.as_deref().unwrap_or("not given"))?;
    match &f.problem {
        None => row("runs", "yes")?,
        Some(_) => row("runs", "no, see the error below")?,
    }
    row("parameters", &parameters(f))?;
    if let Some(shape) = &f.shape {
        print_shape(shape)?;
    }
    let (yes, no) = ("yes", "no: use --ids instead of text");
    row("tokenizer", if f.tokenizer { yes } else { no })?;
    row("template", if f.chat_template { yes } else { "no: chat cannot be used" })?;
    if let Some(bytes) = &f.decoded_token_bytes {
        let (experts, other) = (bytes.experts as f64, bytes.other as f64);
        let [all, experts, other] = [experts + other, experts, other].map(units::bytes);
        row(
            "a token",
            &format!("reads about {all}: {experts} of routed experts, {other} of the rest"),
        )?;
    }
    print_parts(f)?;
    print_shards(f)
}

fn row(name: &str, value: &str) -> Result<()> {
    line(&format!("{name:<12} {value}"))
}

fn parameters(f: &Findings) -> String {
    let all = units::count(f.parameters);
    match f.parameters_ignored {
        0 => all,
        ignored => format!("{all}, of these {} ignored", units::count(ignored)),
    }
}

fn print_shape(s: &ShapeFindings) -> Result<()> {
    row("family", s.family)?;
    let mixers = match s.delta_net_layers {
        0 => "all attention".to_string(),
        delta => format!("{} attention, {delta} delta net", s.attention_layers),
    };
    let dense = match s.layers - s.moe_layers {
        0 => String::new(),
        dense => format!("; {dense} with a dense MLP"),
    };
    row("layers", &format!("{}: {mixers}{dense}", s.layers))?;
    row("width", &format!("{}, vocabulary {}", s.hidden, s.vocab))?;
    row("positions", &format!("{} at most", s.positions_max))?;
    let attention = format!(
        "{} heads of {}, {} for keys and values, {} dimensions rotated",
        s.heads, s.head_dim, s.kv_heads, s.rotated
    );
    row("attention", &attention)?;
    if let Some(net) = &s.delta_net {
        let net = format!(
            "{} key heads of {}, {} value heads of {}, convolution over {}",
            net.key_heads, net.key_dim, net.value_heads, net.value_dim, net.taps
        );
        row("delta net", &net)?;
    }
    let shared = match s.shared_expert_width {
        Some(width) => format!(", one shared of width {width}"),
        None => String::new(),
    };
    let experts = format!(
        "{} a layer, {} for a token, width {}{shared}",
        s.experts, s.experts_per_token, s.expert_width
    );
    row("experts", &experts)
}

fn print_parts(f: &Findings) -> Result<()> {
    let total: u64 = f.parts.iter().map(|part| part.bytes).sum();
    line("\npart                     tensors       bytes   share")?;
    for part in &f.parts {
        let share = 100.0 * part.bytes as f64 / total.max(1) as f64;
        let bytes = units::bytes(part.bytes as f64);
        let note = if part.ignored { "  ignored" } else { "" };
        line(&format!("{:<24} {:>7} {bytes:>11} {share:>5.1} %{note}", part.part, part.tensors))?;
    }
    Ok(())
}

fn print_shards(f: &Findings) -> Result<()> {
    line("\nshard                                    tensors       bytes  sha256 of the header")?;
    for s in &f.shards {
        let bytes = units::bytes(s.bytes as f64);
        line(&format!("{:<40} {:>7} {bytes:>11}  {}", s.name, s.tensors, s.header_sha256))?;
    }
    Ok(())
}
