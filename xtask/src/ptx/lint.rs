//! What canonical kernels must not hold: approximations, flushed subnormals, and arithmetic whose
//! rounding is left open, which an assembler may contract.

use std::fmt;

/// A line that breaks a rule.
pub struct Finding {
    function: String,
    line: usize,
    code: String,
    why: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}: `{}` {}", self.function, self.line, self.code, self.why)
    }
}

/// Instructions that round.
const ROUNDING: [&str; 8] = ["add", "sub", "mul", "fma", "mad", "div", "sqrt", "rcp"];

/// Every line of PTX that breaks a rule.
pub fn findings(ptx: &str) -> Vec<Finding> {
    let (mut function, mut found) = (String::new(), Vec::new());
    for (index, line) in ptx.lines().enumerate() {
        let code = line.trim();
        if code.contains(".entry ") || code.contains(".func ") {
            function = name_in(code);
        }
        if let Some(why) = broken_rule(code) {
            let code = code.to_string();
            found.push(Finding { function: function.clone(), line: index + 1, code, why });
        }
    }
    found
}

/// The name before the parenthesis of the parameters, or the last word.
fn name_in(code: &str) -> String {
    let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.rfind(|w| !w.is_empty()).unwrap_or_default().to_string()
}

fn broken_rule(code: &str) -> Option<&'static str> {
    // A predicate before the instruction is not part of it.
    let code = if code.starts_with('@') { code.split_once(' ')?.1.trim() } else { code };
    let instruction = code.split_whitespace().next()?.trim_end_matches(';');
    let mut parts = instruction.split('.');
    let name = parts.next()?;
    let parts: Vec<&str> = parts.collect();
    if parts.contains(&"approx") {
        return Some("is an approximation");
    }
    if parts.contains(&"ftz") {
        return Some("flushes subnormals");
    }
    let is_float = parts.iter().any(|p| matches!(*p, "f32" | "f64" | "f16" | "bf16" | "f32x2"));
    if ROUNDING.contains(&name) && is_float && !parts.contains(&"rn") {
        return Some("leaves its rounding open: use the _rn intrinsics");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_must_be_said() {
        for good in [
            "add.rn.f32 %f1, %f2, %f3;",
            "@%p1 fma.rn.f64 %fd1, %fd2, %fd3, %fd4;",
            "add.s32 %r1, %r2, %r3;",
            "mul.wide.u32 %rd1, %r1, 4;",
            "div.rn.f32 %f1, %f2, %f3;",
            "cvt.rn.f32.f64 %f1, %fd1;",
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1},{%r1};",
        ] {
            assert!(broken_rule(good).is_none(), "{good}");
        }
        for bad in [
            "add.f32 %f1, %f2, %f3;",
            "mul.f64 %fd1, %fd2, %fd3;",
            "@%p2 sub.f64 %fd1, %fd2, %fd3;",
            "add.rz.f32 %f1, %f2, %f3;",
            "div.full.f32 %f1, %f2, %f3;",
            "ex2.approx.f32 %f1, %f2;",
            "mul.rn.ftz.f32 %f1, %f2, %f3;",
            "rcp.approx.ftz.f64 %fd1, %fd2;",
        ] {
            assert!(broken_rule(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_finding_names_its_function() {
        let ptx = ".visible .entry mix_f64(\n.param .u64 a\n)\n{\nadd.f32 %f1, %f2, %f3;\n}\n";
        let found = findings(ptx);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].function.as_str(), found[0].line), ("mix_f64", 5));
    }
}
