use lab::kernels::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let level = match a.get(1).map(|s| s.as_str()) {
        Some("scalar") => numerics::SimdLevel::Scalar,
        _ => numerics::SimdLevel::detect(),
    };
    let mb: usize = a.get(2).and_then(|s| s.parse().ok()).unwrap_or(1200);
    let cpu = numerics::Cpu::new(level, 2).unwrap();
    let spec = KernelSpec {
        k: a.get(3).and_then(|s| s.parse().ok()).unwrap_or(3072),
        bytes: mb << 20,
        samples: a.get(4).and_then(|s| s.parse().ok()).unwrap_or(3),
        tokens: vec![4, 64, 512],
    };
    run(&cpu, &spec, |r| {
        println!(
            "{:30} {:8.1} {} of {:8.1} = {:.3} ({:.3}-{:.3})",
            r.kernel, r.rate, r.unit, r.ceiling, r.ratio, r.range.0, r.range.1
        )
    });
}
