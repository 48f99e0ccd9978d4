//! The simulation as tables.

use anyhow::Result;
use lab::sim::Curve;

use super::{Report, Row};
use crate::printer::line;
use crate::units;

/// Prints the report.
///
/// # Errors
/// The reader of stdout left.
pub fn print(r: &Report) -> Result<()> {
    print_trace(r)?;
    print_machine(r)?;
    line(
        "\npolicy    hits %   file/token     clock tok/s  law tok/s  binds    ahead: used wasted",
    )?;
    r.policies.iter().try_for_each(print_row)?;
    let (rate, bytes) = (100.0 * r.optimum.hit_rate, r.optimum.file_bytes_per_token);
    line(&format!("{:<8} {rate:>7.1} {:>12}", "optimum", units::bytes(bytes)))?;
    let mark = mark(r);
    line(&format!("hits and bytes [{mark}]; tok/s [T] from these and the rates given [S]"))?;
    r.curve.as_ref().map_or(Ok(()), |curve| print_curve(curve, mark))
}

/// Of what follows from the trace alone.
fn mark(r: &Report) -> &'static str {
    if r.trace.recorded { "D" } else { "T" }
}

fn print_trace(r: &Report) -> Result<()> {
    let shape = r.trace.shape;
    let expert = units::bytes(r.trace.expert_bytes as f64);
    let total = units::bytes(shape.total() as f64 * r.trace.expert_bytes as f64);
    let made = if r.trace.recorded { "recorded [M]" } else { "made up [T]" };
    line(&format!(
        "trace    {made}: {} tokens decoded in {} passes, the first {} not counted",
        r.decoded_tokens, r.passes, r.setup.warm_passes
    ))?;
    if !r.complete {
        line("         its writing was cut short; what is there is used")?;
    }
    line(&format!(
        "experts  {} layers of {}, {} a token, {expert} each, {total} in all",
        shape.layers, shape.experts, shape.top_k
    ))?;
    let reuse = r.reuse.map_or("unknown".to_string(), |reuse| format!("{:.1} %", 100.0 * reuse));
    line(&format!("reuse    {reuse} of a token's experts were used by the token before"))
}

fn print_machine(r: &Report) -> Result<()> {
    let (total, bytes) = (r.trace.shape.total(), r.trace.expert_bytes as f64);
    let part = |slots: usize| {
        let share = 100.0 * slots as f64 / total as f64;
        format!("{slots} experts, {}, {share:.1} %", units::bytes(slots as f64 * bytes))
    };
    line(&format!("RAM      {}", part(r.setup.ram_slots)))?;
    if r.setup.vram_slots > 0 {
        line(&format!("VRAM     {}", part(r.setup.vram_slots)))?;
        line(
            "         the planner has no tier for VRAM yet: RAM and VRAM are planned as one cache,",
        )?;
        line("         and VRAM is taken to hold what a cache of its size would [T]")?;
    }
    Ok(())
}

fn print_row(row: &Row) -> Result<()> {
    let law = row.law.tokens_per_second.map_or("-".to_string(), units::rate);
    let s = row.outcome.tally.speculation;
    line(&format!(
        "{:<8} {:>7.1} {:>12} {:>15} {law:>10}  {:<8} {:>11} {:>6}",
        row.policy.name(),
        100.0 * row.hit_rate,
        units::bytes(row.file_bytes_per_token),
        units::rate(row.tokens_per_second),
        row.law.binds.map_or("-", |link| link.name()),
        s.used + s.late,
        s.wasted,
    ))
}

fn print_curve(curve: &Curve, mark: &str) -> Result<()> {
    let share = |fraction: &f64| format!("{:>7.1}", 100.0 * fraction);
    let row = |rates: &[f64]| rates.iter().map(share).collect::<String>();
    line(&format!("\n% cached {}", row(&curve.fractions)))?;
    for p in &curve.policies {
        line(&format!("{:<8} {}", p.policy, row(&p.hit_rates)))?;
    }
    line(&format!("hit rates in %, decoding [{mark}]"))
}
