//! The reports as tables for people.

use std::fmt::{Display, Formatter, Result};

use super::{DistanceReport, GreedyReport};

fn equal(flags: &[bool]) -> String {
    format!("{} of {}", flags.iter().filter(|f| **f).count(), flags.len())
}

impl Display for DistanceReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "{}: logits against float64 ({})", self.model, self.float64)?;
        writeln!(f, "  relative RMS error; argmax: positions where it is float64's")?;
        writeln!(
            f,
            "  {:>6} {:>6} {:>11} {:>11} {:>6} {:>9} {:>9}",
            "prompt", "tokens", "tarfa", "bf16 ref.", "ratio", "argmax", "bf16 ref."
        )?;
        for p in &self.prompts {
            writeln!(
                f,
                "  {:>6} {:>6} {:>11.4e} {:>11.4e} {:>6.3} {:>9} {:>9}",
                p.prompt,
                p.tokens,
                p.error,
                p.bf16_error,
                p.error / p.bf16_error,
                equal(&p.argmax_equal),
                equal(&p.bf16_argmax_equal)
            )?;
        }
        let of = |count| format!("{count} of {}", self.positions);
        writeln!(
            f,
            "  {:>6} {:>6} {:>11.4e} {:>11.4e} {:>6.3} {:>9} {:>9}",
            "sum",
            "",
            self.error_sum,
            self.bf16_error_sum,
            self.ratio,
            of(self.argmax_equal),
            of(self.bf16_argmax_equal)
        )
    }
}

impl Display for GreedyReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "  greedy tokens against float64's: where they part")?;
        writeln!(f, "  {:>6} {:>6} {:>11} {:>11}", "prompt", "tokens", "tarfa", "bf16 ref.")?;
        let place = |at: Option<usize>| at.map_or("equal".into(), |at| format!("at {at}"));
        for p in &self.prompts {
            let (ours, bf16) = (place(p.first_difference), place(p.bf16_first_difference));
            writeln!(f, "  {:>6} {:>6} {ours:>11} {bf16:>11}", p.prompt, p.tokens)?;
        }
        Ok(())
    }
}
